"""The settings: read from files and variables, and made into those of Spark."""
