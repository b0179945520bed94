"""Tagging: a label for each token, from files in columns."""
