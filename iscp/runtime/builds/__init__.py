"""Builds at work: the owner's builder and each node's build worker, on threads."""
