"""Full-text and vector indexes that follow their tables: how they are stored, changed and searched, without a node."""
