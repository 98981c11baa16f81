"""Builds: which tasks there are, which node works on which of them, and what follows when they are finished."""
