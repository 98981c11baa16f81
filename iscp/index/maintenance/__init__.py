"""Maintenance, which keeps an index fast and small: what is due, and how it is carried out."""
