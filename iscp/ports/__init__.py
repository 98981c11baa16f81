"""The protocols between rooms that have more than one implementation."""
