"""Keeps the jars that Delta and S3 need beside pyspark's own: resolved once, verified always.

Decides what is on the class path; knows nothing of sessions. No host is named here: Ivy, which pyspark
brings, knows the public repository, and ISCP_IVY_SETTINGS names a settings file for another.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from iscp.adapters.delta.spark.java import proxy_options, trust_options
from iscp.core.values.errors import ConfigurationError, Unavailable
from iscp.core.values.extras import DISTRIBUTION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from iscp.adapters.delta.spark.java import Java

log = logging.getLogger(__name__)

IVY_SETTINGS = "ISCP_IVY_SETTINGS"
RESOLVE_TIMEOUT_S = 600.0
"""How long Ivy may take to resolve the jars; then it is given up with Unavailable."""

REASON_LINES_MAX = 12
"""Lines of Ivy's output that an error shows; the rest is left out."""

_PACKAGE = Path(str(files("iscp.adapters.delta.spark")))


def spark_home() -> Path:
    """Return the directory of the installed pyspark. Raises ConfigurationError if there is none."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigurationError("pyspark is not installed", remedy=f"Install {DISTRIBUTION}[node]")
    return Path(spec.origin).parent


def spark_jars() -> list[Path]:
    """Return pyspark's own jars, in a fixed order: the archive of classes depends on it."""
    return sorted((spark_home() / "jars").glob("*.jar"))


def log_store_jar() -> Path | None:
    """Return the package's own log store (put-if-absent between processes), if it has been built."""
    jar = _PACKAGE / "jars" / "iscp-logstore.jar"
    return jar if jar.exists() else None


@dataclass(frozen=True, slots=True)
class _JarSet:
    """A set of jars that is resolved together: the Ivy file that names them, and the file of the trusted checksums."""

    what: str
    ivy: str
    sums: str

    def read_sums(self) -> dict[str, str]:
        lines = (_PACKAGE / self.sums).read_text().splitlines()
        return {name: digest for digest, name in (line.split() for line in lines)}


_DELTA = _JarSet("Delta's jars", "ivy.xml", "jars.sha256")
_S3 = _JarSet("The jars for S3", "ivy-s3.xml", "jars-s3.sha256")


def delta_release() -> str:
    """Return the name and version of the jar with which Spark reads and writes Delta tables."""
    return next(name.removesuffix(".jar") for name in _DELTA.read_sums() if name.startswith("delta-spark"))


def delta_jars(cache_dir: Path, java: Java, environ: Mapping[str, str]) -> list[Path]:
    """Return Delta's jars, from `cache_dir`, or resolved into it: once, by one process at a time.

    Each is compared with the sum that the package has, at every call (12 MB: some 10 ms). Raises Unavailable if they
    cannot be fetched, ConfigurationError if what was fetched is something else.
    """
    return _resolve(_DELTA, cache_dir, java, environ)


def missing_delta_jars(cache_dir: Path) -> list[str]:
    """Return the names of Delta's jars that `cache_dir` lacks, or that are not what they should be there; fetch
    nothing.
    """
    wanted = _DELTA.read_sums()
    return _wrong(_home(cache_dir, wanted), wanted)


def s3_jars(cache_dir: Path, java: Java, environ: Mapping[str, str]) -> list[Path]:
    """Return Hadoop's S3A and what it needs, as `delta_jars` (10 MB)."""
    return _resolve(_S3, cache_dir, java, environ)


def _resolve(jars: _JarSet, cache_dir: Path, java: Java, environ: Mapping[str, str]) -> list[Path]:
    wanted = jars.read_sums()
    home = _home(cache_dir, wanted)
    if not _wrong(home, wanted):
        return _paths(home, wanted)
    cache_dir.mkdir(parents=True, exist_ok=True)
    with _lock(cache_dir / "jars.lock"):
        if _wrong(home, wanted):
            _fill(home, jars, java, environ)
    return _paths(home, wanted)


def _home(cache_dir: Path, wanted: Mapping[str, str]) -> Path:
    return cache_dir / f"jars-{_digest(repr(sorted(wanted.items())).encode())[:16]}"


def _paths(home: Path, wanted: Mapping[str, str]) -> list[Path]:
    return [home / name for name in sorted(wanted)]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _wrong(home: Path, wanted: Mapping[str, str]) -> list[str]:
    """Return the names of those that are missing or not what they should be."""

    def right(name: str, digest: str) -> bool:
        try:
            return _digest((home / name).read_bytes()) == digest
        except FileNotFoundError:
            return False

    return [name for name, digest in wanted.items() if not right(name, digest)]


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of processes that start together one fetches; the kernel frees it
        yield


def _fill(home: Path, jars: _JarSet, java: Java, environ: Mapping[str, str]) -> None:
    log.info("jars.downloading", extra={"directory": str(home)})
    scratch = Path(tempfile.mkdtemp(dir=home.parent, prefix=".jars-"))
    try:
        _retrieve(scratch, jars, java, environ)
        if wrong := _wrong(scratch / "jars", jars.read_sums()):
            raise ConfigurationError(
                f"what was fetched is not what the package trusts: {', '.join(wrong)}",
                remedy=f"Check the repository that {IVY_SETTINGS} names, or what is between",
            )
        # Whole or not at all: what lies there was damaged, and is out of use by the lock.
        shutil.rmtree(home, ignore_errors=True)
        (scratch / "jars").rename(home)
        log.info("jars.resolved", extra={"directory": str(home), "jars": len(jars.read_sums())})
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _retrieve(scratch: Path, jars: _JarSet, java: Java, environ: Mapping[str, str]) -> None:
    ivy = next((jar for jar in spark_jars() if jar.name.startswith("ivy-")), None)
    if ivy is None:
        raise ConfigurationError("pyspark brings no Ivy", remedy=f"Install the pyspark that {DISTRIBUTION}[node] names")
    settings = environ.get(IVY_SETTINGS)
    command = [
        *(str(java.executable), *trust_options(scratch.parent, environ), *proxy_options(environ)),
        *("-cp", str(ivy)),
        *("org.apache.ivy.Main", "-ivy", str(_PACKAGE / jars.ivy), "-cache", str(scratch / "ivy")),
        *("-retrieve", f"{scratch}/jars/[artifact]-[revision].[ext]"),
        *(("-settings", settings) if settings else ()),
    ]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S, check=False, env=dict(environ)
        )
    except (OSError, subprocess.TimeoutExpired) as fault:
        raise Unavailable(f"{jars.what} cannot be resolved ({fault})") from fault
    if run.returncode:
        raise Unavailable(
            f"{jars.what} cannot be resolved:\n" + _reason(run.stdout + run.stderr),
            remedy=f"Give access to Maven Central, or name an Ivy settings file in {IVY_SETTINGS}",
        )


def _reason(output: str) -> str:
    """Return the lines of Ivy's output that show what went wrong, and where it searched."""
    lines = [line.strip() for line in output.partition(":: problems summary ::")[2].splitlines()]
    reasons = [line for line in lines if line and not line.startswith(("::", "====", "--"))]
    return "\n".join((reasons or output.splitlines())[:REASON_LINES_MAX])
