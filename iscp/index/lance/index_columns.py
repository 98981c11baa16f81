"""The form of an index in its Lance dataset: the columns, the names and options of the indexes on them, and the head,
which is the row that says what the index is and how far it has come.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa

from iscp.index.lance.text_analysis import Analyse, analyser
from iscp.index.model.index_definition import DOTLESS, Analysis, Tokenizer
from iscp.model.values.errors import ErrorCode, PermanentError
from iscp.model.values.untrusted_values import error_text, exact_int, shown

# --- columns ----------------------------------------------------------------------------------------------------------
# A row of the source is one row of the dataset. `KEY` is its key as one text, `ROW_HASH` says what the row had, and for
# each text column there is what its analysis came to: words between spaces, with a space at each end, so that a word is
# found as ` word `. Lance indexes these words as they are; the analysis is never done twice, nor by another program's
# rules. A row that cannot be indexed has a `FAULT`, and neither words nor a vector: no search finds it.

KEY = "_key"
ROW_HASH = "_hash"
FAULT = "_fault"
HEAD = "_iscp"
VECTOR = "_vector"
TEXT_HASH = "_text_hash"
"""The SHA-256 of the text that `VECTOR` was made of; null where the vector is the source's own."""

HEAD_KEY = "\\W"
"""The key of the row with the head. No key of a row is this text, as a backslash in a key is doubled."""

RESERVED = frozenset({KEY, ROW_HASH, FAULT, HEAD, VECTOR, TEXT_HASH, "_rowid", "_rowaddr", "_score", "_distance"})
"""Names that a column of a source cannot have in an index: its own, and those that Lance gives."""

NAME_LENGTH_MAX = 200
"""Characters of a name that a message shows; the rest is cut off."""

_WORDS = re.compile(r"_words_(\d+)")


def words_column(number: int) -> str:
    """Return the name of the column with the words of the text column of this number."""
    return f"_words_{number}"


def is_reserved(name: str) -> bool:
    return name.lower() in RESERVED or _WORDS.fullmatch(name.lower()) is not None


def dataset_schema(stored: Sequence[pa.Field], texts: int, dimension: int, half: bool = False) -> pa.Schema:
    """Return the schema of a dataset.

    `stored` are the source's columns that are stored, the key's among them; there are so many text columns, and vectors
    of `dimension` numbers (0: no vectors), of 16 bits each if `half`.
    """
    fields = [
        pa.field(KEY, pa.string(), nullable=False),
        pa.field(ROW_HASH, pa.binary(16)),
        pa.field(FAULT, pa.string()),
    ]
    fields += [field.with_nullable(True) for field in stored]
    fields += [pa.field(words_column(number), pa.string()) for number in range(texts)]
    if dimension:
        number_type = pa.float16() if half else pa.float32()
        fields += [pa.field(VECTOR, pa.list_(number_type, dimension)), pa.field(TEXT_HASH, pa.binary(32))]
    return pa.schema([*fields, pa.field(HEAD, pa.string())])


def words_columns(schema: pa.Schema) -> list[str]:
    """Return the names of the columns with words, by number."""
    return [words_column(number) for number in range(sum(_WORDS.fullmatch(name) is not None for name in schema.names))]


def schema_fault(schema: pa.Schema, key: Sequence[str], texts: int) -> str:
    """Return why the columns of a dataset are none of an index with this key and so many text columns, or an empty
    text.
    """
    kinds = {KEY: pa.string(), ROW_HASH: pa.binary(16), FAULT: pa.string(), HEAD: pa.string()}
    kinds |= {words_column(number): pa.string() for number in range(texts)}
    names = set(schema.names)
    if len(names) != len(schema.names):
        return "two columns of the dataset have one name"
    for name, kind in kinds.items():
        if name not in names or schema.field(name).type != kind:
            return f"the dataset has no column {name} of the type {kind}"
    if len(words_columns(schema)) != texts:
        return f"the dataset has other columns of words than the {texts} that the head has"
    known = {name.lower() for name in names}
    if missing := [name for name in key if name.lower() not in known]:
        return f"the dataset has no column {missing[0][:NAME_LENGTH_MAX]}, which is of its key"
    if VECTOR in names:
        kind = schema.field(VECTOR).type
        if not pa.types.is_fixed_size_list(kind) or kind.value_type not in (pa.float16(), pa.float32()):
            return f"the column {VECTOR} has no vectors"
        if TEXT_HASH not in names or schema.field(TEXT_HASH).type != pa.binary(32):
            return f"the dataset has no column {TEXT_HASH} of the type {pa.binary(32)}"
    return ""


# --- parts of an index ------------------------------------------------------------------------------------------------
# The names of an index's parts in its Lance dataset, and the options with which Lance makes them. The analysis of texts
# is iscp's (`text_analysis`), so Lance has to leave each word as it is.

KEY_INDEX = "key"
VECTOR_INDEX = "vector"

_WORDS_INDEX = "words_"

TEXT_OPTIONS: Mapping[str, Any] = {
    "base_tokenizer": "whitespace",
    "with_position": True,
    "lower_case": False,
    "stem": False,
    "remove_stop_words": False,
    "ascii_folding": False,
    "max_token_length": None,
}
"""The options of an inverted index on words between spaces."""

VECTOR_KIND = "IVF_RQ"
"""Partitions by nearest centroid, and in them one bit for each dimension: the smallest index, and the fastest with
filters. Exact distances of the nearest candidates make up for the bits where vectors lie in clusters (ADR 45)."""

FINE_VECTOR_KIND = "IVF_SQ"
"""The same with eight bits for each dimension, for vectors that one bit cannot distinguish, such as random ones."""

BIT_DIMENSIONS_MIN = 64
"""Dimensions from which one bit for each is tried."""

VECTOR_OPTIONS: Mapping[str, Mapping[str, Any]] = {VECTOR_KIND: {"num_bits": 1}, FINE_VECTOR_KIND: {}}

PARTITION_ROWS = 1_000
"""Rows of a partition of vectors. Fewer rows need fewer distances where few partitions do, and more where a filter
needs all of them (ADR 45)."""

PARTITIONS_MAX = 4_096
"""Partitions of one segment; of more rows than these have, each has more."""


def words_index(number: int) -> str:
    """Return the name of the index on the words of the text column of this number."""
    return f"{_WORDS_INDEX}{number}"


def words_number(name: str) -> int | None:
    """Return the number of the text column whose words the index of this name has; None for another index."""
    number = name.removeprefix(_WORDS_INDEX)
    return int(number) if number != name and number.isdecimal() else None


def partitions(rows: int) -> int:
    """Return into how many partitions a segment of so many vectors is divided."""
    return max(1, min(PARTITIONS_MAX, rows // PARTITION_ROWS))


# --- the analysis in Lance's terms ------------------------------------------------------------------------------------


def analyser_of(analysis: Analysis) -> Analyse:
    """Return the function that makes the words of an index's texts, and those of its queries."""
    options: dict[str, Any] = {
        "base_tokenizer": analysis.tokenizer.value,
        "max_token_length": analysis.max_token_length,
        "lower_case": analysis.lower_case,
        "stem": analysis.stem,
        "remove_stop_words": analysis.stop_words,
        "ascii_folding": analysis.ascii_folding,
    }
    if analysis.language:
        options["language"] = analysis.language.capitalize()
    if analysis.tokenizer is Tokenizer.NGRAM:
        options["min_ngram_length"] = analysis.min_ngram
        options["max_ngram_length"] = analysis.max_ngram
        options["prefix_only"] = analysis.prefix_only
    analyse = analyser(options, joins=analysis.tokenizer.has_words)
    if not analysis.folds:
        return analyse
    return lambda texts: analyse([analysis.folded(text) for text in texts])


def folding_of(analysis: Analysis) -> tuple[bool, bool]:
    """Return the arguments `case` and `dotless` of iscp.index.model.highlighting.fold, for texts of this analysis."""
    return analysis.lower_case, analysis.language == DOTLESS


# --- the head ---------------------------------------------------------------------------------------------------------
# The head says what an index is and how far it has come, and has the sums that ranks need, in one row of the dataset.
# The row changes in each commit of iscp, which makes it the fence as well: of two writers from one version the later
# one's commit meets a row that is gone, and fails.

FORMAT = 1

HEAD_BYTES_MAX = 4 * 1024**2
"""Bytes of a head; a longer one is no head of ours."""


@dataclass(frozen=True, slots=True)
class FieldTotals:
    """The live rows that have words in one text column, and how many words these are together."""

    rows: int = 0
    words: int = 0

    def plus(self, other: tuple[int, int], sign: int = 1) -> FieldTotals:
        return FieldTotals(self.rows + sign * other[0], self.words + sign * other[1])


@dataclass(frozen=True, slots=True)
class IndexHead:
    """A commit says this of the whole index.

    `definition` says what is indexed and how (iscp.index.model.index_definition has its form); empty: the index is
    deleted, and this is all that is left (iscp.consumers.index.index_kind). `key` are the source's
    columns that identify a row. `records` are the watermark records by their names (iscp.model.job.watermark_record).
    `version` is that of the source which the rows are of, committed at `version_at_s` (Unix seconds); -1: there are
    none yet. It stays while a later registration builds other rows, which a record says at once. While a commit of the
    source is applied in steps, `whole` is the dataset's version before the first of them, which searches read; 0: this.
    `rows` counts rows of the source, those with a fault (`faults`) among them; `vectors` those that have a vector.
    `totals` belong to the text columns, by number, and `count_files` are named as iscp.index.lance.word_counts names
    them. `fingerprint` says by which embedder vectors were made (empty: they are the source's own), `column_ids` are
    those of the source at the watermark. A calibration found that so many `probes` (partitions) and `refine` times as
    many candidates as hits reach the recall, while the largest segment of vectors had `calibrated_rows`; 0: there was
    none. `vector_kind` is Lance's name of the index that it needs; empty: the usual one.
    """

    definition: str
    key: tuple[str, ...]
    records: Mapping[str, str] = field(default_factory=dict)
    version: int = -1
    version_at_s: float = 0.0
    whole: int = 0
    rows: int = 0
    faults: int = 0
    vectors: int = 0
    totals: tuple[FieldTotals, ...] = ()
    count_files: tuple[str, ...] = ()
    fingerprint: str = ""
    column_ids: Mapping[str, str] | None = None
    probes: int = 0
    refine: int = 0
    calibrated_rows: int = 0
    vector_kind: str = ""

    @property
    def is_deleted(self) -> bool:
        return not self.definition

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, separators=(",", ":"))

    def emptied(self, texts: int) -> IndexHead:
        """Return the head of the same index without rows, and with so many text columns."""
        totals = (FieldTotals(),) * texts
        emptied = replace(self, rows=0, faults=0, vectors=0, totals=totals, count_files=())
        return replace(emptied, probes=0, refine=0, calibrated_rows=0)


def parse_head(text: str) -> IndexHead:
    """Read the result of `to_json`; raise PermanentError for anything else."""
    try:
        if len(text) > HEAD_BYTES_MAX:
            raise ValueError(f"it has more than {HEAD_BYTES_MAX} bytes")
        found = json.loads(text)
        if (version := found.pop("format")) != FORMAT:
            raise ValueError(f"its format is {version}, and this release knows {FORMAT}")
        totals = tuple(
            FieldTotals(exact_int(each["rows"], "rows"), exact_int(each["words"], "words")) for each in found["totals"]
        )
        lists = {name: tuple(map(_text, _list(found[name]))) for name in ("key", "count_files")}
        head = IndexHead(**{**found, **lists, "totals": totals})
        for name in ("rows", "faults", "vectors", "probes", "refine", "calibrated_rows", "whole"):
            exact_int(getattr(head, name), name)
        exact_int(head.version, "version", -1)
        if type(head.version_at_s) not in (int, float):
            raise ValueError("version_at_s is no number")
        _text(head.vector_kind)
        for mapping in (head.records, head.column_ids or {}):
            for name, value in mapping.items():
                _text(name), _text(value)
        _text(head.fingerprint), _text(head.definition)
        return head
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise unreadable_head(error_text(error)) from error


def unreadable_head(why: str) -> PermanentError:
    """Return the error for a head that is none, or none of its dataset."""
    return PermanentError(
        f"the index's head cannot be read: {why}",
        remedy="Use the release of iscp that wrote it, or have the index rebuilt by `iscp-admin job resync`",
        code=ErrorCode.TARGET_UNUSABLE,
    )


def _text(value: object) -> str:
    if type(value) is not str:
        raise ValueError(f"{shown(value)} is no text")
    return value


def _list(value: object) -> list[object]:
    if type(value) is not list:
        raise ValueError(f"{shown(value)} is no list")
    return value
