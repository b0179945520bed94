"""Recognisers trained on the word errors that they are judged by, against lists of hypotheses: people kept apart."""
