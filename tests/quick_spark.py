"""Spark's settings for tests: a JVM of theirs lives for minutes, and its queries are small and each one another."""

from __future__ import annotations

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
}
