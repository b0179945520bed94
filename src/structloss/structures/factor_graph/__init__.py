"""Discrete variables and factors over any of them: exact, relaxed, or by messages."""
