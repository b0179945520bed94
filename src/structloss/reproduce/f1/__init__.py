"""Trained for F1: what taggers of names and chunks gain from training on what is reported."""
