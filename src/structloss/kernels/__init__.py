"""Compiled loops on arrays: no torch, no classes, no input checks."""
