"""A cluster under load and faults for as long as one likes: scripts/soak (CONTRIBUTING.md says what it shows)."""
