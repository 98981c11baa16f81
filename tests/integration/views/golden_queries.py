"""Carries out the files in `tests/fixtures/views` by `iscp.views` alone, in a process with a plain SparkSession.

It prints what was found of each as JSON: the plan and the changes, as the files have them, and modules that are not to
be there.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from iscp.views import WEIGHT, TableFrames, all_rows, analyze, explain, follow, jar
from tests import quick_spark

NODES = ("iscp.app", "iscp.consumers", "iscp.cluster.owner", "iscp.engine", "grpc")


def sections(text: str) -> dict[str, str]:
    """What stands below each heading, as `-- query`."""
    parts = re.split(r"^-- ((?:before|after) \w+|query|plan|changes)$", text, flags=re.MULTILINE)
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def shown(rows: list[Row]) -> str:
    lines = ((f"{each[WEIGHT]:+d}", *(each[name] for name in each.__fields__ if name != WEIGHT)) for each in rows)
    return "\n".join(sorted(" ".join("NULL" if each is None else str(each) for each in line) for line in lines))


def difference(before: DataFrame, after: DataFrame) -> DataFrame:
    came, went = after.exceptAll(before), before.exceptAll(after)
    return came.withColumn(WEIGHT, F.lit(1)).unionAll(went.withColumn(WEIGHT, F.lit(-1)))


def carried_out(session: SparkSession, text: str) -> dict[str, str]:
    parts = sections(text)
    names = [name.removeprefix("before ") for name in parts if name.startswith("before ")]
    before, after = ({each: session.sql(parts[f"{at} {each}"]) for each in names} for at in ("before", "after"))
    query = analyze(session, parts["query"], {name: each.schema for name, each in before.items()})
    plan = "\n".join(f"{'  ' * each.depth}{each.upkeep} {each.operator}".rstrip() for each in explain(query))
    tables = {name: TableFrames(before[name], after[name], difference(before[name], after[name])) for name in names}
    with follow(query, tables) as rows:
        found = [] if rows is None else rows.collect()
    wanted = (
        difference(all_rows(query, before), all_rows(query, after)).groupBy(*query.columns.names).agg(F.sum(WEIGHT))
    )
    return {
        "plan": plan,
        "changes": shown(found),
        "recomputed": shown(wanted.toDF(*query.columns.names, WEIGHT).collect()),
    }


def main(paths: list[str]) -> None:
    builder = SparkSession.builder.master("local[1]").config("spark.jars", str(jar())).config("spark.ui.enabled", False)
    for name, value in quick_spark.CONF.items():
        builder = builder.config(name, value)
    session = builder.config("spark.sql.shuffle.partitions", 1).getOrCreate()
    found = {Path(each).stem: carried_out(session, Path(each).read_text(encoding="utf-8")) for each in paths}
    of_nodes = sorted(each for each in sys.modules if each.startswith(NODES))
    sys.stdout.write(json.dumps({"found": found, "of_nodes": of_nodes}) + "\n")
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
