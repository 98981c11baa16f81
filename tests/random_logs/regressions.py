"""Cases that found something: logs that were read wrongly once, with what was wrong."""

from __future__ import annotations

from tests.random_logs.cases import (
    OPERATIONS,
    Checkpoint,
    CheckpointKind,
    Deed,
    Dress,
    Follower,
    Kind,
    LogCase,
    Metrics,
    Setup,
    Step,
    Vector,
    Version,
)
from tests.random_logs.columns import PARTITIONS

ROWS = ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 0), (3, 0, 1, 2))
"""Of which two are of the partition `x`."""

FRESH = (Step(Deed.INSERT, rows=((4, 1, 0, 0),)),)
MERGED_NOTHING = Dress(operation=OPERATIONS.index("MERGE"), metrics=Metrics.ZERO)
BY_P = PARTITIONS.index(("p",))
OVERWRITTEN = Step(Deed.OVERWRITE, file=BY_P, rows=((1, 1, 1, 1), (5, 2, 0, 0)))
WHERE_P = 1
GROUPS, GROUPS_OF_X, SELECTED = 0, 1, 2
"""Places among the queries of views."""


def _followed(versions: tuple[Version, ...], follower: Follower, setup: Setup) -> LogCase:
    return LogCase((follower,), versions, setup)


def _view(query: int, begins: int = 0) -> Follower:
    return Follower(Kind.VIEW, query=query, begins=begins)


SIDECARS = (Version(FRESH, checkpoint=Checkpoint(CheckpointKind.V2_PARQUET, 2), run=True), Version(FRESH, run=True))
TORN = (Version(FRESH, checkpoint=Checkpoint(CheckpointKind.TORN), run=True), Version(FRESH, run=True))
MERGED = (Version(FRESH, MERGED_NOTHING),)
ADDED_AGAIN = (Version((Step(Deed.ADD_AGAIN),), run=True),)
REPARTITIONED = (Version((OVERWRITTEN,), run=True), Version(FRESH))
REPARTITIONED_AT_ONCE = (Version(FRESH), Version((OVERWRITTEN,)), Version(FRESH))

PLAIN, FED = Setup(ROWS), Setup(ROWS, feed=True)
FEATURED = Setup(ROWS, featured=True)
BY_X, BY_X_FED = Setup(ROWS, partition=BY_P), Setup(ROWS, partition=BY_P, feed=True)
"""Partitioned by `p` at first; repartitioned otherwise, what is kept of it is of files that were so."""

UNPARTED = Step(Deed.OVERWRITE, file=0, rows=((1, 1, 1, 1), (5, 2, 0, 0)))
UNPARTITIONED_AT_ONCE = (Version(FRESH), Version((UNPARTED,)), Version(FRESH))

MASKED = (Version((Step(Deed.DELETE, vector=Vector.ABSOLUTE),), run=True), Version(FRESH))
BESIDE = Step(Deed.BESIDE, places=0b11, vector=Vector.RELATIVE)
TWICE = tuple(
    (Version((Step(Deed.DELETE, vector=Vector.RELATIVE),)), Version((BESIDE,), checkpoint=made), Version(FRESH))
    for made in (Checkpoint(), Checkpoint(CheckpointKind.V2_PARQUET, 2), Checkpoint(CheckpointKind.V2_JSON))
)
"""A file is there with two vectors, behind a checkpoint of some kind."""
ADDED_BACK = (
    Version((Step(Deed.DELETE, vector=Vector.RELATIVE),)),
    Version((BESIDE,), run=True),
    Version((Step(Deed.DROP, file=1),), run=True),
    Version((Step(Deed.ADD_AGAIN),), run=True),
)
"""Of the two one goes, and the other is added once more."""
DROPPED = (Version((Step(Deed.DROP),), Dress(bare=True), run=True), Version(FRESH))

REGRESSIONS = (
    {
        "a view is built from a checkpoint with sidecars": _followed(SIDECARS, _view(SELECTED, begins=1), FEATURED),
        "groups are made from a checkpoint with sidecars": _followed(SIDECARS, _view(4, begins=1), FEATURED),
        "a view is built though a checkpoint lacks a part": _followed(TORN, _view(SELECTED, begins=1), PLAIN),
        "groups are counted though a checkpoint lacks a part": _followed(TORN, _view(GROUPS, begins=1), PLAIN),
        "an archive gets what a MERGE without rows inserts": _followed(MERGED, Follower(Kind.ARCHIVE), FED),
        "a replica gets what a MERGE without rows inserts": _followed(MERGED, Follower(), FED),
        "a changefeed gets what a MERGE without rows inserts": _followed(MERGED, Follower(Kind.FEED), FED),
        "a view gets what a MERGE without rows inserts": _followed(MERGED, _view(GROUPS), FED),
        "an archive gets no rows of a file that is there already": _followed(ADDED_AGAIN, Follower(Kind.ARCHIVE), FED),
        "an archive of a table without a feed gets none either": _followed(ADDED_AGAIN, Follower(Kind.ARCHIVE), PLAIN),
        "a changefeed gets no rows of a file that is there already": _followed(ADDED_AGAIN, Follower(Kind.FEED), FED),
        "groups count a file once that is added twice": _followed(ADDED_AGAIN, _view(GROUPS), FED),
        "groups are made though a deletion vector's place is a URI": _followed(MASKED, _view(4), FEATURED),
        "a replica follows a remove without extended metadata": _followed(DROPPED, Follower(), FED),
        "a changefeed follows a remove without extended metadata": _followed(DROPPED, Follower(Kind.FEED), FED),
        "a view follows a remove without extended metadata": _followed(DROPPED, _view(GROUPS), FED),
        "rows are selected once of a file that is added twice": _followed(ADDED_AGAIN, _view(SELECTED), FED),
        "an archive gets no rows of a file of two vectors again": _followed(
            ADDED_BACK, Follower(Kind.ARCHIVE), FEATURED
        ),
    }
    | {
        f"{what} of a file with two vectors behind a checkpoint, {kind}": _followed(versions, follower, FEATURED)
        for kind, versions in zip(("classic", "with sidecars", "of JSON"), TWICE, strict=True)
        for what, follower in (
            ("a view selects rows", _view(SELECTED, begins=2)),
            ("a view joins rows", _view(3, begins=2)),
            ("a view counts rows", _view(GROUPS, begins=2)),
            ("a replica holds rows", Follower(begins=2)),
            ("an archive built by ranges has rows", Follower(Kind.ARCHIVE, begins=2, ranged=True)),
        )
    }
    | {
        f"{what} where a table was {how}": _followed(versions, follower, setup)
        for how, versions, setup in (
            ("partitioned by what is selected by", REPARTITIONED, FED),
            ("partitioned so between others' commits", REPARTITIONED_AT_ONCE, FED),
            ("partitioned so without a feed", REPARTITIONED_AT_ONCE, PLAIN),
            ("unpartitioned between others' commits", UNPARTITIONED_AT_ONCE, BY_X_FED),
            ("unpartitioned without a feed", UNPARTITIONED_AT_ONCE, BY_X),
        )
        for what, follower in (
            ("a replica holds", Follower(where=WHERE_P)),
            ("a changefeed has", Follower(Kind.FEED, where=WHERE_P)),
            ("a view counts", _view(GROUPS_OF_X)),
            ("a view joins", _view(10)),
        )
    }
)
"""By what has to be so."""

EACH_TIME = (
    "groups are made from a checkpoint with sidecars",
    "a view is built though a checkpoint lacks a part",
    "a view gets what a MERGE without rows inserts",
    "an archive gets no rows of a file that is there already",
    "groups count a file once that is added twice",
    "groups are made though a deletion vector's place is a URI",
    "a replica follows a remove without extended metadata",
    "a view selects rows of a file with two vectors behind a checkpoint, classic",
    "a view counts rows of a file with two vectors behind a checkpoint, with sidecars",
    "an archive built by ranges has rows of a file with two vectors behind a checkpoint, of JSON",
    "an archive gets no rows of a file of two vectors again",
    "a replica holds where a table was partitioned by what is selected by",
)
"""Of each fault the shortest."""
