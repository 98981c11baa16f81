"""Draws a case from a seed."""

from __future__ import annotations

from random import Random

from tests.random_logs.cases import (
    CONDITIONS,
    OPERATIONS,
    QUERIES,
    Checkpoint,
    CheckpointKind,
    Deed,
    Dress,
    Follower,
    Info,
    Kind,
    LogCase,
    Metrics,
    Placing,
    Pointer,
    Setup,
    Step,
    Vector,
    Version,
)
from tests.random_logs.columns import COLUMNS, KEYS, PARTITIONS, Numbers

VERSIONS_MAX, ROWS_MAX, STEPS_MAX, FILES_MAX, PLACES_MAX = 6, 6, 3, 8, 16

JUDGED = 0.25
"""The share of cases that Spark reads though all is as the generator has it: that takes longer than all else."""

OFTEN = {
    Deed.INSERT: 10,
    Deed.DELETE: 5,
    Deed.UPDATE: 5,
    Deed.REWRITE: 3,
    Deed.ADD_AGAIN: 4,
    Deed.OVERWRITE: 5,
    Deed.RESTORE: 2,
    Deed.BESIDE: 2,
    Deed.REMOVE_GONE: 2,
}
"""How often a deed is drawn; all others once."""

DEEDS = tuple(deed for deed in Deed for _ in range(OFTEN.get(deed, 1)))


SHARING = (Kind.KEYED, Kind.ARCHIVE, Kind.ARCHIVE, Kind.FEED, Kind.FEED)
VERIFIED = (Kind.KEYED, Kind.VIEW)
"""Of a feed nobody verifies anything, and of an archive only while its source grows."""


SEARCHED = (4, 6, 7, 9)
"""Queries whose rows are searched for in the table again when some of them have changed."""


def case_of(seed: int) -> LogCase:
    return _Draw(Random(seed)).case()


class _Draw:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.keys = random.choice((3, KEYS, KEYS, KEYS + 1))

    def case(self) -> LogCase:
        setup = self.setup()
        versions = tuple(self.version() for _ in range(self.random.randint(1, VERSIONS_MAX)))
        return LogCase(self.followers(len(versions)), versions, setup, judged=self.chance(JUDGED))

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def row(self) -> Numbers:
        few = self.random.choice((2, 3, 3, 5))
        others = (self.random.randrange(few if self.chance(0.9) else len(column.values)) for column in COLUMNS[1:])
        return self.random.randrange(self.keys), *others

    def rows(self, most: int = ROWS_MAX) -> tuple[Numbers, ...]:
        return tuple(self.row() for _ in range(self.random.randint(1, most)))

    def setup(self) -> Setup:
        placing = self.random.choice((*[Placing.PLAIN] * 4, *[Placing.HIVE] * 2, Placing.ESCAPED, Placing.ABSOLUTE))
        return Setup(
            rows=self.rows() if self.chance(0.9) else (),
            partition=self.random.choice((0, 0, 1, 1, 2, 3)),
            feed=self.chance(0.8),
            featured=self.chance(0.5),
            stamps=self.chance(0.1),
            placing=placing,
            bounds=self.chance(0.6),
            marked=self.chance(0.1),
            repeated=self.chance(0.1),
            run=self.chance(0.85),
        )

    def version(self) -> Version:
        return Version(
            steps=tuple(self.step() for _ in range(self.random.choice((1, 1, 1, 2, 2, STEPS_MAX)))),
            dress=self.dress(),
            checkpoint=self.checkpoint() if self.chance(0.4) else None,
            compacted=self.random.randint(2, 4) if self.chance(0.08) else 0,
            run=self.chance(0.35),
            restart=self.chance(0.4),
        )

    def step(self) -> Step:
        deed = self.random.choice(DEEDS)
        return Step(
            deed,
            file=self.random.randrange(len(PARTITIONS) if deed is Deed.OVERWRITE else FILES_MAX),
            rows=self.rows(4) if deed in (Deed.INSERT, Deed.UPDATE, Deed.OVERWRITE) else (),
            places=self.random.randrange(1, PLACES_MAX),
            vector=self.random.choice((*[Vector.COPY] * 3, *Vector)),
            data_change=self.chance(0.7),
        )

    def dress(self) -> Dress:
        return Dress(
            info=self.random.choice((*[Info.FIRST] * 4, *Info)),
            operation=self.random.choice((0, 0, 1, 1, self.random.randrange(len(OPERATIONS)))),
            metrics=self.random.choice((Metrics.NONE, Metrics.NONE, Metrics.TRUE, Metrics.ZERO)),
            bare=self.chance(0.05),
            delta_rs=self.chance(0.2),
            checksum=self.chance(0.2),
        )

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(
            kind=self.random.choice((*CheckpointKind, CheckpointKind.TORN, CheckpointKind.V2_PARQUET)),
            parts=self.random.randrange(4),
            pointer=self.random.choice((*[Pointer.RIGHT] * 3, *Pointer)),
            cleaned=self.chance(0.3),
        )

    def followers(self, versions: int) -> tuple[Follower, ...]:
        """A view, which takes longest, or some that share what is read."""
        drawn = self.random.random()
        views = 0 if drawn < 0.4 else 1
        others = 0 if 0.4 <= drawn < 0.9 else self.random.randint(1, 3)
        by_spark = self.chance(0.1)
        kinds = [Kind.VIEW] * views + [self.random.choice(SHARING) for _ in range(others)]
        return tuple(self.follower(kind, versions, by_spark) for kind in kinds)

    def follower(self, kind: Kind, versions: int, by_spark: bool) -> Follower:
        is_view = kind is Kind.VIEW
        return Follower(
            kind,
            where=0 if is_view else self.random.choice((0, 1, self.random.randrange(len(CONDITIONS)))),
            query=self.random.choice((*range(len(QUERIES)), *SEARCHED, *SEARCHED)) if is_view else 0,
            by_spark=by_spark,
            begins=self.random.randrange(versions + 1) if self.chance(0.4) else 0,
            narrow=not is_view and self.chance(0.3),
            ranged=self.chance(0.05),
            verify=kind in VERIFIED and self.chance(0.03),
            damage=self.chance(0.3),
        )
