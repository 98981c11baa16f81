"""The composition of what runs jobs without a node."""
