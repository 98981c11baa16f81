"""The Lance dataset that is an index: its columns, its commits, its counts of words, its files."""
