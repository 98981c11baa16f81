"""The command line and the settings with which Spark's JVM starts.

Decides class path, JVM options and defaults; starts nothing itself.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from iscp.adapters.delta.spark.jars import log_store_jar, spark_home
from iscp.adapters.delta.spark.network_conf import network_conf, refuse_open_ports
from iscp.adapters.delta.storage.s3_settings import s3_conf, static_keys
from iscp.core.settings.config import S3Config, is_local_master
from iscp.core.settings.session_needs import (
    CATALOG,
    DELTA_CATALOG,
    DELTA_EXTENSION,
    EXTENSIONS,
    FILE_LOG_STORE,
    FILE_NEEDS,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LOG_STORE = FILE_LOG_STORE
SIDE_FILES = "io.iscp.delta.CommitSideFiles"
COMPILED_STAGES_MAX = 1_500
"""Compiled stages of plans that the JVM caches: some dozens for each view that is refreshed. With Spark's 100 a node of
many jobs compiles them again at each iteration; `spark.conf` may set another number.
"""

TOP_ROWS_MAX = 1_000_000
"""Rows of an `ORDER BY … LIMIT` for which Spark makes room before it has read any; for more it sorts all of them.
`spark.conf` may say otherwise."""

SHUFFLE_PARTITIONS_MAX = 8
"""Partitions of a shuffle, one for each core up to this; `spark.conf` may say otherwise."""

_LOG4J = Path(__file__).with_name("log4j2.properties")
_OPENED = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"),
    *("java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs"),
    *("sun.security.action", "sun.util.calendar"),
)
_NO_DTDS = ("-Djavax.xml.accessExternalDTD=",)
"""Else `xpath` reads the file or URL that a text names as its DTD, whoever has written the text."""

_JVM_OPTIONS = (
    # What Spark's own launcher opens; its jdk.incubator.vector is left out, since not every Java has it.
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    *_NO_DTDS,
    "-XX:+UseSerialGC",
    # A driver that ran out of memory is in an unknown state: better none, the node starts another.
    "-XX:+ExitOnOutOfMemoryError",
)
_PROPERTY = re.compile(r"^\s*([^\s=:#!][^\s=:]*)[\s=:]+(.*?)\s*$", re.M)


def default_cache_dir(environ: Mapping[str, str]) -> Path:
    """Return $ISCP_CACHE, or `iscp` below $XDG_CACHE_HOME or ~/.cache."""
    if own := environ.get("ISCP_CACHE"):
        return Path(own)
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "iscp"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """The settings of a node's Spark.

    `work_dir` is scratch and belongs to one runtime at a time: Spark's local files and its warehouse, emptied at each
    start. `cache_dir` has what is made once for a machine: jars, trust store, archives of classes. `conf` wins over
    spark-defaults.conf, which wins over the settings made here. `insecure`: others may reach the ports that Spark opens
    for a master on other machines.
    """

    work_dir: Path
    cache_dir: Path = field(default_factory=lambda: default_cache_dir(os.environ))
    master: str = "local[*]"
    driver_memory_mb: int = 2048
    conf: Mapping[str, str] = field(default_factory=dict)
    s3: S3Config = field(default_factory=S3Config)
    insecure: bool = False

    @property
    def local(self) -> bool:
        """Return whether tasks run within the JVM itself."""
        return is_local_master(self.master)

    @property
    def scratch_dir(self) -> Path:
        return self.work_dir / "spark"


def shuffle_partitions() -> int:
    """Return how many partitions a shuffle has where tasks run within the JVM."""
    return min(os.cpu_count() or 1, SHUFFLE_PARTITIONS_MAX)


def session_conf() -> dict[str, str]:
    """Return the settings that any session may be given at any time, for where nobody sets them otherwise."""
    conf = {
        "spark.databricks.delta.snapshotPartitions": "1",
        # Else no old version but the newest can be read, whether or not its files are there.
        "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
        # Delta sets it in each session, but only when that analyses its first query: changes may be read before.
        "spark.sql.parquet.fieldId.read.enabled": "true",
        # Else a limit of users' SQL that is large enough ends the JVM.
        "spark.sql.execution.topKSortFallbackThreshold": str(TOP_ROWS_MAX),
        "spark.sql.session.timeZone": "UTC",
        # Else Spark puts variables of the node's environment into users' SQL, where it says ${env:NAME}.
        "spark.sql.variable.substitute": "false",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    if log_store_jar() is not None:
        # Delta writes a file beside each commit by it, within the commit.
        conf["spark.sql.streaming.checkpointFileManagerClass"] = SIDE_FILES
    return conf


def default_conf(settings: SparkSettings) -> dict[str, str]:
    """Return Spark's settings for where neither `settings.conf` nor spark-defaults.conf sets them."""
    conf = session_conf() | {
        EXTENSIONS: DELTA_EXTENSION,
        CATALOG: DELTA_CATALOG,
        "spark.sql.codegen.cache.maxEntries": str(COMPILED_STAGES_MAX),
        "spark.sql.shuffle.partitions": str(shuffle_partitions()),
        "spark.executor.defaultJavaOptions": " ".join(_NO_DTDS),
        "spark.scheduler.mode": "FAIR",
        # Each call of a column's method is noted with its place in the code, which costs as much as the call.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.warehouse.dir": str(settings.work_dir / "warehouse"),
        "spark.ui.enabled": "false",
        # What the status store keeps of the past, in the heap, for as long as the node runs.
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "1000",
        "spark.sql.ui.retainedExecutions": "20",
    }
    conf |= network_conf(settings.master, settings.insecure)
    if log_store_jar() is not None:
        conf |= FILE_NEEDS
    buffer_dir = settings.scratch_dir / "s3" if settings.local else None
    return conf | s3_conf(settings.s3, os.environ, buffer_dir, by_conf=not settings.local)


def java_command(
    executable: Path,
    settings: SparkSettings,
    class_path: Sequence[Path],
    options: Sequence[str],
    environ: Mapping[str, str],
) -> list[str]:
    """Return the command of a SparkSubmit that opens a gateway for Python.

    Driver settings that Spark's own launcher would read (memory, Java options, class path) are read here, from
    `settings.conf` and spark-defaults.conf. Configuration directories come last on the class path: an archive of
    classes fits only if the jars that it was made with come first. Raises ConfigurationError where Spark's ports would
    be open to others.
    """
    directories = configuration_dirs(environ)
    conf = {**spark_defaults(directories), **settings.conf}
    refuse_open_ports(settings.master, settings.insecure, conf)
    front = conf.get("spark.driver.extraClassPath")
    entries = [*([front] if front else ()), *map(str, class_path), *map(str, directories)]
    quiet = [] if _configures_log4j(directories) else [f"-Dlog4j2.configurationFile={_LOG4J}"]
    return [
        *(str(executable), "-cp", os.pathsep.join(entries)),
        f"-Xmx{conf.get('spark.driver.memory', f'{settings.driver_memory_mb}m')}",
        *(*_JVM_OPTIONS, *quiet, *options),
        # Spark's local files go there too, unless spark.local.dir says otherwise.
        f"-Djava.io.tmpdir={settings.scratch_dir}",
        f"-Dderby.system.home={settings.work_dir}",
        *shlex.split(conf.get("spark.driver.defaultJavaOptions", "")),
        *shlex.split(conf.get("spark.driver.extraJavaOptions", "")),
        *("org.apache.spark.deploy.SparkSubmit", "--properties-file", str(properties_file(settings))),
        *("--load-spark-defaults", "pyspark-shell"),
    ]


def java_environ(settings: SparkSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the JVM: pyspark's own Spark, with the configuration that the user's names."""
    directories = configuration_dirs(environ)
    adjusted = {**environ, "SPARK_HOME": str(spark_home()), "SPARK_CONNECT_MODE": "0"}
    if directories:
        adjusted["SPARK_CONF_DIR"] = str(directories[0])
    if settings.local:
        # The machine's name need not resolve, and nobody else has to reach it.
        adjusted.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if static_keys(environ, by_conf=not settings.local):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            adjusted.pop(name, None)
    return adjusted


def properties_file(settings: SparkSettings) -> Path:
    return settings.scratch_dir / "settings.properties"


def write_properties(settings: SparkSettings) -> None:
    """Writes what the user set into a file of its owner only: a command line would show it to everybody."""
    wanted = {
        "spark.app.name": "iscp",
        "spark.ui.showConsoleProgress": "false",  # SparkSubmit shows it by default
        **settings.conf,
        "spark.master": settings.master,
    }
    lines = [f"{_escaped(name)}={_escaped(value)}\n" for name, value in sorted(wanted.items())]
    descriptor = os.open(properties_file(settings), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.writelines(lines)


def configuration_dirs(environ: Mapping[str, str]) -> list[Path]:
    """Return the directories of Spark's (first, if there is one) and Hadoop's configuration that the user names."""
    spark = environ.get("SPARK_CONF_DIR") or (f"{environ['SPARK_HOME']}/conf" if environ.get("SPARK_HOME") else None)
    named = [spark, environ.get("HADOOP_CONF_DIR"), environ.get("YARN_CONF_DIR")]
    return [Path(directory) for directory in named if directory and Path(directory).is_dir()]


def spark_defaults(directories: Sequence[Path]) -> dict[str, str]:
    """Return the settings in spark-defaults.conf, which are read in their plain form (no escapes, one line each)."""
    for directory in directories:
        if (file := directory / "spark-defaults.conf").is_file():
            return dict(_PROPERTY.findall(file.read_text(encoding="utf-8")))
    return {}


def _configures_log4j(directories: Sequence[Path]) -> bool:
    return any((directory / "log4j2.properties").exists() for directory in directories)


def _escaped(text: str) -> str:
    """Return the text as java.util.Properties reads it."""
    return re.sub(r"[\\\s=:#!]", lambda found: _escape(found[0]), text)


def _escape(character: str) -> str:
    return f"\\{character}" if character.isprintable() else f"\\u{ord(character):04x}"
