"""Spark's settings for tests: a JVM of theirs lives for minutes, and its queries are small and each one another."""

from __future__ import annotations

import json

JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1",
    # With one compiler Java sets 48 MB aside for code, less than Spark and Delta come to within minutes: from then on
    # methods are thrown out, interpreted, and compiled again.
    "-XX:ReservedCodeCacheSize=240m",
)

CONF = {
    # Within a few minutes neither the optimizing compiler nor fused operators give back what they cost
    # (docs/adr/0001-starting-spark.md); the demo's tests run with both.
    "spark.driver.extraJavaOptions": " ".join(JAVA_OPTIONS),
    "spark.sql.codegen.wholeStage": "false",
    # Else VACUUM lists in 10,000 tasks.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    # Nobody looks at the plans of queries that were run.
    "spark.sql.ui.explainMode": "simple",
    # Expressions would be compiled for plans that are run once.
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

VARIABLES = {"ISCP_SPARK__CONF": json.dumps(CONF), "ISCP_SPARK__DRIVER_MEMORY_MB": "1024"}
"""The same in the environment of a process that starts its Spark itself: a node, `iscp run`, or `iscp.local()`."""

QUICKER_CONF = {
    **CONF,
    # Room for what a query leaves behind: fewer collections, each of which costs by what lives on.
    "spark.driver.extraJavaOptions": " ".join((*JAVA_OPTIONS, "-Xms1536m", "-Xmn768m")),
    # Plans that are made again between their stages, each of them a job of its own: a seventh of all that is computed.
    # Nodes have it, and so have those of the end-to-end tests.
    "spark.sql.adaptive.enabled": "false",
    # To so many it would cut them down.
    "spark.sql.shuffle.partitions": "1",
    # Else every commit by Spark reads all that the snapshot holds, to write it down once more beside the commit.
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
}
"""For tests of how rows get from tables to tables, whatever plan Spark makes of it."""
