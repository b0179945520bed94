"""Handwritten words, letter by letter, from the pixels of each letter."""
