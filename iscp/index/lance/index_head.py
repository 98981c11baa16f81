"""The head of an index: what it is, how far it has come, and the sums that its ranks need, in one row of its dataset.

The row changes in each commit of iscp, which makes it the fence as well: of two writers from one version the later
one's commit meets a row that is gone, and fails.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from iscp.model.values.errors import ErrorCode, PermanentError
from iscp.model.values.untrusted_values import error_text, exact_int, shown

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
