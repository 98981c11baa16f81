"""Requests to the owner: how they are checked, carried out and shown."""
