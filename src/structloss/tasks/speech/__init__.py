"""Recordings to words: a recogniser trained by CTC, or on the errors that people count."""
