"""Rows that are staged, which no reader sees before a commit names their files: under a target as a table of its own,
range by range for a build, and beside the job log for commits that are retained.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from iscp.delta.log.commits import commit_file, log_of
from iscp.delta.log.readable_files import STAGED
from iscp.delta.rows.net_changes import CHANGE_TYPE, STAMPS, has_own_keys
from iscp.delta.sink.sink_position import plain
from iscp.delta.sink.target_write import is_described
from iscp.delta.source.change_set import DeltaChangeSet, RowsAfter
from iscp.delta.source.change_source import DeltaChangeSource
from iscp.model.build.build_task import NO_TERMS, BuildId, BuildTerms, parse_terms
from iscp.model.job.iteration import Bounds, UsagePart
from iscp.model.sql.sql_names import quoted
from iscp.model.values.errors import EngineError, PlanOutdated
from iscp.model.values.progress import TableSize
from iscp.model.values.watermark import Watermark
from iscp.ports.consumer import TablePlace
from iscp.ports.engine import charged_as
from iscp.ports.sink import BuildEnd, CommitTag, Manifest, StagedState
from iscp.ports.source import ChangesUnavailableError, Rows, SourceRange
from iscp.ports.system import Failpoints, Guard
from iscp.spark.spark_errors import reading_changes, spark_faults
from iscp.storage import files
from iscp.storage.bounded_parquet import Allowance, TooLargeError, open_parquet
from iscp.storage.delta_errors import delta_faults, direct_work, storage_faults
from iscp.storage.locations import BUILD_BEGUN, BUILDS, S3, place
from iscp.storage.s3_settings import table_options
from iscp.system.late_imports import F, T

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)


# --- a table under the target -----------------------------------------------------------------------------------------
# Rows are written under a target as a table of their own, whose files may not be fit to be the target's. A file's
# columns are found by what its table's metadata says. So what is published has to be of a table whose metadata says
# nothing but the columns, whatever new tables are to have by Spark's settings.

_PLAIN = {
    "delta.columnMapping.mode": "none",
    "delta.enableDeletionVectors": "false",
    "delta.enableInCommitTimestamps": "false",
    "delta.enableRowTracking": "false",
}
"""Properties of every staged table, as a setting of the session that is there all the same would say otherwise."""

_ADD = frozenset({"path", "size", "partitionValues", "modificationTime", "dataChange", "stats", "tags"})
_OF_EVERY_TABLE = frozenset({"appendOnly", "invariants"})
_LEGACY = (
    (3, ("checkConstraints",)),
    (4, ("changeDataFeed", "generatedColumns")),
    (5, ("columnMapping",)),
    (6, ("identityColumns",)),
)
_TABLE_FEATURES = 7


def stage(rows: Rows, uri: str, tag: CommitTag, failpoints: Failpoints) -> Manifest:
    staged = stage_in(rows, uri, f"{STAGED}-{tag.seq}-{tag.attempt}")
    failpoints.reach("snapshot.staged")
    return staged


def stage_in(rows: Rows, uri: str, folder: str) -> Manifest:
    """Write the rows as a Delta table, so that its writer makes the files' statistics.

    The log is removed at once, so that what a dead writer leaves behind are plain files, which VACUUM of the target
    takes.
    """
    table = rows.table
    if table is not None and is_described(table):
        with direct_work(), delta_faults(f"stage rows for {uri}"):
            write_deltalake(f"{uri}/{folder}", table, mode="error", storage_options=table_options(uri))
    else:
        with spark_faults(f"stage rows for {uri}"):
            rows.frame.write.format("delta").mode("errorifexists").options(**_PLAIN).save(f"{uri}/{folder}")
    return _take_manifest(uri, folder)


def staged_rows(
    session: SparkSession, uri: str, manifests: Sequence[Manifest], names: Sequence[str] | None = None
) -> DataFrame:
    """Return the rows of staged files of the same columns, at least one, before they are published.

    `names` chooses some columns; None: all.
    """
    fields = json.loads(manifests[0].schema_json)["fields"]
    chosen = [field for field in fields if names is None or field["name"] in names]
    schema = T.StructType([T.StructField.fromJson({**field, "metadata": {}}) for field in chosen])
    paths = [f"{uri}/{path}" for path in staged_paths(manifests)]
    return session.read.schema(schema).option("__globPaths__", "false").parquet(*paths)


def staged_adds(manifest: Manifest) -> Sequence[Mapping[str, Any]]:
    """Return the `add` actions of staged files, with paths relative to the target."""
    adds: Sequence[Mapping[str, Any]] = manifest.files.get("adds", ())
    return adds


def staged_paths(manifests: Sequence[Manifest]) -> list[str]:
    """Return where the staged files are, relative to the target."""
    return [unquote(str(add["path"])) for manifest in manifests for add in staged_adds(manifest)]


def _take_manifest(uri: str, folder: str) -> Manifest:
    staged = f"{uri}/{folder}"
    with storage_faults(f"read the manifest of {staged}"):
        lines = files.read(commit_file(staged, 0))[0].splitlines()
    actions = [json.loads(line) for line in lines]
    with storage_faults(f"clear the log of {staged}"):
        files.remove_tree(log_of(staged))
    adds = [action["add"] for action in actions if "add" in action]
    for add in adds:
        add["path"] = f"{folder}/{add['path']}"
    (protocol,) = (action["protocol"] for action in actions if "protocol" in action)
    (metadata,) = (action["metaData"] for action in actions if "metaData" in action)
    rows = sum(json.loads(add.get("stats") or "{}").get("numRecords", 0) for add in adds)
    size = sum(add["size"] for add in adds)
    return Manifest(rows, size, metadata["schemaString"], {"adds": adds, "protocol": protocol, "metadata": metadata})


def add_actions(manifest: Manifest, target: DeltaTable) -> list[AddAction]:
    """Return the actions that add the staged files to `target`.

    Raises EngineError if they would be read as something else there.
    """
    if fault := _fault(manifest, target):
        raise EngineError(
            f"the staged files cannot be published: {fault}",
            remedy="Remove the setting of Spark that makes new tables so (spark.databricks.delta.…)",
        )
    return [
        AddAction(
            path=str(add["path"]),
            size=int(str(add["size"])),
            partition_values={},
            modification_time=int(str(add["modificationTime"])),
            data_change=True,
            stats=str(add["stats"]),
        )
        for add in staged_adds(manifest)
    ]


def _fault(manifest: Manifest, target: DeltaTable) -> str:
    """Return why the target's readers would not see the rows that were staged, or an empty text if they would."""
    metadata, staged = manifest.files["metadata"], manifest.files["protocol"]
    configuration = metadata["configuration"]
    if metadata.get("partitionColumns"):
        return f"they are partitioned by {', '.join(metadata['partitionColumns'])}"
    odd = {name: value for name, value in configuration.items() if _PLAIN.get(name) != value}
    if odd:
        return f"their table has {', '.join(f'{name} = {value}' for name, value in sorted(odd.items()))}"
    protocol = target.protocol()
    there = _features(
        protocol.min_writer_version, [*(protocol.writer_features or ()), *(protocol.reader_features or ())]
    )
    named = [*staged.get("writerFeatures", ()), *staged.get("readerFeatures", ())]
    if lacking := _features(staged["minWriterVersion"], named) - there:
        return f"their table has the features {', '.join(sorted(lacking))}, which the target lacks"
    wanted, target_columns = _columns(json.loads(manifest.schema_json)), _columns(json.loads(target.schema().to_json()))
    if wanted != target_columns:
        unlike = sorted(
            name for name in wanted.keys() | target_columns.keys() if wanted.get(name) != target_columns.get(name)
        )
        return f"the columns {', '.join(unlike)} are not the target's"
    if not all(add.get("stats") for add in staged_adds(manifest)):
        return "they come without statistics"
    strange = {name for add in staged_adds(manifest) for name, value in add.items() if value is not None} - _ADD
    return f"they come with {', '.join(sorted(strange))}" if strange else ""


def _features(writer_version: int, named: list[str]) -> frozenset[str]:
    """Return what a protocol requires of writers, beside what it requires of those of any table."""
    if writer_version >= _TABLE_FEATURES:
        return frozenset(named) - _OF_EVERY_TABLE
    return frozenset(name for version, names in _LEGACY if version <= writer_version for name in names)


def _columns(schema: Mapping[str, Any]) -> dict[str, str]:
    """Return the names and types of columns.

    Nullability is the target's affair, comments nobody's; a mapped column identifies itself.
    """
    return {
        field["name"] + ("'s mapping" if _mapped(field) else ""): json.dumps(plain(field["type"]), sort_keys=True)
        for field in schema["fields"]
    }


def _mapped(kind: Any) -> bool:
    """Return whether a type, or a field in it, is found by another name or an id."""
    if isinstance(kind, dict):
        return any(name.startswith("delta.columnMapping.") or _mapped(value) for name, value in kind.items())
    return isinstance(kind, list) and any(map(_mapped, kind))


# --- ranges of a build ------------------------------------------------------------------------------------------------
# The ranges of a build are staged under their target, whatever the target is. What says that rows count, a manifest for
# each range, lies in a folder that neither readers nor VACUUM open. How the rows themselves are staged is the target's
# matter (RowStager). Those of a Delta table lie in folders like those of other staged tables, one for each attempt:
# once published they are the target's files, and VACUUM takes the files of attempts that did not count. So a build may
# take as long as VACUUM retains files that are in no commit, a week if nobody has changed that; a build whose files are
# gone is noticed before it is published.

MANIFESTS_AT_ONCE = 16
"""Manifests that are read side by side, as a store may take long to answer; others wait."""

FILES_LISTED_MAX = 1_000_000
"""Files of a build that are seen where its target is listed; with more of them it is taken for one that lost some."""

_FORMAT = 1
_NO_ROWS = Manifest(0, 0)
_SUMS = ("format", "rows", "bytes", "schema")


class RowStager(Protocol):
    """Writes the rows of ranges under a target, where no reader sees them."""

    def stage(self, rows: Rows, folder: str) -> Manifest:
        """Write rows, into this folder below the target if they are files of their own."""

    def are_there(self, manifests: Sequence[Manifest], folder: str) -> bool:
        """Return whether all files that manifests name are there still."""


class DeltaRowStager:
    """Stages rows as the files of a Delta table (port RowStager)."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def stage(self, rows: Rows, folder: str) -> Manifest:
        return stage_in(rows, self._uri, folder)

    def are_there(self, manifests: Sequence[Manifest], folder: str) -> bool:
        there = {*files.names_below(f"{place(self._uri)}/{folder}", FILES_LISTED_MAX)}
        named = (str(add["path"]) for manifest in manifests for add in staged_adds(manifest))
        return all(path.removeprefix(f"{folder}/") in there for path in named)


class FileStagedRanges:
    """Stages the ranges of one build and one target (port StagedRanges).

    `stager` writes rows (None: as those of a Delta table). `passing`: the rows of all of its builds are deleted with
    them, whatever their terms say.
    """

    def __init__(
        self,
        uri: str,
        build: BuildId,
        failpoints: Failpoints,
        stager: RowStager | None = None,
        *,
        passing: bool = False,
    ) -> None:
        self._uri = uri
        self._build = build
        self._failpoints = failpoints
        self._stager = stager or DeltaRowStager(uri)
        self._passing = passing
        self._name = f"{build.version}-{build.digest}"
        self._all = f"{place(uri)}/{BUILDS}"
        self._marks = f"{self._all}/{build.job_id}/{self._name}"
        self._rows = _rows_folder(build.job_id, build.digest)

    def state(self) -> StagedState:
        with storage_faults(f"list {self._marks}"):
            names = {*files.names(self._marks)}
        end = next((each for each in BuildEnd if f"{each.value}.json" in names), None)
        ranges = (name.removesuffix(".json") for name in names)
        return StagedState(BUILD_BEGUN in names, end, frozenset(int(each) for each in ranges if each.isdecimal()))

    def begin(self, terms: BuildTerms = NO_TERMS) -> None:
        self._remove(but=self._name)
        self._mark(BUILD_BEGUN, {"version": self._build.version, **terms.document()}, first=True)

    def terms(self) -> BuildTerms | None:
        return self._read_terms(self._marks)

    def end(self, why: BuildEnd) -> None:
        with suppress(PlanOutdated):  # it is removed already
            self._mark(f"{why.value}.json", {})

    def stage(self, range_id: int, rows: Rows | None) -> None:
        folder = f"{self._rows}/{range_id}-{uuid.uuid4().hex[:12]}"
        staged = _NO_ROWS if rows is None else self._stager.stage(rows, folder)
        self._failpoints.reach("range.staged")
        document = {
            "rows": staged.rows,
            "bytes": staged.bytes,
            "schema": staged.schema_json,
            **staged.files,
        }
        self._mark(f"{range_id}.json", document)
        self._failpoints.reach("range.counted")

    def manifests(self, ranges: Sequence[int]) -> list[Manifest] | None:
        with ThreadPoolExecutor(MANIFESTS_AT_ONCE, "iscp-manifests") as pool:
            found = list(pool.map(self._read, ranges))
        whole = [manifest for manifest in found if manifest is not None]
        if len(whole) < len(found):
            return None
        some = [manifest for manifest in whole if manifest.files]
        with storage_faults(f"list {self._rows}"):
            return some if self._stager.are_there(some, self._rows) else None

    def remove(self) -> None:
        self._remove(but="")

    def _read(self, range_id: int) -> Manifest | None:
        path = f"{self._marks}/{range_id}.json"
        try:
            with storage_faults(f"read {path}"):
                found = json.loads(files.read(path)[0])
            files_found = {name: value for name, value in found.items() if name not in _SUMS}
            return Manifest(found["rows"], found["bytes"], found["schema"], files_found if found["rows"] else {})
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _read_terms(self, marks: str) -> BuildTerms | None:
        path = f"{marks}/{BUILD_BEGUN}"
        try:
            with storage_faults(f"read {path}"):
                return parse_terms(json.loads(files.read(path)[0]))
        except (FileNotFoundError, ValueError):
            return None

    def _mark(self, name: str, document: dict[str, object], *, first: bool = False) -> None:
        """Put a file if none of its name is there. Raises PlanOutdated where the build was removed."""
        path = f"{self._marks}/{name}"
        gone = f"the build of {self._uri} at version {self._build.version} was removed"
        try:
            with storage_faults(f"write {path}"):
                if not first and not files.exists(f"{self._marks}/{BUILD_BEGUN}"):
                    raise PlanOutdated(gone)
                if first and not path.startswith(S3):
                    os.makedirs(self._marks, exist_ok=True)
                files.create(path, json.dumps({"format": _FORMAT, **document}).encode())
        except FileNotFoundError as error:
            raise PlanOutdated(gone) from error

    def _remove(self, but: str) -> None:
        """Remove what this job, and earlier ones of the target, have left, except the build `but`."""
        with storage_faults(f"clear {self._all}"):
            for job_id, name in sorted({*self._builds()}):
                if job_id < self._build.job_id or (job_id == self._build.job_id and name != but):
                    terms = self._read_terms(f"{self._all}/{job_id}/{name}")
                    with suppress(FileNotFoundError):
                        files.remove_tree(f"{self._all}/{job_id}/{name}")
                    if self._passing or (terms is not None and terms.passing):
                        with suppress(FileNotFoundError):
                            files.remove_tree(f"{place(self._uri)}/{_rows_folder(job_id, name.partition('-')[2])}")

    def _builds(self) -> Iterator[tuple[str, str]]:
        for path in files.names_below(self._all, FILES_LISTED_MAX):
            job_id, _, rest = path.partition("/")
            if rest:
                yield job_id, rest.partition("/")[0]


def _rows_folder(job_id: str, digest: str) -> str:
    """Return the folder of a build's rows, below the target."""
    return f"{STAGED}-{job_id}-{digest}"


# --- keys of staged rows ----------------------------------------------------------------------------------------------
# Whether rows of staged files share a key is decided by their key columns alone.

KEYS_CACHED_BYTES_MAX = 256 * 1024**2
"""Memory for the keys of staged rows; more of them are compared by Spark, which takes longer to begin."""

FILES_AT_ONCE = 16
"""Files whose keys are read side by side, as a store may take long to answer; others wait."""


def have_own_keys(session: SparkSession, uri: str, manifests: Sequence[Manifest], key: Sequence[str]) -> bool:
    """Return whether each row has a key that no other has; null equals null.

    The files are of tables without mapped names.
    """
    if not key or not manifests:
        return True
    fields = {field["name"].lower(): field for field in json.loads(manifests[0].schema_json)["fields"]}
    names = [str(fields[name.lower()]["name"]) for name in key]
    keys = _read_keys(uri, staged_paths(manifests), names)
    if keys is not None and has_own_keys(keys, names):
        return True
    # Rows that share one, or values that compare in Spark in a way of their own.
    with spark_faults(f"compare the keys of what is staged for {uri}"):
        rows = staged_rows(session, uri, manifests, names)
        counted = rows.groupBy(*[F.col(quoted(name)) for name in names]).agg(F.count("*").alias("_iscp_rows"))
        return counted.where("_iscp_rows > 1").isEmpty()


def _read_keys(uri: str, paths: Sequence[str], names: Sequence[str]) -> pa.Table | None:
    """Return the key columns of the files, or None if they take more memory than they are allowed."""
    allowance, parts = Allowance(KEYS_CACHED_BYTES_MAX), list[pa.Table]()

    def read(path: str) -> pa.Table:
        with (
            open_parquet(uri, path, None) as file,
            allowance.reserve(file.decoded_bytes_max(file.groups, names, allowance.left)),
        ):
            rows = file.read_groups(file.groups, names, None)
            allowance.take(rows.nbytes)
            return rows

    with (
        direct_work(),
        delta_faults(f"read the keys of what is staged for {uri}"),
        ThreadPoolExecutor(FILES_AT_ONCE, "iscp-keys") as pool,
    ):
        for start in range(0, len(paths), FILES_AT_ONCE):
            try:
                parts += pool.map(read, paths[start : start + FILES_AT_ONCE])
            except TooLargeError:
                return None
        return pa.concat_tables(parts)


# --- retained commits -------------------------------------------------------------------------------------------------

FOLDER = "iscp_kept"
_DIGEST_BYTES = 16
_WHOLE = Bounds(sys.maxsize, sys.maxsize, 1)
"""A commit is retained as one, however large it is."""
_MARKS = (CHANGE_TYPE, *STAMPS)
_TUPLES = ("collated", "retyped", "lost")
_OF_READING = frozenset({"more", "step", "steps", "origin"})


@dataclass(frozen=True, slots=True)
class _RetainedCommit:
    """One commit. `readable`: its changes can be handed to consumers; otherwise they have to compare anyway.

    `columns` are the table's as of it, whose rows have them as `c0`, `c1` and so on; it has none if it has no rows.
    """

    span: SourceRange
    readable: bool
    columns: tuple[str, ...]
    rows: Manifest

    @property
    def size(self) -> TableSize:
        return TableSize(self.rows.rows, self.rows.bytes)

    def document(self) -> dict[str, Any]:
        rows = {name: getattr(self.rows, name) for name in ("schema_json", "rows", "bytes")}
        span = {name: value for name, value in asdict(self.span).items() if name not in _OF_READING}
        if not self.span.lost:
            del span["lost"]  # the release before does not know it, and what it does not know it takes for damaged
        said = {"format": _FORMAT, "span": span, "readable": self.readable, "columns": self.columns, **rows}
        said["add_actions"] = staged_adds(self.rows)
        return {**said, "digest": _digest(said)}

    @classmethod
    def parse(cls, document: dict[str, Any]) -> _RetainedCommit:
        """Parse a manifest. Raises ValueError, KeyError, TypeError."""
        if document.pop("digest") != _digest(document) or document["format"] != _FORMAT:
            raise ValueError("it is damaged, or of another version")
        span = {**document["span"], "to": Watermark(**document["span"]["to"])}
        span.update({name: tuple(span.get(name, ())) for name in _TUPLES})
        span["updates"] = {int(version): rows for version, rows in span["updates"].items()}
        adds = {"adds": tuple(document["add_actions"])}
        rows = Manifest(document["rows"], document["bytes"], document["schema_json"], adds)
        return cls(SourceRange(**span), document["readable"], tuple(document["columns"]), rows)


def _digest(said: dict[str, Any]) -> str:
    content = json.dumps(said, sort_keys=True).encode()
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


class DeltaRetainedCommits:
    """Retains the change rows of commits below the directory, or the prefix of an object store, of the job log (port
    RetainedCommits).

    `<log>/iscp_kept/<table>/<version>/` has the rows of one commit, as files like those of a staged table, in a folder
    for each attempt, and `manifest.json`, which is put last and only if there is none: without the manifest nothing
    counts, and with it the files that it names, each of its size. The manifest bears a digest of itself, and what was
    known of the commit when it was read, so that neither the table's log nor its files are needed any more.
    """

    def __init__(self, uri: str, source: DeltaChangeSource, failpoints: Failpoints, cached_bytes_max: int) -> None:
        """Changes of up to `cached_bytes_max` bytes are read into memory; Spark reads larger ones."""
        self._root = f"{uri.rstrip('/')}/{FOLDER}"
        self._source = source
        self._failpoints = failpoints
        self._cached_bytes_max = cached_bytes_max

    def retain(self, session: SparkSession, table: TablePlace, version: int, guard: Guard) -> TableSize:
        known = self._find(table, version)
        try:
            span = self._resolve_one(table.uri, version)
        except ChangesUnavailableError:
            if known is None:
                raise
            return known.size
        if known is not None and known.span == span:
            return known.size
        folder = self._folder(table, version)
        with storage_faults(f"clear {folder}"), suppress(FileNotFoundError):
            files.remove_tree(place(folder))  # of another commit of this version, or damaged
        commit = self._stage(session, table.uri, span, f"{_name(table)}/{version}")
        self._failpoints.reach("keep.staged")
        guard.check()
        path = f"{place(folder)}/manifest.json"
        with storage_faults(f"write {path}"):
            if not path.startswith(S3):
                os.makedirs(place(folder), exist_ok=True)
            files.create(path, json.dumps(commit.document()).encode())
        self._failpoints.reach("keep.counted")
        return commit.size

    def remove(self, table: TablePlace) -> None:
        path = f"{place(self._root)}/{_name(table)}"
        with storage_faults(f"clear {path}"), suppress(FileNotFoundError):
            files.remove_tree(path)

    @charged_as(UsagePart.READ)
    def resolve(
        self, table: TablePlace, from_version: int, to_version: int | None, bounds: Bounds
    ) -> SourceRange | None:
        taken: list[_RetainedCommit] = []
        last = from_version + bounds.versions_max
        for version in range(from_version + 1, 1 + (last if to_version is None else min(last, to_version))):
            commit = self._find(table, version)
            if commit is None or not commit.readable or (taken and not _goes_on(taken, commit, bounds)):
                break
            taken.append(commit)
        return _joined([commit.span for commit in taken]) if taken else None

    @charged_as(UsagePart.READ)
    def columns(self, table: TablePlace, span: SourceRange) -> tuple[str, ...]:
        return next((commit.columns for commit in reversed(self._all(table, span)) if commit.columns), ())

    @charged_as(UsagePart.READ)
    def read(
        self, session: SparkSession, table: TablePlace, span: SourceRange, columns: Sequence[str], readers: int
    ) -> DeltaChangeSet:
        found = [commit for commit in self._all(table, span) if commit.columns]
        with reading_changes(f"read what is kept of {table.uri}"):
            rows = self._open(session, [commit.rows for commit in found])
            names = {name: f"c{number}" for number, name in enumerate(found[-1].columns)}
            wanted = [F.col(names[name]).alias(name) for name in columns]
            frame = rows.select(*wanted, *[F.col(f"m{number}").alias(name) for number, name in enumerate(_MARKS)])
            after = RowsAfter(partial(self._source.snapshot, session, table.uri, span.last_version))
            small = self._cached_bytes_max >= sum(commit.rows.bytes for commit in found)
            return DeltaChangeSet.read_by_spark(frame, span, after, small, readers)

    def _open(self, session: SparkSession, manifests: Sequence[Manifest]) -> DataFrame:
        if any(map(staged_adds, manifests)):
            return staged_rows(session, self._root, manifests)
        return session.createDataFrame([], T.StructType.fromJson(json.loads(manifests[0].schema_json)))

    def _resolve_one(self, uri: str, version: int) -> SourceRange:
        span = self._source.resolve(uri, Watermark(version - 1, 0.0), version, _WHOLE)
        if span.to.version != version:
            raise ChangesUnavailableError(f"version {version} is not in the log")
        return span

    def _stage(self, session: SparkSession, uri: str, span: SourceRange, folder: str) -> _RetainedCommit:
        nothing = Manifest(0, 0)
        if not span.changes_data:
            return _RetainedCommit(span, True, (), nothing)
        if not (span.cdf_on or span.inserts_only):
            return _RetainedCommit(span, False, (), nothing)
        columns = self._source.columns(uri, span.to.version)
        read = self._source.read_cdf if span.cdf_on else self._source.read_appends
        changes = read(session, uri, span, columns, 1)
        try:
            return _RetainedCommit(
                span, True, columns, self._write(changes, columns, f"{folder}/{uuid.uuid4().hex[:12]}")
            )
        finally:
            changes.release()

    def _write(self, changes: DeltaChangeSet, columns: Sequence[str], folder: str) -> Manifest:
        """Write the rows under names that every format takes."""
        names = [(f"c{number}", name) for number, name in enumerate(columns)]
        names += [(f"m{number}", name) for number, name in enumerate(_MARKS)]
        table = changes.table
        renamed = Rows(
            lambda: changes.every().select(*[F.col(quoted(name)).alias(short) for short, name in names]),
            lambda: None if table is None else pa.table({short: table[name] for short, name in names}),
        )
        with reading_changes("keep changes"):
            return stage_in(renamed, self._root, folder)

    def _all(self, table: TablePlace, span: SourceRange) -> list[_RetainedCommit]:
        found = [self._find(table, version) for version in range(span.from_version + 1, span.to.version + 1)]
        whole = [commit for commit in found if commit is not None]
        if len(whole) < len(found) or not any(commit.columns for commit in whole):
            raise ChangesUnavailableError("what was kept is gone")
        return whole

    def _find(self, table: TablePlace, version: int) -> _RetainedCommit | None:
        """Return what is retained of a commit, or None if not all of it is there."""
        path = f"{place(self._folder(table, version))}/manifest.json"
        try:
            with storage_faults(f"read {path}"):
                content, _ = files.read(path)
            commit = _RetainedCommit.parse(json.loads(content))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            log.warning("kept.unreadable", extra={"path": path, "error": str(error)})
            return None
        with storage_faults(f"list the files of {path}"):
            for add in staged_adds(commit.rows):
                if files.stamp(f"{place(self._root)}/{add['path']}")[-1:] != (add["size"],):
                    log.warning("kept.incomplete", extra={"path": path, "file": add["path"]})
                    return None
        return commit

    def _folder(self, table: TablePlace, version: int) -> str:
        return f"{self._root}/{_name(table)}/{version}"


def _name(table: TablePlace) -> str:
    """Return the name of the table's folder, which has a digest of its URI, as copies of a table share its id."""
    return f"{quote(table.table_id, safe='')}-{hashlib.blake2b(table.uri.encode(), digest_size=8).hexdigest()}"


def _goes_on(taken: Sequence[_RetainedCommit], commit: _RetainedCommit, bounds: Bounds) -> bool:
    """Return whether one iteration takes this commit together with those that it takes already.

    A commit that changes the columns needs an iteration of its own, and all have to stay within `bounds`.
    """
    spans = [each.span for each in (*taken, commit)]
    size = sum(span.bytes for span in spans)
    rows = sum(each.rows.rows for each in (*taken, commit))
    same = not any(span.reshapes for span in spans) and spans[-1].table_id == spans[0].table_id
    return same and spans[-1].cdf_on == spans[0].cdf_on and size <= bounds.bytes_max and rows <= bounds.rows_max


def _joined(spans: Sequence[SourceRange]) -> SourceRange:
    return replace(
        spans[0],
        to=spans[-1].to,
        more=True,
        bytes=sum(span.bytes for span in spans),
        changes_data=any(span.changes_data for span in spans),
        inserts_only=all(span.inserts_only or not span.changes_data for span in spans),
        updates={version: rows for span in spans for version, rows in span.updates.items()},
    )
