"""The definition of an index, and the policy that decides from an index's shape what its maintenance does next."""

from __future__ import annotations

import enum
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from iscp.index.model.highlighting import fold

# --- the definition ---------------------------------------------------------------------------------------------------


class IndexKind(StrEnum):
    FULLTEXT = "fulltext"
    VECTOR = "vector"
    SEARCH = "search"

    @property
    def has_text(self) -> bool:
        return self is not IndexKind.VECTOR

    @property
    def has_vector(self) -> bool:
        return self is not IndexKind.FULLTEXT


class Tokenizer(StrEnum):
    """The ways to cut a text into words, by Lance's names."""

    ICU = "icu"
    SIMPLE = "simple"
    WHITESPACE = "whitespace"
    RAW = "raw"
    NGRAM = "ngram"

    @property
    def has_words(self) -> bool:
        """Return whether its words are those of a language, which can be stemmed and left out."""
        return self not in (Tokenizer.RAW, Tokenizer.NGRAM)


class Metric(StrEnum):
    COSINE = "cosine"
    L2 = "l2"
    DOT = "dot"


class VectorPrecision(StrEnum):
    FLOAT32 = "float32"
    FLOAT16 = "float16"


LANGUAGES = (
    *("arabic", "danish", "dutch", "english", "finnish", "french", "german", "greek", "hungarian", "italian"),
    *("norwegian", "portuguese", "romanian", "russian", "spanish", "swedish", "tamil", "turkish"),
)
"""The languages that Lance has stemmers and lists of stop words of. The tokenizer `icu` leaves out those of all."""

TOKEN_LENGTH_DEFAULT = 40
"""Bytes of a word from which on it is not indexed, if a job does not say another number; that of Lance."""

RECALL_DEFAULT = 0.99
"""The share of the true nearest neighbours that a search is to find, if a job does not say another one."""


DOTLESS = "turkish"
"""The language in which `i` with its dot and `i` without it are two letters."""

_FOLDING_VERSION = 2

ANALYSIS_VERSION = 2
"""The analysis that makes words: 1 cut texts as they are, 2 folds them before. An index of an earlier one is searched
as it was made, until its job has built it again.
"""


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column of texts that is searched; `boost` multiplies its scores."""

    name: str
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Analysis:
    """The way in which texts become words.

    `language` is empty where there is neither stemming nor a list of stop words. The bounds of n-grams count for
    Tokenizer.NGRAM only. Words of `max_token_length` bytes in UTF-8, or more, are not indexed. Without `positions`
    no phrase can be searched for. `version` is that of the analysis by which words were made.
    """

    tokenizer: Tokenizer = Tokenizer.ICU
    language: str = ""
    stem: bool = False
    stop_words: bool = False
    lower_case: bool = True
    ascii_folding: bool = True
    max_token_length: int = TOKEN_LENGTH_DEFAULT
    positions: bool = True
    min_ngram: int = 3
    max_ngram: int = 3
    prefix_only: bool = False
    version: int = ANALYSIS_VERSION

    @property
    def folds(self) -> bool:
        """Return whether texts are folded before they are cut into words (iscp.index.model.highlighting)."""
        return self.version >= _FOLDING_VERSION

    @property
    def growth(self) -> int:
        """Return how many times the bytes of a text its words take at the most, but for a few characters."""
        if self.tokenizer is not Tokenizer.NGRAM:
            return 2
        return sum(length + 1 for length in range(self.min_ngram, self.max_ngram + 1))

    def folded(self, text: str) -> str:
        """Return the text that is cut into words."""
        return fold(text, case=self.lower_case, dotless=self.language == DOTLESS) if self.folds else text

    def grams(self, characters: int) -> int:
        """Return how many n-grams a text of so many characters has; 0 where words are no n-grams."""
        if self.tokenizer is not Tokenizer.NGRAM:
            return 0
        return gram_count(characters, self.min_ngram, self.max_ngram, prefix_only=self.prefix_only)


def gram_count(characters: int, least: int, most: int, *, prefix_only: bool) -> int:
    """Return how many n-grams of `least` to `most` characters a text has."""
    if prefix_only:
        return max(0, min(most, characters) - least + 1)
    return sum(max(0, characters - length + 1) for length in range(least, most + 1))


@dataclass(frozen=True, slots=True)
class VectorOptions:
    """Vectors come from `column`, or are made of `text` by the embedder `embed`; they are compared by `metric`."""

    column: str = ""
    text: str = ""
    embed: str = ""
    metric: Metric = Metric.COSINE
    precision: VectorPrecision = VectorPrecision.FLOAT32
    recall: float = RECALL_DEFAULT


@dataclass(frozen=True, slots=True)
class IndexDefinition:
    """The parsed options of a job of the kinds `fulltext`, `vector` and `search`, which is both.

    `analysis` is None without full text, `vector` without vectors. `stored` names the columns that are kept for filters
    and answers besides the key and the indexed ones. The stored form is the options themselves, all of them, with the
    number of the format.
    """

    kind: IndexKind
    columns: tuple[TextColumn, ...] = ()
    analysis: Analysis | None = None
    vector: VectorOptions | None = None
    stored: tuple[str, ...] = ()

    def boosts(self) -> dict[str, float]:
        """Return the factor of each text column."""
        return {each.name: each.boost for each in self.columns}

    def text_names(self) -> tuple[str, ...]:
        """Return the columns that full text is searched in."""
        return tuple(each.name for each in self.columns)

    def stored_columns(self, key: Sequence[str]) -> tuple[str, ...]:
        """Return all columns that the index holds, each once: the key, the indexed ones and those that are stored."""
        vector = (self.vector.column or self.vector.text,) if self.vector else ()
        names = (*key, *self.text_names(), *vector, *self.stored)
        first = {name.lower(): name for name in reversed(names)}
        return tuple(first[each] for each in dict.fromkeys(name.lower() for name in names))

    def options(self) -> dict[str, Any]:
        """Return all options, with the values that they have by default: `parse_definition` gives the same index."""
        options: dict[str, Any] = {"stored": list(self.stored)} if self.stored else {}
        if self.analysis is not None:
            options["columns"] = {each.name: each.boost for each in self.columns}
            options |= _analysis_options(self.analysis)
        if self.vector is not None:
            given = {name: getattr(self.vector, name) for name in ("column", "text", "embed")}
            options |= {name: value for name, value in given.items() if value}
            options |= {"metric": self.vector.metric.value, "precision": self.vector.precision.value}
            options["recall"] = self.vector.recall
        return options

    def analysed_by(self, version: int) -> IndexDefinition | None:
        """Return the same definition with a version of the analysis; None where no text is analysed."""
        return None if self.analysis is None else replace(self, analysis=replace(self.analysis, version=version))

    def to_json(self) -> str:
        """Return the stored form (iscp.index.model.definition_parsing reads it)."""
        stored: dict[str, Any] = {"format": _FORMAT_WITHOUT_VERSION, "kind": self.kind.value, "options": self.options()}
        if self.analysis is not None and self.analysis.version > 1:
            stored |= {"format": FORMAT, "analysis": self.analysis.version}
        return json.dumps(stored, separators=(",", ":"))


FORMAT = 2
"""The format of stored definitions. A newer one is refused; options that an older one lacks have their defaults. Those
without the version of an analysis have format 1 still, which earlier releases read.
"""

_FORMAT_WITHOUT_VERSION = 1


def _analysis_options(analysis: Analysis) -> dict[str, Any]:
    options: dict[str, Any] = {
        "tokenizer": analysis.tokenizer.value,
        "stem": analysis.stem,
        "stop_words": analysis.stop_words,
        "lower_case": analysis.lower_case,
        "ascii_folding": analysis.ascii_folding,
        "max_token_length": analysis.max_token_length,
        "positions": analysis.positions,
    }
    if analysis.language:
        options["language"] = analysis.language
    if analysis.tokenizer is Tokenizer.NGRAM:
        options["prefix_only"] = analysis.prefix_only
        options |= {"min_ngram": analysis.min_ngram, "max_ngram": analysis.max_ngram}
    return options


# --- the policy of maintenance ----------------------------------------------------------------------------------------
# The shape alone decides what an index needs next. An index is a number of segments for each indexed column, each of
# which covers whole fragments (files of rows), as the levels of a log-structured merge tree cover runs. Rows that no
# segment covers are fresh: each search reads them. Rows that are deleted stay in their fragments and segments until
# these are written again. Each action is one commit that changes no row, and is due again where it lost against another
# commit.

TEXT_ROWS_MIN = 2_000
"""Rows from which words are indexed; a search reads all words of fewer rows in less than a millisecond."""

VECTOR_ROWS_MIN = 5_000
"""Rows from which vectors are indexed; the distances to fewer are computed one by one."""

KEY_ROWS_MIN = 5_000
"""Rows from which keys are indexed; fewer are read whole for each commit."""

FRESH_ROWS_MIN = 1_000
"""Fresh rows that are never too many."""

FRESH_SHARE_MAX = 0.02
"""The share of an index's rows that may be fresh, where these are more than `FRESH_ROWS_MIN`."""

FRESH_ROWS_MAX = 4_000
"""Fresh rows that are always too many: each search reads them, which takes a millisecond or two for so many."""

FRESH_FRAGMENTS_MAX = 16
"""Fresh fragments (files of rows); with more a search spends most of its time on opening them."""

SEGMENTS_MAX = 8
"""Segments of one index; with more, the smallest are merged. A search visits each."""

MERGE_RATIO = 1
"""How many times as large as all smaller segments together a segment may be that is merged with these. So each row is
written again a number of times that grows with the logarithm of the number of rows."""

DEAD_SHARE_MAX = 1 / 2
"""The share of rows in files that may be deleted. A compaction costs as much as a build, so it may not come more often
than after so many changed rows; ranks are exact whatever the share (ADR 45)."""

DEAD_ROWS_MIN = 500
"""Deleted rows that are never too many."""

GROUP_FRAGMENTS_MAX = 20
"""Fragments (files of rows) that one segment covers; of more, one is made."""

COUNT_FILES_MAX = 8
"""Files with counts of words that a head names; with more, the smallest are merged."""

CALIBRATION_RATIO = 2
"""How many times as many rows as at the last calibration, or as few, the largest segment of vectors has at the next."""

KEEPINGS_MAX = 2
"""How many times as long as versions are kept the oldest may stay after the next one has come, before old ones are
removed: one removal takes many."""


class Upkeep(enum.Enum):
    """An index is maintained by these actions."""

    SEGMENTS = "segments"
    """Cover fresh fragments by a new segment of each index."""
    STATE = "state"
    """Write the statistics of segments that have none, or build these segments again."""
    MERGE = "merge"
    """Replace segments by one that covers their fragments."""
    COMPACT = "compact"
    """Write fragments again without the rows that are deleted."""
    COUNTS = "counts"
    """Merge files with counts of words."""
    CALIBRATE = "calibrate"
    """Find out how many partitions of vectors a search has to visit."""
    CLEAN_UP = "clean-up"
    """Remove versions and files that nobody reads any more."""


@dataclass(frozen=True, slots=True)
class SegmentShape:
    """A segment: how many rows it has, deleted ones among them. `stated` says that its statistics are there."""

    uuid: str
    rows: int
    stated: bool = True


@dataclass(frozen=True, slots=True)
class PartShape:
    """One of an index's parts: keys, the words of a column, or vectors. `rows` are the live rows that it could have.

    Segments that are `outdated` are of another kind than they are to be.
    """

    name: str
    rows: int
    rows_min: int
    segments: tuple[SegmentShape, ...] = ()
    fresh_rows: int = 0
    fresh_fragments: int = 0
    outdated: bool = False

    @property
    def wanted(self) -> bool:
        """Return whether this part is to be indexed: it has enough rows, or had once."""
        return bool(self.segments) or self.rows >= self.rows_min


@dataclass(frozen=True, slots=True)
class GroupShape:
    """Fragments that the same segments cover, or none: `rows` are in their files, of which `dead` are deleted."""

    fragments: tuple[int, ...]
    rows: int
    dead: int = 0
    covered: bool = True


@dataclass(frozen=True, slots=True)
class IndexShape:
    """All that decides what an index needs.

    `count_files` are the sizes of its files of counts in bytes. `versions` of the dataset are there, and the next one
    after the oldest has come `oldest_s` seconds ago. They are kept for `keep_s` seconds after that, and longer while
    the index is `between` two versions of its source, as searches read an old one then. The largest segment of vectors
    had `calibrated_rows` when the head's probes were found; 0: they never were.
    """

    parts: tuple[PartShape, ...] = ()
    groups: tuple[GroupShape, ...] = ()
    count_files: tuple[int, ...] = ()
    versions: int = 1
    oldest_s: float = 0.0
    keep_s: float = 600.0
    between: bool = False
    vector: PartShape | None = None
    calibrated_rows: int = 0


@dataclass(frozen=True, slots=True)
class UpkeepAction:
    """An action is due: `segments` are named by their UUIDs, `fragments` and `files` by their numbers."""

    kind: Upkeep
    segments: tuple[str, ...] = ()
    fragments: tuple[int, ...] = ()
    files: tuple[int, ...] = ()


def next_action(shape: IndexShape, without: Collection[Upkeep] = ()) -> UpkeepAction | None:
    """Return what is due, that first which makes searches faster, but nothing `without`; None where nothing is."""
    return next((each for each in _due(shape) if each.kind not in without), None)


def next_due_s(shape: IndexShape) -> float | None:
    """Return in how many seconds something is due though nothing changes; None for never."""
    return max(0.0, KEEPINGS_MAX * shape.keep_s - shape.oldest_s) if shape.versions > 1 else None


def largest(part: PartShape) -> SegmentShape:
    """Return the segment with the most rows; there is one."""
    return max(part.segments, key=lambda each: (each.rows, each.uuid))


def smallest_run(sizes: Sequence[int], most: int) -> tuple[int, ...]:
    """Return which of more than `most` things of these sizes are merged: so many of the smallest that the next is more
    than `MERGE_RATIO` times as large as these are together; none of fewer things.
    """
    if len(sizes) <= most:
        return ()
    order = sorted(range(len(sizes)), key=lambda number: (sizes[number], number))
    # At least so many that `most` are left: otherwise steps of just that ratio would never be merged.
    taken, size = order[: len(sizes) - most + 1], sum(sizes[each] for each in order[: len(sizes) - most + 1])
    for number in order[len(taken) :]:
        if sizes[number] > MERGE_RATIO * size:
            break
        taken.append(number)
        size += sizes[number]
    return tuple(sorted(taken))


def _due(shape: IndexShape) -> Iterator[UpkeepAction]:
    # Segments of two kinds never stand beside each other.
    if outdated := tuple(uuid for part in shape.parts if part.outdated for uuid in _merged_segments(part)):
        yield UpkeepAction(Upkeep.MERGE, segments=outdated)
    if any(part.wanted and _too_fresh(part) for part in shape.parts):
        yield UpkeepAction(Upkeep.SEGMENTS)
    if unstated := tuple(each.uuid for part in shape.parts for each in part.segments if not each.stated):
        yield UpkeepAction(Upkeep.STATE, segments=unstated)
    if merged := tuple(uuid for part in shape.parts for uuid in _merged_segments(part)):
        yield UpkeepAction(Upkeep.MERGE, segments=merged)
    if fragments := tuple(each for group in shape.groups if _is_worn(group, shape) for each in group.fragments):
        yield UpkeepAction(Upkeep.COMPACT, fragments=fragments)
    if shape.vector is not None and shape.vector.segments and _is_uncalibrated(shape.vector, shape.calibrated_rows):
        yield UpkeepAction(Upkeep.CALIBRATE)
    if files := smallest_run(shape.count_files, COUNT_FILES_MAX):
        yield UpkeepAction(Upkeep.COUNTS, files=files)
    if shape.versions > 1 and shape.oldest_s > KEEPINGS_MAX * shape.keep_s and not shape.between:
        yield UpkeepAction(Upkeep.CLEAN_UP)


def _too_fresh(part: PartShape) -> bool:
    if not part.segments:
        return part.fresh_rows > 0
    bound = min(FRESH_ROWS_MAX, max(FRESH_ROWS_MIN, int(FRESH_SHARE_MAX * part.rows)))
    return part.fresh_rows > bound or part.fresh_fragments > FRESH_FRAGMENTS_MAX


def _merged_segments(part: PartShape) -> list[str]:
    if part.outdated:
        return [each.uuid for each in part.segments]
    return [part.segments[each].uuid for each in smallest_run([one.rows for one in part.segments], SEGMENTS_MAX)]


def _is_uncalibrated(part: PartShape, calibrated_rows: int) -> bool:
    rows = largest(part).rows
    return (
        not calibrated_rows or not calibrated_rows <= rows * CALIBRATION_RATIO <= calibrated_rows * CALIBRATION_RATIO**2
    )


def _is_worn(group: GroupShape, shape: IndexShape) -> bool:
    """Return whether fragments are written again.

    Those that are to be covered by a segment soon are left alone, unless there are no segments at all.
    """
    if not group.covered and any(part.segments for part in shape.parts):
        return False
    return len(group.fragments) > GROUP_FRAGMENTS_MAX or (
        group.dead > DEAD_ROWS_MIN and group.dead > DEAD_SHARE_MAX * group.rows
    )
