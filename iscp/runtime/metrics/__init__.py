"""Reads what a node counts, and what it knows as the owner, for whoever collects metrics."""
