"""The metrics that a node emits, declared as data: names, units and meanings. Nothing here measures."""
