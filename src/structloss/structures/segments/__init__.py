"""Frames cut into segments: with known names, or with labels to be found."""
