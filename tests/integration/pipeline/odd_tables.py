"""Makes tables as other writers leave them: each function makes one at a path, by Spark, deltalake, or by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

FEED = {"delta.enableChangeDataFeed": "true"}
Maker = Callable[[str, SparkSession], None]
Edit = Callable[[dict[str, Any]], dict[str, Any]]


def _log(uri: str) -> Path:
    return Path(uri, "_delta_log")


def _commits(uri: str) -> list[Path]:
    return sorted(each for each in _log(uri).iterdir() if re.fullmatch(r"\d{20}\.json", each.name))


def rows(first: int = 0, count: int = 5) -> pa.Table:
    ids = list(range(first, first + count))
    return pa.table({"id": pa.array(ids, pa.int64()), "v": [f"v{each}" for each in ids]})


def plain(uri: str, spark: SparkSession) -> None:
    write_deltalake(uri, rows(), configuration=FEED)
    write_deltalake(uri, rows(5), mode="append")


def by_sql(columns: str, values: str, properties: str = "", partition: str = "", *then: str) -> Maker:
    def make(uri: str, spark: SparkSession) -> None:
        by = f"PARTITIONED BY ({partition})" if partition else ""
        with_properties = f"TBLPROPERTIES ({properties})" if properties else ""
        spark.sql(f"CREATE TABLE delta.`{uri}` ({columns}) USING delta {by} {with_properties}")
        for statement in (f"INSERT INTO T {values}", *then):
            spark.sql(statement.replace(" T ", f" delta.`{uri}` "))

    return make


def checkpoints_alone(make: Maker, part_rows: int = 0) -> Maker:
    def make_alone(uri: str, spark: SparkSession) -> None:
        make(uri, spark)
        size = "spark.databricks.delta.checkpoint.partSize"
        if part_rows:
            spark.conf.set(size, str(part_rows))
        log = spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, uri)  # type: ignore[union-attr]
        log.checkpoint()
        spark.conf.unset(size)
        for file in (*_commits(uri), *_log(uri).glob("*.crc")):
            file.unlink()

    return make_alone


def edited(edit: Edit, make: Maker = plain) -> Maker:
    """With all actions of its log as `edit` has them; an action that it leaves empty is left out."""

    def make_edited(uri: str, spark: SparkSession) -> None:
        make(uri, spark)
        for file in _commits(uri):
            actions = [edit(json.loads(line)) for line in file.read_text().splitlines()]
            file.write_text("".join(json.dumps(action) + "\n" for action in actions if action))
        for file in _log(uri).glob("*.crc"):
            file.unlink()

    return make_edited


def protocol(**fields: Any) -> Maker:
    return edited(lambda action: {"protocol": fields} if "protocol" in action else action)


def feature(name: str, *, writers_alone: bool = False) -> Maker:
    readers = [] if writers_alone else [name]
    reader = {"minReaderVersion": 1} if writers_alone else {"minReaderVersion": 3, "readerFeatures": readers}
    return protocol(**reader, minWriterVersion=7, writerFeatures=[name, "changeDataFeed"])


def with_column(name: str, changes: dict[str, Any], *features: str, readers: bool = False) -> Maker:
    """With another type or metadata of a column, and table features that go with it."""

    def edit(action: dict[str, Any]) -> dict[str, Any]:
        if "protocol" in action:
            asked = {"minReaderVersion": 3, "readerFeatures": [*features]} if readers else {"minReaderVersion": 1}
            return {"protocol": {**asked, "minWriterVersion": 7, "writerFeatures": ["changeDataFeed", *features]}}
        if "metaData" not in action:
            return action
        schema = json.loads(action["metaData"]["schemaString"])
        fields = [{**each, **changes} if each["name"] == name else each for each in schema["fields"]]
        return {"metaData": {**action["metaData"], "schemaString": json.dumps({**schema, "fields": fields})}}

    return edited(edit)


def collate(uri: str, column: str) -> None:
    """A commit that gives the texts of a column a collation, as an ALTER TABLE of a later Delta does."""
    alter(uri, column, {"metadata": {"__COLLATIONS": {column: "spark.UTF8_LCASE"}}}, writers=("collations",))


def alter(
    uri: str, column: str, changes: dict[str, Any], readers: tuple[str, ...] = (), writers: tuple[str, ...] = ()
) -> None:
    """A commit that changes a column's type or metadata, and adds the table features that this needs."""
    metadata = next(
        action["metaData"]
        for file in reversed(_commits(uri))
        for action in map(json.loads, file.read_text().splitlines())
        if "metaData" in action
    )
    schema = json.loads(metadata["schemaString"])
    for each in schema["fields"]:
        if each["name"] == column:
            each.update(changes)
    reader = {"minReaderVersion": 3, "readerFeatures": [*readers]} if readers else {"minReaderVersion": 1}
    protocol = {**reader, "minWriterVersion": 7, "writerFeatures": ["changeDataFeed", *readers, *writers]}
    actions = {"protocol": protocol}, {"metaData": {**metadata, "schemaString": json.dumps(schema)}}
    newest = int(newest_commit(uri).stem)
    lines = "".join(json.dumps(action) + "\n" for action in actions)
    (_log(uri) / f"{newest + 1:020d}.json").write_text(lines)


collated = with_column("v", {"metadata": {"__COLLATIONS": {"v": "spark.UTF8_LCASE"}}}, "collations")


def without(kind: str) -> Maker:
    return edited(lambda action: {} if kind in action else action)


def statistics(text: Any) -> Maker:
    return edited(lambda each: {"add": {**each["add"], "stats": text}} if "add" in each else each)


def no_columns(uri: str, spark: SparkSession) -> None:
    plain(uri, spark)
    first, *others = _commits(uri)
    for file in others:
        file.unlink()
    schema = json.dumps({"type": "struct", "fields": []})
    actions = [json.loads(line) for line in first.read_text().splitlines()]
    kept = [each for each in actions if "metaData" in each or "protocol" in each]
    for each in kept:
        if "metaData" in each:
            each["metaData"]["schemaString"] = schema
    first.write_text("".join(json.dumps(each) + "\n" for each in kept))


def gap(uri: str, spark: SparkSession) -> None:
    plain(uri, spark)
    write_deltalake(uri, rows(10), mode="append")
    _commits(uri)[1].unlink()


def blank_lines(uri: str, spark: SparkSession) -> None:
    plain(uri, spark)
    for file in _commits(uri):
        separate_by_blank_lines(file)


def separate_by_blank_lines(commit: Path) -> None:
    commit.write_text("\n  \n".join(commit.read_text().splitlines()) + "\n\n")


def newest_commit(uri: str) -> Path:
    return _commits(uri)[-1]


def merged_and_compacted(uri: str, spark: SparkSession) -> None:
    plain(uri, spark)
    DeltaTable(uri).update(new_values={"v": "'new'"}, predicate="id = 1")
    DeltaTable(uri).delete("id = 2")
    DeltaTable(uri).optimize.compact()


MAPPING = "'delta.columnMapping.mode' = '{}', 'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5'"
VALUES = "VALUES (1, 'a'), (2, 'b'), (3, null)"

READ: dict[str, Maker] = {
    "widened partition column": by_sql(
        "id BIGINT, p INT",
        "VALUES (1, 1), (2, 2)",
        "'delta.enableTypeWidening' = 'true'",
        "p",
        "ALTER TABLE T ALTER COLUMN p TYPE BIGINT",
        "INSERT INTO T VALUES (3, 5000000000)",
    ),
    "statistics null": statistics("null"),
    "a strange writer version": protocol(minReaderVersion=1, minWriterVersion=6),
    "blank lines": blank_lines,
    "merged and compacted": merged_and_compacted,
    "names mapped": by_sql(
        "id BIGINT, v STRING", VALUES, MAPPING.format("name"), "", "ALTER TABLE T RENAME COLUMN v TO w"
    ),
    "ids mapped": by_sql("id BIGINT, v STRING", VALUES, MAPPING.format("id")),
    "deletion vectors": by_sql(
        "id BIGINT, v STRING", VALUES, "'delta.enableDeletionVectors' = 'true'", "", "DELETE FROM T WHERE id = 2"
    ),
    "types widened": by_sql(
        "id INT, v FLOAT",
        "VALUES (1, 1.5), (2, null)",
        "'delta.enableTypeWidening' = 'true'",
        "",
        "ALTER TABLE T ALTER COLUMN id TYPE BIGINT",
        "ALTER TABLE T ALTER COLUMN v TYPE DOUBLE",
        "INSERT INTO T VALUES (5000000000, 0.1)",
    ),
    "times without zone": by_sql("id BIGINT, t TIMESTAMP_NTZ", "VALUES (1, TIMESTAMP_NTZ '2020-01-01 00:00:00')"),
    "decimals and nested": by_sql(
        "id BIGINT, d DECIMAL(38, 10), s STRUCT<a: ARRAY<STRUCT<b: INT>>, m: MAP<STRING, DATE>>",
        "SELECT 1, 12345678901234567890.12, "
        "named_struct('a', array(named_struct('b', 1)), 'm', map('x', DATE '0001-01-01'))",
    ),
    "values of partitions": by_sql(
        "id BIGINT, p STRING, d DATE",
        "VALUES (1, 'a b', DATE '2020-02-29'), (2, 'x/y=z%20', null), (3, 'ü', DATE '1500-01-01'), (4, '', null)",
        "",
        "p, d",
    ),
    "no rows": by_sql("id BIGINT, v STRING", "SELECT 1, 'a' WHERE false"),
    "a feature of writers alone": feature("iscpUnknownWriter", writers_alone=True),
    "no commitInfo": without("commitInfo"),
    "statistics of other types": statistics('{"numRecords":"5","minValues":{"id":"x"},"maxValues":[],"nullCount":7}'),
    "no statistics": statistics(None),
    "unknown actions": edited(lambda each: {"future": {"a": 1}} if "commitInfo" in each else each),
}
"""What Spark reads."""

READ_ONLY = ("a strange writer version", "a feature of writers alone")
"""What Spark does not write."""

REFUSED: dict[str, tuple[Maker, str]] = {
    "an unknown feature": (feature("iscpUnknownReader"), "iscpUnknownReader"),
    "a gap in the log": (gap, "log that cannot be read"),
    "collations": (feature("collations-preview"), "collations-preview"),
    "a type of a later Delta": (with_column("v", {"type": "geometry(OGC:CRS84)"}, "geospatial", readers=True), "type"),
    "a type change of a later Delta": (
        with_column(
            "id",
            {
                "type": "decimal(4,1)",
                "metadata": {"delta.typeChanges": [{"fromType": "byte", "toType": "decimal(4,1)"}]},
            },
            "typeWidening",
            readers=True,
        ),
        "type",
    ),
    "managed by a catalog": (feature("catalogManaged"), "managed by a catalog"),
    "commits coordinated": (feature("coordinatedCommits-preview", writers_alone=True), "managed by a catalog"),
    "a newer protocol": (protocol(minReaderVersion=9, minWriterVersion=9), "newer protocol"),
    "no protocol": (without("protocol"), "log that cannot be read"),
    "no metadata": (without("metaData"), "log that cannot be read"),
    "no columns": (no_columns, "has no columns"),
    "checkpoint alone": (checkpoints_alone(plain), "no commit in its log"),
    "checkpoint in parts alone": (checkpoints_alone(plain, part_rows=2), "no commit in its log"),
    "checkpoint of version 2 alone": (
        checkpoints_alone(by_sql("id BIGINT, v STRING", VALUES, "'delta.checkpointPolicy' = 'v2'")),
        "no commit in its log",
    ),
}
"""What no engine here reads, and what is said of it."""

SMALL = 3
"""So many of each, the first ones, are not taken for long."""
