"""Draws a table with something odd in it: a hint, what is no file, a footer that lies, long values, a name.

Each seed takes the next of a shuffled list of all oddities, so that as many seeds as there are play each once; all else
is drawn. They are played without Spark, but for what that alone comes to see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

from tests.random_logs.cases import Checkpoint, CheckpointKind, Deed, Placing, Setup, Step, Version
from tests.random_logs.columns import COLUMNS, KEYS, PARTITIONS, Numbers

VERSIONS_MAX, ROWS_MAX = 4, 4


class Oddity(StrEnum):
    HINT = "a hint"
    NO_FILE = "no file"
    FOOTER = "a footer that lies"
    DICTIONARY = "a dictionary of long values"
    NAME = "a name"


class Table(StrEnum):
    """Whose log a hint lies in."""

    SOURCE = "the source"
    TARGET = "the target"
    DEAD_LETTERS = "the dead letters"
    JOB_LOG = "the job log"


class Hint(StrEnum):
    """What `_last_checkpoint` says, or what is in its place."""

    ABSENT = "nothing is there"
    NEWEST = "the newest version"
    NEXT = "the next version"
    FUTURE = "a version of the future"
    PAST = "an earlier version"
    FIRST = "version 0"
    NEGATIVE = "a negative version"
    TEXT = "a text"
    FRACTION = "a fraction"
    LONG_NUMBER = "a number of many digits"
    OTHER_FIELDS = "other fields"
    LIST = "a list"
    EMPTY = "not a byte"
    HALF = "half of it"
    NO_JSON = "no JSON"
    NO_UNICODE = "no text"
    DEEP = "nested lists"
    PARTS = "parts that are missing"
    CHECKSUM = "another checksum"
    SIDECARS = "a checkpoint of version 2 that is away"
    HUGE = "a gigabyte"
    LINK = "a link"
    PIPE = "a pipe"
    SOCKET = "a socket"
    DIRECTORY = "a directory"


NO_HINTS = {Hint.HUGE, Hint.LINK, Hint.PIPE, Hint.SOCKET}
"""Those that no reader may open."""


class Kept(StrEnum):
    """What there is of the log that the hint is about."""

    COMMITS = "commits alone"
    CHECKPOINT = "a checkpoint"
    PARTS = "a checkpoint of parts"
    TORN = "a checkpoint that lacks a part"
    AWAY = "a checkpoint that was removed"
    DAMAGED = "a checkpoint that is damaged"
    CLEANED = "a checkpoint, and no commits before it"
    LOST = "neither the checkpoint nor the commits before it"


WHOLE = (Kept.COMMITS, Kept.CHECKPOINT, Kept.PARTS, Kept.TORN, Kept.AWAY, Kept.CLEANED)
"""With these every version that there is can be read, whatever the hint says."""


class Odd(StrEnum):
    """What is in the place of a file."""

    LINK = "a link"
    LINK_TO_NOTHING = "a link to nothing"
    LINK_TO_ITSELF = "a link to itself"
    PIPE = "a pipe"
    DIRECTORY = "a directory"
    SOCKET = "a socket"


class Place(StrEnum):
    """Where a file is expected."""

    COMMIT = "the newest commit"
    EARLIER_COMMIT = "an earlier commit"
    CHECKPOINT = "a checkpoint"
    CHECKPOINT_PART = "a part of a checkpoint"
    CHECKSUM = "a checksum"
    DATA_FILE = "a data file"
    CHANGE_DATA = "a file of change data"
    FOLDER = "a directory of data files"
    TARGET_COMMIT = "the target's newest commit"
    TARGET_CHECKPOINT = "the target's checkpoint"
    TARGET_DATA = "the target's data file"
    DEAD_COMMIT = "the dead letters' newest commit"
    DEAD_DATA = "the dead letters' data file"
    LOG_COMMIT = "the job log's newest commit"
    LOG_DATA = "the job log's data file"


class SparkPlace(StrEnum):
    """Where files are expected of a table that Spark alone lists."""

    SIDECAR = "a sidecar"
    VECTOR = "a file of deletion vectors"


class Footed(StrEnum):
    """The Parquet file whose footer lies, or whose values are long."""

    DATA_FILE = "a data file"
    CHANGE_DATA = "a file of change data"
    CHECKPOINT = "a checkpoint"
    TARGET_DATA = "the target's data file"
    DEAD_DATA = "the dead letters' data file"


FIELDS = (
    "version",
    "schema",
    "num_rows",
    "type",
    "encodings",
    "path_in_schema",
    "codec",
    "num_values",
    "total_uncompressed_size",
    "total_compressed_size",
    "data_page_offset",
    "dictionary_page_offset",
    "statistics",
    "encoding_stats",
    "size_statistics",
    "group.num_rows",
    "group.sizes",
    "group.file_offset",
    "created_by",
    "key_value_metadata",
    "length of the footer",
)
"""Of a footer, those that hold numbers or texts (parquet.thrift, `FileMetaData`)."""


class Named(StrEnum):
    """What has the name."""

    ABOVE_SOURCE = "a directory above the source"
    ABOVE_TARGET = "a directory above the target"
    SOURCE = "the source"
    TARGET = "the target"
    FILE = "a data file"
    PARTITION_VALUE = "a value of a partition"
    PARTITION_COLUMN = "a partition column"
    COLUMN = "a column"
    TEXT = "a value"


_PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))
SIGNS = tuple(each for each in _PRINTABLE if not each.isalnum() and each != "/")
CONTROLS = ("\t", "\n", "\r", "\x01", "\x1b", "\x7f")
CLASSES = {
    "a blank without a break": "\u00a0",
    "a blank of no width": "\u200b",
    "a joiner": "\u200d",
    "a mark of order": "\u202e",
    "a byte order mark": "\ufeff",
    "a separator of lines": "\u2028",
    "a control of Latin-1": "\u0085",
    "a combining mark": "e\u0301",
    "Hangul of parts": "\u1112\u1161\u11ab",
    "a letter of other lengths by case": "\u0130ß",
    "wide forms": "\uff21\uff0f",
    "beyond the plane": "\U0001f600",
    "private use": "\ue000",
    "no character": "\uffff",
    "half of a pair": "\ud800",
    "written from the right": "\u05d0\u0628",
    "a ligature": "\ufdfa",
}
SPELLED = ("%41", "%2F", "%25", "%", "%zz", "+", "a%20b", "..a", "a..", ".a", "~", "a=b", "p=x")
"""Of paths that somebody may decode, or take for something else."""

NAMES = (*SIGNS, *CONTROLS, *CLASSES.values(), *SPELLED)

Item = tuple[Oddity, str, str]
"""An oddity, what it is, and where."""

ITEMS: tuple[Item, ...] = (
    *((Oddity.HINT, hint, table) for hint in Hint for table in Table),
    *((Oddity.NO_FILE, odd, place) for odd in Odd for place in Place),
    *((Oddity.FOOTER, name, "") for name in FIELDS),
    *((Oddity.DICTIONARY, "", footed) for footed in (Footed.DATA_FILE, Footed.CHANGE_DATA, Footed.CHECKPOINT)),
    *((Oddity.NAME, name, "") for name in NAMES),
)

SPARK_ITEMS: tuple[Item, ...] = (
    *((Oddity.NO_FILE, odd, place) for odd in Odd for place in SparkPlace),
    *((Oddity.FOOTER, name, SparkPlace.SIDECAR) for name in FIELDS),
)
"""What only Spark comes to see."""

_SHUFFLED = Random(1).sample(ITEMS, len(ITEMS))
_SHUFFLED_FOR_SPARK = Random(1).sample(SPARK_ITEMS, len(SPARK_ITEMS))


@dataclass(frozen=True, slots=True)
class OddCase:
    """`number` is whatever the oddity makes of it: how the field lies, or which of several files is meant.

    `begun`: the target was built before the oddity came; `restart`: by a node that has forgotten what it read.
    """

    oddity: Oddity
    what: str
    where: str
    setup: Setup
    versions: tuple[Version, ...]
    kept: Kept = Kept.COMMITS
    number: int = 0
    begun: bool = True
    restart: bool = False
    follows: tuple[Numbers, ...] = field(default=())
    """Rows that are committed after the oddity has come."""

    def shown(self) -> str:
        marks = [
            f"in a log of {self.kept}" * (self.oddity is Oddity.HINT),
            "begun before" * self.begun,
            "after a restart" * self.restart,
            f"then {len(self.follows)} rows" * bool(self.follows),
        ]
        what = f"{self.oddity}: {str(self.what)!a} {self.where}".strip()
        return ", ".join([what, f"number {self.number}", *(each for each in marks if each)])

    def dimensions(self) -> Iterable[str]:
        """By which what seeds reach is counted."""
        yield f"{self.oddity}: {str(self.what)!a}"
        yield f"{self.oddity} at {self.where}"
        if self.oddity in (Oddity.HINT, Oddity.NO_FILE):
            yield f"{self.oddity}: {self.what} at {self.where}"
        if self.oddity is Oddity.HINT:
            yield f"{self.oddity} in a log of {self.kept}"


def wanted_dimensions() -> set[str]:
    """All that seeds have to reach."""
    found = {f"{Oddity.NAME} at {named}" for named in Named}
    found |= {f"{Oddity.FOOTER} at {footed}" for footed in Footed}
    found |= {f"{Oddity.HINT} in a log of {kept}" for kept in Kept}
    for oddity, what, where in ITEMS:
        found.add(f"{oddity}: {str(what)!a}")
        if where:
            found.add(f"{oddity} at {where}")
        if oddity in (Oddity.HINT, Oddity.NO_FILE):
            found.add(f"{oddity}: {what} at {where}")
    return found


def reached_dimensions(seeds: Iterable[int]) -> Counter[str]:
    return Counter(each for seed in seeds for each in odd_case_of(seed).dimensions())


def odd_case_of(seed: int) -> OddCase:
    return _case(seed, _SHUFFLED)


def spark_case_of(seed: int) -> OddCase:
    """One of those that only Spark comes to see."""
    return _case(seed, _SHUFFLED_FOR_SPARK)


def _case(seed: int, items: Sequence[Item]) -> OddCase:
    oddity, what, where = items[seed % len(items)]
    random = Random(f"odd {seed}")
    if oddity is Oddity.FOOTER and not where:
        where = random.choice([*Footed])
    if oddity is Oddity.NAME:
        where = random.choice([*Named])
    versions = tuple(_version(random) for _ in range(random.randint(2, VERSIONS_MAX)))
    return OddCase(
        oddity,
        what,
        where,
        _setup(random),
        versions,
        kept=random.choice([*Kept]),
        number=random.randrange(1 << 16),
        begun=random.random() < 0.6,
        restart=random.random() < 0.5,
        follows=_rows(random) if random.random() < 0.5 else (),
    )


def checkpoint_of(kept: Kept) -> Checkpoint | None:
    """The checkpoint that a log is given for that; what is then removed or damaged is done to its files."""
    match kept:
        case Kept.COMMITS:
            return None
        case Kept.PARTS:
            return Checkpoint(CheckpointKind.PARTS)
        case Kept.TORN:
            return Checkpoint(CheckpointKind.TORN)
        case _:
            return Checkpoint(cleaned=kept in (Kept.CLEANED, Kept.LOST))


def _row(random: Random) -> Numbers:
    others = (random.randrange(3 if column.name == "p" else len(column.values)) for column in COLUMNS[1:])
    return random.randrange(KEYS), *others  # files of no partition, and of "%=/é", are read by Spark alone


def _rows(random: Random) -> tuple[Numbers, ...]:
    return tuple(_row(random) for _ in range(random.randint(1, ROWS_MAX)))


def _setup(random: Random) -> Setup:
    return Setup(
        rows=_rows(random),
        partition=random.choice((0, 0, PARTITIONS.index(("p",)))),
        feed=random.random() < 0.7,
        placing=random.choice((Placing.PLAIN, Placing.HIVE, Placing.ESCAPED)),
        bounds=random.random() < 0.5,
    )


def _version(random: Random) -> Version:
    deed = random.choice((Deed.INSERT, Deed.INSERT, Deed.DELETE, Deed.UPDATE))
    step = Step(deed, random.randrange(8), () if deed is Deed.DELETE else _rows(random), random.randrange(1, 16))
    return Version((step,))
