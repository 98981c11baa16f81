"""The policies of where shards are to be, one a file, all with one signature: `policy(term) -> Iterator[Move | None]`.

A policy only reads. None stands for "nothing yet": the caller may do something else before it goes on. The planner
(`iscp.coordination.placement.planner`) carries out what a policy wants; it knows how much may move at a time (after
TiCDC's schedulers).
"""
