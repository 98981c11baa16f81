"""Events of OpenLineage: what a job's part in an iteration read and wrote, as one JSON object each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from iscp.model.job.iteration import JobOutcome
from iscp.model.job.job_row import JobRow, tables_of
from iscp.model.spec.spec_parsing import view_of
from iscp.model.values.errors import ErrorCode
from iscp.model.values.untrusted_values import NAME_CHARS_MAX, escaped, printable

# --- names of tables --------------------------------------------------------------------------------------------------
# A table's name is that of OpenLineage's naming specification: a namespace, and a name within it.

_S3 = ("s3://", "s3a://")


class DatasetName(NamedTuple):
    """A table at a path of this machine is in `file`; one on S3 in its bucket, by its key."""

    namespace: str
    name: str


def dataset_name(uri: str) -> DatasetName | None:
    """Return the name of the table at `uri`; None if it is at no place that has one, as a custom consumer's target.

    Signs that have no form in UTF-8, or steer a terminal, are escaped.
    """
    if len(uri) > NAME_CHARS_MAX:
        return None
    if scheme := next((each for each in _S3 if uri.startswith(each)), ""):
        bucket, _, key = uri.removeprefix(scheme).partition("/")
        key = key.strip("/")
        return DatasetName(f"s3://{escaped(bucket)}", escaped(key)) if bucket and key else None
    path = uri
    if uri.startswith("file:"):
        try:
            path = unquote(urlsplit(uri).path)
        except ValueError:
            return None
    path = path.rstrip("/") if path.startswith("/") else ""
    return DatasetName("file", escaped(path)) if path else None


# --- events -----------------------------------------------------------------------------------------------------------
# The versions in the URLs of schemas are those of the specification 2-0-2 and its facets at that time. The project
# writes the objects itself: the official client brings more libraries than a node has use for.

COLUMNS_MAX = 2_000
"""Columns of a table that an event describes; of one that has more, the first are described."""

INPUT_FIELDS_MAX = 500
"""Columns that an event names as those which one column, or all rows, are made of; further ones are left out."""

VERSIONED_KINDS = frozenset({"replica", "view"})
"""Kinds of consumers whose sinks count the versions of the target's Delta table, which its readers see too."""

_SPEC = "https://openlineage.io/spec"
_RUN_EVENT = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
_VERSIONS = {
    "SchemaDatasetFacet": "1-2-0",
    "ColumnLineageDatasetFacet": "1-2-0",
    "DatasetVersionDatasetFacet": "1-0-1",
    "OutputStatisticsOutputDatasetFacet": "1-0-2",
    "InputStatisticsInputDatasetFacet": "1-0-0",
    "ErrorMessageRunFacet": "1-0-1",
    "JobTypeJobFacet": "2-0-4",
    "SQLJobFacet": "1-1-0",
    "ProcessingEngineRunFacet": "1-1-1",
}

Document = dict[str, Any]


class RunState(StrEnum):
    """The state of a run. RUNNING: its first rows are built by ranges. ABORT: the iteration was cancelled."""

    START = "START"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    FAIL = "FAIL"
    ABORT = "ABORT"


@dataclass(frozen=True, slots=True)
class JobRunState:
    """The state of a job's part in an iteration at a time (Unix seconds). `outcome` is None until it is over."""

    run_id: str
    state: RunState
    at_s: float
    row: JobRow
    outcome: JobOutcome | None = None


@dataclass(frozen=True, slots=True)
class InputColumn:
    """A column of the table at `uri` from which others follow, and how: `kind` and `subtype` in OpenLineage's words."""

    uri: str
    column: str
    kind: str = "DIRECT"
    subtype: str = "IDENTITY"


@dataclass(frozen=True, slots=True)
class KnownTables:
    """The tables of a job, as far as they are known: types by columns, by URIs, and what its target's are made of.

    `rows_follow` has the columns by which rows are filtered, joined, grouped or ordered.
    """

    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    made_of: Mapping[str, tuple[InputColumn, ...]] = field(default_factory=dict)
    rows_follow: tuple[InputColumn, ...] = ()


@dataclass(frozen=True, slots=True)
class EventEmitter:
    """An emitter has the `namespace` of its jobs, and the version of iscp."""

    namespace: str
    version: str

    @property
    def producer(self) -> str:
        return f"urn:iscp:{self.version}"


def source_uris(row: JobRow) -> tuple[str, ...]:
    """Return the URIs of all tables that a job reads, its own first, each once."""
    return tuple(dict.fromkeys((row.table_uri, *tables_of(row).values())))


def run_event(run: JobRunState, target: str, known: KnownTables, emitter: EventEmitter) -> Document:
    """Return the event. `target` is the URI of what the job writes; empty if that has none."""
    at = datetime.fromtimestamp(max(0.0, run.at_s), UTC)
    return {
        "eventTime": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "eventType": run.state.value,
        "producer": emitter.producer,
        "schemaURL": _RUN_EVENT,
        "run": {"runId": run.run_id, "facets": _run_facets(run, emitter)},
        "job": {"namespace": emitter.namespace, "name": job_name(run.row), "facets": _job_facets(run.row, emitter)},
        "inputs": [*_inputs(run, known, emitter)],
        "outputs": [*_outputs(run, target, known, emitter)],
    }


def job_name(row: JobRow) -> str:
    """Return the name of a job among all of a cluster; that of a table may be a path."""
    return escaped(f"{row.key.account}:{row.table_name}:{row.key.job_name}")


def _facet(kind: str, emitter: EventEmitter, /, **fields: Any) -> Document:
    url = f"{_SPEC}/facets/{_VERSIONS[kind]}/{kind}.json#/$defs/{kind}"
    return {"_producer": emitter.producer, "_schemaURL": url, **fields}


def _run_facets(run: JobRunState, emitter: EventEmitter) -> Document:
    engine = {"version": emitter.version, "name": "iscp", "openlineageAdapterVersion": emitter.version}
    facets = {"processing_engine": _facet("ProcessingEngineRunFacet", emitter, **engine)}
    if run.outcome is not None and not run.outcome.ok:
        message = printable(run.outcome.error_msg) or f"error {run.outcome.error_code}"
        about = {"message": message, "programmingLanguage": "Python"}
        facets["errorMessage"] = _facet("ErrorMessageRunFacet", emitter, **about)
    return facets


def _job_facets(row: JobRow, emitter: EventEmitter) -> Document:
    kind = escaped(row.spec.consumer.kind).upper()
    about = {"processingType": "BATCH", "integration": "ISCP", "jobType": kind}
    facets = {"jobType": _facet("JobTypeJobFacet", emitter, **about)}
    if (view := view_of(row.spec_json)) is not None:
        facets["sql"] = _facet("SQLJobFacet", emitter, query=printable(view.sql, len(view.sql)), dialect="spark")
    return facets


def _inputs(run: JobRunState, known: KnownTables, emitter: EventEmitter) -> Iterable[Document]:
    outcome, uris = run.outcome, source_uris(run.row)
    for uri in uris:
        if (name := dataset_name(uri)) is None:
            continue
        facets, statistics = _schema(known.columns.get(uri, {}), emitter), {}
        if outcome is not None and (version := _version_read(outcome, uri)) >= 0:
            facets["version"] = _facet("DatasetVersionDatasetFacet", emitter, datasetVersion=str(version))
        if outcome is not None and outcome.rows_in and len(uris) == 1:
            rows = _facet("InputStatisticsInputDatasetFacet", emitter, rowCount=outcome.rows_in)
            statistics = {"inputFacets": {"inputStatistics": rows}}
        yield {"namespace": name.namespace, "name": name.name, "facets": facets, **statistics}


def _version_read(outcome: JobOutcome, uri: str) -> int:
    if uri == outcome.row.table_uri:
        return outcome.watermark.version
    mark = outcome.sources.get(uri)
    return mark.watermark.version if mark is not None else -1


def _outputs(run: JobRunState, target: str, known: KnownTables, emitter: EventEmitter) -> Iterable[Document]:
    if (name := dataset_name(target)) is None:
        return
    outcome, facets = run.outcome, _schema(known.columns.get(target, {}), emitter)
    if lineage := _column_lineage(known):
        facets["columnLineage"] = _facet("ColumnLineageDatasetFacet", emitter, **lineage)
    found: Document = {"namespace": name.namespace, "name": name.name, "facets": facets}
    if outcome is not None and outcome.ok and outcome.committed:
        figures = {"rowCount": outcome.rows, "size": outcome.bytes}
        statistics = _facet("OutputStatisticsOutputDatasetFacet", emitter, **figures)
        if outcome.target_version >= 0 and outcome.row.spec.consumer.kind in VERSIONED_KINDS:
            version = str(outcome.target_version)
            facets["version"] = _facet("DatasetVersionDatasetFacet", emitter, datasetVersion=version)
        found["outputFacets"] = {"outputStatistics": statistics}
    yield found


def _schema(columns: Mapping[str, str], emitter: EventEmitter) -> Document:
    fields = [{"name": escaped(name), "type": escaped(kind)} for name, kind in [*columns.items()][:COLUMNS_MAX]]
    return {"schema": _facet("SchemaDatasetFacet", emitter, fields=fields)} if fields else {}


def _column_lineage(known: KnownTables) -> Document:
    fields = {
        escaped(name): {"inputFields": made_of}
        for name, columns in [*known.made_of.items()][:COLUMNS_MAX]
        if (made_of := _input_fields(columns))
    }
    rows = _input_fields(known.rows_follow)
    return {"fields": fields, **({"dataset": rows} if rows else {})} if fields or rows else {}


def _input_fields(columns: Iterable[InputColumn]) -> list[Document]:
    """Return each column once, with all that is made of it."""
    found: dict[tuple[str, str, str], list[Document]] = {}
    for each in columns:
        if (name := dataset_name(each.uri)) is not None:
            how = {"type": each.kind, "subtype": each.subtype}
            ways = found.setdefault((*name, escaped(each.column)), [])
            if how not in ways:
                ways.append(how)
    first = [*found.items()][:INPUT_FIELDS_MAX]
    return [
        {"namespace": namespace, "name": name, "field": column, "transformations": ways}
        for (namespace, name, column), ways in first
    ]


def state_of(outcome: JobOutcome) -> RunState:
    """Return the state of a job's run after this outcome."""
    if outcome.error_code == ErrorCode.CANCELED:
        return RunState.ABORT
    if not outcome.ok:
        return RunState.FAIL
    return RunState.RUNNING if outcome.build is not None else RunState.COMPLETE
