"""Looks at the machine: memory, disk, hard links, clock, ports, open files. Writes nothing but scratch files."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from iscp.adapters.system.free_port import is_free
from iscp.adapters.system.open_files import files_needed
from iscp.cli.doctor.examination import Examined, fault, ok, warning
from iscp.cli.node.data_directory import FREE_MIN_BYTES

DISK_FREE_AIM_BYTES = 2 * 1024**3
"""Free bytes below which `iscp doctor` warns of a directory."""

MEMORY_BESIDE_HEAP_BYTES = 1024**3
"""Memory that a node needs beside its JVM's heap: the rest of the JVM, Python, Arrow; less is a warning."""

CLOCK_SKEW_MAX_S = 2.0
"""Seconds that the clock of a directory's file system may differ from the machine's; more is a warning."""

NODES_AIM = 1_000
"""Nodes that an owner should have open files for; fewer are a warning."""

_UNSYNCHRONIZED = 5
_GIB = 1024**3


def examine_python(version: Sequence[int] = tuple(sys.version_info[:2]), platform: str = sys.platform) -> Examined:
    found = f"{version[0]}.{version[1]} on {platform}"
    if tuple(version[:2]) < (3, 11):
        return fault("Python", found, "Install Python 3.11 or later, and iscp into it")
    return ok("Python", found) if platform == "linux" else warning("Python", found, "Run nodes on Linux")


def examine_memory(memory_bytes: int | None, heap_mb: int | None) -> Examined:
    """Examine whether the JVM's heap fits; None: how large that is to be is not known, as its setting is wrong."""
    if memory_bytes is None:
        return warning("memory", "it cannot be determined", "Check that the JVM's heap fits (spark.driver_memory_mb)")
    if heap_mb is None:
        return ok("memory", f"{memory_bytes / _GIB:.1f} GiB")
    heap = heap_mb * 1024**2
    found = f"{memory_bytes / _GIB:.1f} GiB, of which the JVM's heap may take {heap / _GIB:.1f} GiB"
    remedy = "Give the machine or the container more memory, or the JVM less: spark.driver_memory_mb"
    if memory_bytes < heap:
        return fault("memory", found, remedy)
    return ok("memory", found) if memory_bytes >= heap + MEMORY_BESIDE_HEAP_BYTES else warning("memory", found, remedy)


def memory_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory that this process may take, in bytes: the machine's, or its container's limit; None if that is
    not known.
    """
    found = []
    try:
        total = re.search(r"^MemTotal:\s+(\d+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE)
        found += [int(total[1]) * 1024] if total else []
    except OSError:
        pass  # not Linux
    for limit in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            found.append(int((root / limit).read_text()))
        except (OSError, ValueError):
            continue  # there is none, or it says `max`
    return min(found, default=None)


def examine_disk(what: str, directory: Path, free_bytes: int | None = None) -> Examined:
    """Examine the room at a place; `free_bytes` is as the system says, unless given."""
    free = shutil.disk_usage(_existing(directory)).free if free_bytes is None else free_bytes
    found = f"{free / _GIB:.1f} GiB free at {directory}"
    remedy = "Free space, or name another directory"
    if free < FREE_MIN_BYTES:
        return fault(f"disk of {what}", found, remedy)
    return ok(f"disk of {what}", found) if free >= DISK_FREE_AIM_BYTES else warning(f"disk of {what}", found, remedy)


def examine_links(what: str, directory: Path) -> list[Examined]:
    """Examine whether hard links are made, and refused if the name is taken, and whether the file system's clock is
    ours.

    The examination runs in a directory of its own, which is removed, in `directory` or the nearest above it that is
    there.
    """
    subject, place = f"hard links of {what}", _existing(directory)
    try:
        with tempfile.TemporaryDirectory(dir=place, prefix=".iscp-doctor-") as scratch:
            first, second = Path(scratch, "first"), Path(scratch, "second")
            first.write_text("1")
            skew_s = abs(first.stat().st_mtime - time.time())
            os.link(first, second)
            try:
                os.link(first, second)
            except FileExistsError:
                linked = ok(subject, f"made, and refused where a name is taken, at {place}")
            else:
                linked = fault(subject, f"a second one replaced the first at {place}", _OTHER_FILE_SYSTEM)
    except OSError as error:
        return [fault(subject, f"{place}: {error.strerror or error}", f"Make it writable. {_OTHER_FILE_SYSTEM}")]
    if skew_s <= CLOCK_SKEW_MAX_S:
        return [linked]
    found = f"{skew_s:.0f} s away from this machine's at {place}"
    return [linked, warning(f"clock of {what}", found, "Synchronize the file server's clock")]


_OTHER_FILE_SYSTEM = "Tables and the job log have to be on a file system with hard links, or on S3"


def examine_clock(state: int | None) -> Examined:
    """Examine the clock; `state` is what the kernel says of it (adjtimex), or None if that cannot be read."""
    if state == _UNSYNCHRONIZED:
        return warning("clock", "not synchronized", "Run chrony or systemd-timesyncd: lags and times are by this clock")
    return ok("clock", "not known to be wrong" if state is None or state < 0 else "synchronized")


def clock_state() -> int | None:
    """Return what Linux' adjtimex answers; the call only reads."""
    try:
        adjtimex = ctypes.CDLL(None).adjtimex
    except (OSError, AttributeError):  # no such call: not Linux
        return None
    return int(adjtimex(ctypes.create_string_buffer(512)))


def examine_port(port: int, holder: str = "") -> Examined:
    """Examine the port; `holder` is who may have it, as it is one's own."""
    if is_free(port):
        return ok(f"port {port}", "free")
    if holder:
        return ok(f"port {port}", f"in use by {holder}")
    return fault(f"port {port}", "in use", "Stop what listens there, or choose another: `iscp up --port`, or `listen`")


def examine_open_files(limit: int) -> Examined:
    needed = files_needed(NODES_AIM)
    if limit < needed:
        remedy = f"Raise the hard limit to {needed}, if the cluster may grow to {NODES_AIM} nodes"
        return warning("open files", f"at most {limit}", remedy)
    return ok("open files", "without limit" if limit == sys.maxsize else f"at most {limit}")


def _existing(directory: Path) -> Path:
    path = directory.absolute()
    while not path.exists():
        path = path.parent
    return path
