"""Writes rows under a target as a table of their own, and says why its files cannot be the target's.

A file's columns are found by what its table's metadata says. So what is published has to be of a table whose metadata
says nothing but the columns, whatever new tables are to have by Spark's settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from iscp.adapters.delta.log.commits import commit_file, log_of
from iscp.adapters.delta.log.nested_tables import STAGED
from iscp.adapters.delta.sink.arrow_write import is_described
from iscp.adapters.delta.sink.target_columns import plain
from iscp.adapters.delta.spark.spark_errors import spark_faults
from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.bucket_keys import table_options
from iscp.adapters.delta.storage.delta_errors import delta_faults, direct_work, storage_faults
from iscp.adapters.system.late_imports import T
from iscp.core.values.errors import EngineError
from iscp.ports.rows import Rows
from iscp.ports.sink import CommitTag, Manifest
from iscp.ports.system import Failpoints

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
