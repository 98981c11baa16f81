"""The algebra of changes: typed queries, the plans of how their rows change, and DuckDB, which computes such plans."""
