"""The needs of iscp of a SparkSession that a user has made, so that it can work beside its user.

Decides by what such a session says of itself; knows no Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from iscp.model.values.errors import InvalidRequest

KNOWN_SPARK = "4.1"
KNOWN_DELTA = "4.3"

EXTENSIONS = "spark.sql.extensions"
CATALOG = "spark.sql.catalog.spark_catalog"
JARS = "spark.jars"
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
DEFAULT_FILES = "spark.hadoop.fs.defaultFS"
FILE_LOG_STORE = "io.iscp.delta.HardLinkLogStore"
S3_LOG_STORE = "io.iscp.delta.ConditionalPutLogStore"

FILE_NEEDS = {"spark.delta.logStore.file.impl": FILE_LOG_STORE}
"""The settings by which commits in directories exclude each other."""

S3_NEEDS = {
    "spark.delta.logStore.s3.impl": S3_LOG_STORE,
    "spark.delta.logStore.s3a.impl": S3_LOG_STORE,
    "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.s3.impl": "org.apache.hadoop.fs.s3a.S3A",
}
"""The settings by which commits in buckets do so, and by which Spark opens `s3://` as it does `s3a://`."""

SESSION_NEEDS = {EXTENSIONS: DELTA_EXTENSION, CATALOG: DELTA_CATALOG, **FILE_NEEDS, **S3_NEEDS}

_NO_CATALOG = ("", "builtin")
"""The values of the setting by which Spark has no catalog but its own."""

_OWN_SPARK = "Leave the session out: iscp then starts a Spark of its own"


class JarState(Enum):
    """The state of iscp's jar: which of its classes the JVM finds."""

    ABSENT = "absent"
    OTHER = "other"
    OURS = "ours"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    """The facts that a session says of itself.

    `delta` is empty where the JVM has no Delta. `conf` has the settings that are set, by the names of SESSION_NEEDS,
    JARS and DEFAULT_FILES. `s3`: the JVM has Hadoop's S3A. `pinned`: each thread of Python has a thread of the JVM of
    its own.
    """

    pyspark: str
    spark: str
    delta: str
    jar: JarState
    s3: bool
    pinned: bool
    conf: Mapping[str, str]


def require_session(facts: SessionFacts, jar: str) -> None:
    """Raise InvalidRequest (`spark`) with all that the session lacks, and with the lines that add it.

    `jar` is the path of iscp's own.
    """
    _require_versions(facts)
    if not facts.pinned:
        raise InvalidRequest(
            "the session runs with PYSPARK_PIN_THREAD=false: its threads share their active session and their job "
            "group, and iscp would change them",
            about="spark",
            remedy=f"Unset that variable before Spark starts. {_OWN_SPARK}",
        )
    faults = list(_faults(facts, jar))
    if faults:
        lacks = "; ".join(fault for fault, _ in faults)
        lines = "".join(f'\n  .config("{name}", "{value}")' for _, (name, value) in faults)
        raise InvalidRequest(
            f"the session lacks what iscp needs: {lacks}",
            about="spark",
            remedy="Stop the session, and make one with these lines before .getOrCreate(); "
            f".config(map=iscp.spark_conf()) has those of iscp in one:{lines}",
        )


def _require_versions(facts: SessionFacts) -> None:
    if _minor(facts.pyspark) != _minor(facts.spark):
        raise InvalidRequest(
            f"is pyspark's {facts.pyspark} for Python, and its JVM is Spark {facts.spark}",
            field="spark",
            remedy=f"Run: pip install pyspark=={facts.spark}, or unset SPARK_HOME",
        )
    if _minor(facts.spark) != KNOWN_SPARK:
        raise InvalidRequest(
            f"is Spark {facts.spark}, and iscp knows {KNOWN_SPARK} alone", field="spark", remedy=_OWN_SPARK
        )
    if not facts.delta:
        raise InvalidRequest(
            "has no Delta on its class path",
            field="spark",
            remedy="Stop the session, and make one with this line before .getOrCreate(), or by delta-spark's "
            f'configure_spark_with_delta_pip:\n  .config("spark.jars.packages", '
            f'"io.delta:delta-spark_{KNOWN_SPARK}_2.13:{KNOWN_DELTA}.1")',
        )
    if _minor(facts.delta) != KNOWN_DELTA:
        raise InvalidRequest(
            f"has Delta {facts.delta}, and iscp knows {KNOWN_DELTA} alone", field="spark", remedy=_OWN_SPARK
        )


def _faults(facts: SessionFacts, jar: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield what is missing in words, with the setting and its value that add it."""
    if facts.jar is not JarState.OURS:
        found = "none is beside Delta's" if facts.jar is JarState.ABSENT else "that of another version is there"
        yield f"iscp's jar on the class path ({found})", (JARS, with_jar(facts.conf.get(JARS, ""), jar))
    extensions = _listed(facts.conf.get(EXTENSIONS, ""))
    if DELTA_EXTENSION not in extensions:
        yield f"Delta's extension ({EXTENSIONS})", (EXTENSIONS, ",".join([*extensions, DELTA_EXTENSION]))
    if facts.conf.get(CATALOG, "") in _NO_CATALOG:
        yield f"Delta's catalog ({CATALOG})", (CATALOG, DELTA_CATALOG)
    for name, value in (FILE_NEEDS | (S3_NEEDS if facts.s3 else {})).items():
        if (found := facts.conf.get(name, "")) != value:
            yield f"{name} (it is {found or 'not set'})", (name, value)
    files = facts.conf.get(DEFAULT_FILES, "file:///")
    if not files.startswith("file:"):
        yield f"local files for paths without a scheme ({DEFAULT_FILES} is {files})", (DEFAULT_FILES, "file:///")


def with_jar(jars: str, jar: str) -> str:
    """Return the setting of jars with this one, in the place of others of its name."""
    name = jar.rpartition("/")[2]
    return ",".join([*(each for each in _listed(jars) if each.rpartition("/")[2] != name), jar])


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
