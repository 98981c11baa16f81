"""Where shards are to be, one policy a file, all with one signature: `policy(term) -> Iterator[Move | None]`.

A policy only reads. None stands for "nothing yet": the caller may do something else before it goes on. What a
policy wants is carried out by `iscp.coordination.placement.planner`, which knows how much may move at a time (after
TiCDC's schedulers).
"""
