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
from tests.random_logs.columns import COLUMNS, PARTITIONS, Numbers

VERSIONS_MAX, ROWS_MAX, STEPS_MAX, FILES_MAX, PLACES_MAX = 6, 6, 3, 8, 16

OFTEN = {
    Deed.INSERT: 10,
    Deed.DELETE: 5,
    Deed.UPDATE: 5,
    Deed.REWRITE: 3,
    Deed.ADD_AGAIN: 3,
    Deed.OVERWRITE: 2,
    Deed.RESTORE: 2,
    Deed.REMOVE_GONE: 2,
}
"""How often a deed is drawn; all others once."""

DEEDS = tuple(deed for deed in Deed for _ in range(OFTEN.get(deed, 1)))


def case_of(seed: int) -> LogCase:
    return _Draw(Random(seed)).case()


class _Draw:
    def __init__(self, random: Random) -> None:
        self.random = random

    def case(self) -> LogCase:
        setup = self.setup()
        versions = tuple(self.version() for _ in range(self.random.randint(1, VERSIONS_MAX)))
        followers = tuple(self.follower(len(versions)) for _ in range(self.random.choice((1, 1, 1, 2))))
        return LogCase(setup, versions, followers)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def row(self) -> Numbers:
        few = self.random.choice((2, 3, 3, 5))
        return tuple(self.random.randrange(few if self.chance(0.9) else len(column.values)) for column in COLUMNS)

    def rows(self, most: int = ROWS_MAX) -> tuple[Numbers, ...]:
        return tuple(self.row() for _ in range(self.random.randint(1, most)))

    def setup(self) -> Setup:
        placing = self.random.choice((*[Placing.PLAIN] * 4, *[Placing.HIVE] * 2, Placing.ESCAPED, Placing.ABSOLUTE))
        return Setup(
            rows=self.rows() if self.chance(0.9) else (),
            partition=self.random.choice((0, 0, 1, 1, 2, 3)),
            feed=self.chance(0.6),
            featured=self.chance(0.6),
            stamps=self.chance(0.1),
            placing=placing,
            bounds=self.chance(0.6),
            run=self.chance(0.7),
        )

    def version(self) -> Version:
        return Version(
            steps=tuple(self.step() for _ in range(self.random.choice((1, 1, 1, 2, 2, STEPS_MAX)))),
            dress=self.dress(),
            checkpoint=self.checkpoint() if self.chance(0.25) else None,
            compacted=self.random.randint(2, 4) if self.chance(0.08) else 0,
            run=self.chance(0.35),
            restart=self.chance(0.3),
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
            bare=self.chance(0.2),
            delta_rs=self.chance(0.2),
            checksum=self.chance(0.2),
        )

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(
            kind=self.random.choice((CheckpointKind.CLASSIC, *CheckpointKind)),
            parts=self.random.randrange(4),
            pointer=self.random.choice((*[Pointer.RIGHT] * 3, *Pointer)),
            cleaned=self.chance(0.3),
        )

    def follower(self, versions: int) -> Follower:
        kind = self.random.choice((Kind.KEYED, Kind.ARCHIVE, Kind.FEED, Kind.VIEW, Kind.VIEW))
        return Follower(
            kind,
            where=self.random.choice((0, 0, self.random.randrange(len(CONDITIONS)))) if kind is not Kind.VIEW else 0,
            query=self.random.randrange(len(QUERIES)) if kind is Kind.VIEW else 0,
            by_spark=self.chance(0.1),
            begins=self.random.randrange(versions) if self.chance(0.3) else 0,
            narrow=self.chance(0.3),
            verify=kind is not Kind.FEED and self.chance(0.1),
            damage=self.chance(0.3),
        )
