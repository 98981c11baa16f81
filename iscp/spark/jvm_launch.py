"""The start of Spark's JVM, and what this process has of it while it runs.

The parts: the settings of ports, the command line and settings, the heap that is used, the JVM's output, the archive of
classes, and the gateway, by which the JVM's life is tied to this process.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from iscp.model.settings.config import S3Config, is_local_master
from iscp.model.settings.session_needs import (
    CATALOG,
    DELTA_CATALOG,
    DELTA_EXTENSION,
    EXTENSIONS,
    FILE_LOG_STORE,
    FILE_NEEDS,
)
from iscp.model.values.errors import Canceled, ConfigurationError, EngineError, IscpError
from iscp.model.values.untrusted_values import is_loopback, one_line
from iscp.ports.engine import HeapSize
from iscp.spark.java import log_store_jar, spark_home
from iscp.spark.spark_errors import spark_faults
from iscp.storage.s3_settings import s3_conf, static_keys
from iscp.system.child_process import spawn_watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from iscp.spark.java import Java

log = logging.getLogger(__name__)


# --- ports ------------------------------------------------------------------------------------------------------------
# Spark's ports are reached by this machine alone, or by others who know Spark's secret.

_HERE = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_ENCRYPTED = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.io.encryption.enabled": "true",
}


def stays_here(master: str) -> bool:
    """Return whether nobody on another machine takes part: a local master, or a standalone one on the loopback
    interface.
    """
    if master.partition("[")[0] in ("local", "local-cluster"):
        return True
    parts = urlsplit(master)
    return parts.scheme == "spark" and all(is_loopback(address) for address in parts.netloc.split(","))


def network_conf(master: str, insecure: bool) -> dict[str, str]:
    """Return the settings that bind or protect Spark's ports, for where nobody sets them otherwise."""
    if stays_here(master):
        return dict(_HERE)
    return {} if insecure else dict(_ENCRYPTED)


def refuse_open_ports(master: str, insecure: bool, conf: Mapping[str, str]) -> None:
    """Raise ConfigurationError where others could reach Spark's ports without a secret, by the user's `conf`."""
    if insecure or stays_here(master):
        return
    for name in ("spark.authenticate", "spark.network.crypto.enabled"):
        if conf.get(name, "true").strip().lower() != "true" and not (
            name.endswith("crypto.enabled") and conf.get("spark.ssl.rpc.enabled", "").strip().lower() == "true"
        ):
            raise ConfigurationError(
                f"has {name} turned off, and {master} is on other machines",
                field="spark.conf",
                remedy="Leave it out, or set security.insecure = true",
            )
    # Of other masters Spark makes the secret, and hands it over by theirs.
    if master.startswith("spark://") and not conf.get("spark.authenticate.secret"):
        raise ConfigurationError(
            f"does not have spark.authenticate.secret, and {master} is on other machines",
            field="spark.conf",
            remedy="Give the secret of the master and its workers (as ISCP_SPARK__CONF, or in spark-defaults.conf), or "
            "set security.insecure = true",
        )


# --- the command line and the settings --------------------------------------------------------------------------------
# Class path, JVM options and defaults are decided here, and nothing is started.

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


# --- the heap ---------------------------------------------------------------------------------------------------------

READ_S = 1.0
"""Seconds that the JVM may take to say how much heap it uses; then that is not known, until it has answered."""


class JvmHeap:
    """Reads how much of its heap the JVM uses, without waiting for a JVM that hangs.

    It does so on a thread of its own, one question at a time: each of Python's threads has one in the JVM.
    """

    def __init__(self, root: SparkSession) -> None:
        self._root = root
        self._thread = ThreadPoolExecutor(1, "iscp-jvm-heap")
        self._pending: Future[HeapSize] | None = None

    def size(self) -> HeapSize | None:
        """Return the size, or None if the JVM does not answer in time, or has ended. One thread calls at a time."""
        pending = self._pending or self._thread.submit(self._read)
        self._pending = None if wait([pending], READ_S).done else pending
        if self._pending is not None:
            return None
        try:
            return pending.result()
        except IscpError:
            return None

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _read(self) -> HeapSize:
        with spark_faults("read the size of the heap"):
            jvm: Any = self._root.sparkContext._jvm
            usage = jvm.java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage()
            return HeapSize(int(usage.getUsed()), int(usage.getMax()))


# --- the output of the JVM --------------------------------------------------------------------------------------------
# The output becomes events of this process's own log: each event of the JVM's log one, and any other line one. The JVM
# writes to a pipe, one JSON object a line (log4j2.properties). Lines that are none, as a Java's own warnings before
# logging is set up or what a configuration of the user's prints, become events too.

spark_log = logging.getLogger("spark")

LINE_LENGTH_MAX = 20_000
"""Characters that are logged of one line of the JVM's output; the rest is cut off."""

_FIELDS = ("level", "class", "said", "stack")
_LEVELS = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG,
}


def relay_output() -> tuple[int, threading.Thread]:
    """Return a file descriptor for a JVM to write to, and the thread that logs its output until its last writer has
    ended.
    """
    reader, writer = os.pipe()
    thread = threading.Thread(target=_relay, args=(reader,), name="iscp-jvm-log", daemon=True)
    thread.start()
    return writer, thread


def _relay(descriptor: int) -> None:
    with os.fdopen(descriptor, "rb") as lines:
        for line in lines:
            text = line.decode(errors="replace").rstrip()
            if text:
                _log_event(*_event_of(text))


def _event_of(line: str) -> tuple[int, dict[str, str]]:
    """Return the level of a line, and the fields of its event."""
    try:
        found: Any = json.loads(line)
        given = {name: str(found[name])[:LINE_LENGTH_MAX] for name in _FIELDS if found[name]}
    except (ValueError, KeyError, TypeError, RecursionError):
        return logging.WARNING, {"said": line[:LINE_LENGTH_MAX]}
    return _LEVELS.get(given.pop("level", ""), logging.WARNING), given


def _log_event(level: int, fields: dict[str, str]) -> None:
    if spark_log.hasHandlers():
        spark_log.log(level, "spark.said", extra=fields)
    else:  # a tool that has set up no logging
        print(one_line(f"spark: {' '.join(fields.values())}"), file=sys.stderr)  # noqa: T201


# --- the archive of classes -------------------------------------------------------------------------------------------

ARCHIVES_MAX = 4
"""Class archives of other Javas and jars that are retained, some 100 MB each; the oldest are deleted."""

BASE_TIMEOUT_S = 120.0
"""How long Java may take to write the archive of its own classes; then the warm-up fails."""


class ClassArchive:
    """An archive of loaded classes (AppCDS), by which the JVM starts in a fraction of the time, for one Java and class
    path.

    Where it lies and when it fits is decided here; a training run makes it, every later start maps it. The JVM ignores
    an archive whose jars have changed (path, size or time), so these make its name. A Java without an archive of its
    own classes gets one beside it (`base`), in the cache: its home may be read-only.
    """

    def __init__(self, cache_dir: Path, java: Java, class_path: Sequence[Path]) -> None:
        seen = hashlib.sha256(f"{java.home} {java.build}".encode())
        self._java = java
        self._base = None if java.has_class_archive else cache_dir / f"java-{seen.hexdigest()[:16]}.jsa"
        for jar in class_path:
            status = jar.stat()
            seen.update(f"{jar} {status.st_size} {int(status.st_mtime)}\n".encode())
        self.path = cache_dir / f"classes-{seen.hexdigest()[:16]}.jsa"

    def options(self) -> list[str]:
        """Return the JVM options that map the archive; none if it has not been made."""
        if not self.path.exists():
            return []
        both = f"{self._base}:{self.path}" if self._base else str(self.path)
        # An archive that does not fit is ignored without a word: it is an optimization.
        return [f"-XX:SharedArchiveFile={both}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]

    def training_options(self, target: Path) -> list[str]:
        """Return the JVM options that write the classes of a run to `target` at its orderly end."""
        if self._base is not None and not self._base.exists():
            self._make_base(self._base)
        base = [f"-XX:SharedArchiveFile={self._base}"] if self._base else []
        return [*base, f"-XX:ArchiveClassesAtExit={target}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]

    def publish(self, made: Path) -> None:
        """Puts a finished archive in its place, and removes the oldest of the others."""
        made.replace(self.path)
        others = sorted(
            (other for other in self.path.parent.glob("classes-*.jsa") if other != self.path),
            key=lambda other: other.stat().st_mtime,
            reverse=True,
        )
        for old in others[ARCHIVES_MAX:]:
            old.unlink(missing_ok=True)

    def _make_base(self, base: Path) -> None:
        scratch = base.with_suffix(".new")
        command = [str(self._java.executable), "-Xshare:dump", f"-XX:SharedArchiveFile={scratch}"]
        try:
            subprocess.run(command, capture_output=True, timeout=BASE_TIMEOUT_S, check=True)
        except (OSError, subprocess.SubprocessError) as fault:
            raise EngineError(f"{self._java.home}: no archive of Java's own classes ({fault})") from fault
        scratch.replace(base)


# --- the gateway ------------------------------------------------------------------------------------------------------

START_TIMEOUT_S = 180.0
"""How long a JVM may take to open its gateway; then it is killed, and the start fails with an EngineError."""

START_POLL_S = 0.02
"""Pause between two checks whether the gateway is open."""

GIVEN_UP = "Spark was stopped while it started"

GIVEN_UP_POLL_S = 0.1
"""Pause between two checks whether a start that is under way was given up."""

KILL_WAIT_S = 10.0
"""How long a killed JVM is waited for; then the node goes on without it."""

LAST_WORDS_WAIT_S = 1.0
"""How long the last output of a JVM that has ended is waited for; children of its own may hold its output open."""

_INT = struct.Struct("!i")


@dataclass(frozen=True, slots=True)
class Address:
    """The port at which a gateway listens on the loopback interface, and the secret that it requires."""

    port: int
    secret: str


class Gateway:
    """A running JVM and the address of its gateway for Python.

    How the JVM is started is decided here, without knowledge of Delta or of sessions. The JVM ends with this process,
    even if that is killed: on Linux by the kernel's death signal, elsewhere because its stdin ends.
    """

    def __init__(self, child: subprocess.Popen[bytes], address: Address, ended: threading.Event) -> None:
        self._child = child
        self._ended = ended
        self.address = address

    @classmethod
    def launch(
        cls,
        command: Sequence[str],
        environ: Mapping[str, str],
        scratch_dir: Path,
        given_up: Callable[[], bool] = lambda: False,
    ) -> Gateway:
        """Starts `command`, a SparkSubmit with `pyspark-shell`, and waits for its gateway.

        Its address goes through a file below `scratch_dir`, where only what belongs to this process lies.
        Raises EngineError if it ends or stays silent for START_TIMEOUT_S, and Canceled once it was `given_up`.
        """
        scratch = Path(tempfile.mkdtemp(prefix="gateway-", dir=scratch_dir))
        try:
            written = scratch / "address"
            output, relay = relay_output()
            child, ended = _spawn(command, {**environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(written)}, output)
            try:
                return cls(child, _await_address(written, ended, child, given_up), ended)
            except BaseException:
                child.kill()
                relay.join(LAST_WORDS_WAIT_S)
                raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    @property
    def pid(self) -> int:
        return self._child.pid

    def alive(self) -> bool:
        return not self._ended.is_set()

    def kill(self) -> None:
        """Send SIGKILL, and return when the process is gone."""
        self._child.kill()
        self._ended.wait(KILL_WAIT_S)

    @contextmanager
    def kill_if(self, given_up: Callable[[], bool]) -> Iterator[None]:
        """Kill the JVM once something is `given_up` that is under way within, so that it ends; raise Canceled then."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(GIVEN_UP_POLL_S):
                if given_up():
                    self._child.kill()
                    return

        watcher = threading.Thread(target=watch, name="iscp-jvm-start", daemon=True)
        watcher.start()
        try:
            yield
        except Exception as error:
            if given_up():
                raise Canceled(GIVEN_UP) from error
            raise
        finally:
            over.set()
            watcher.join()

    def close(self, wait_s: float) -> None:
        """Ends the JVM by closing its stdin; kills it after `wait_s`."""
        if self._child.stdin is not None:
            self._child.stdin.close()
        if not self._ended.wait(wait_s):
            self.kill()


def _spawn(
    command: Sequence[str], environ: Mapping[str, str], output: int
) -> tuple[subprocess.Popen[bytes], threading.Event]:
    try:
        return spawn_watched(
            command,
            "iscp-jvm",
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=dict(environ),
            process_group=0,  # Ctrl-C is for this process, which then stops the JVM in order
        )
    except OSError as fault:
        raise EngineError(f"the JVM cannot be started ({fault})") from fault
    finally:
        os.close(output)


def _await_address(
    written: Path, ended: threading.Event, child: subprocess.Popen[bytes], given_up: Callable[[], bool]
) -> Address:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not written.exists():
        if ended.wait(START_POLL_S):
            how = child.returncode
            by = f"signal {signal.Signals(-how).name}" if how < 0 else f"status {how}"
            raise EngineError(f"the JVM ended with {by} before its gateway was up; the log has what it said last")
        if given_up():
            raise Canceled(GIVEN_UP)
        if time.monotonic() > deadline_s:
            raise EngineError(f"the JVM's gateway was not up within {START_TIMEOUT_S:.0f} s")
    # Complete: the JVM renames the file into its place.
    content = written.read_bytes()
    (port,) = _INT.unpack_from(content)
    (length,) = _INT.unpack_from(content, _INT.size)
    return Address(port, content[2 * _INT.size :][:length].decode())
