"""Parsing: a head and a relation for each word, from CoNLL-U."""
