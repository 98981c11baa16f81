"""Searches of indexes: by words, by vectors, by both, and filters on stored columns."""
