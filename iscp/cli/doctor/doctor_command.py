"""`iscp doctor`: whether this machine can run a node, and what to do if not; offline, and without a node's packages.

An examination gives one verdict for each thing that a node needs, with the remedy. Some examine the machine, others the
programs that a node needs; the command runs those that `iscp up` or `iscp node --config` depends on.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from iscp.cli.node.local_cluster import FREE_MIN_BYTES
from iscp.cli.shell import render
from iscp.cli.shell.terminal import say, say_headed
from iscp.etcd.keys import EtcdSettings
from iscp.etcd.server import RELEASE_REMEDY, find_etcd, member_releases, release_fault, release_warning
from iscp.model.settings.config import EtcdConfig
from iscp.model.values.errors import ConfigurationError, IscpError
from iscp.model.values.untrusted_values import DISTRIBUTION, install_command
from iscp.ports.system import Clock
from iscp.spark.java import (
    HOME_REMEDY,
    IVY_SETTINGS,
    find_java,
    home_fault,
    log_store_jar,
    missing_delta_jars,
)
from iscp.system.http_exchange import is_free
from iscp.system.small_files import files_needed

if TYPE_CHECKING:
    from iscp.model.settings.config import NodeConfig


# --- verdicts ---------------------------------------------------------------------------------------------------------


class Verdict(StrEnum):
    """WARNING: it runs, but look at it. FAULT: it will not run, or not safely."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Examined:
    """One thing that was looked at; `remedy` is empty where there is nothing to do."""

    subject: str
    verdict: Verdict
    found: str
    remedy: str = ""


def ok(subject: str, found: str) -> Examined:
    return Examined(subject, Verdict.OK, found)


def warning(subject: str, found: str, remedy: str) -> Examined:
    return Examined(subject, Verdict.WARNING, found, remedy)


def fault(subject: str, found: str, remedy: str) -> Examined:
    return Examined(subject, Verdict.FAULT, found, remedy)


# --- the machine ------------------------------------------------------------------------------------------------------
# The examinations are of memory, disk, hard links, clock, ports and open files. They write nothing but scratch files.

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


# --- programs ---------------------------------------------------------------------------------------------------------
# The examinations are of a node's packages, Java, the jars and etcd. They start only programs that say their version.

VERSION_TIMEOUT_S = 10.0
"""Seconds that an etcd binary may take to say its version; then `iscp doctor` calls it a fault."""

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?(?:==([^;,\s]+))?[^;]*;.*extra == ['\"]node['\"]")


def examine_packages(requirements: list[str] | None = None) -> Examined:
    """Examine the packages of the extra `node`, those that are pinned by their version. `requirements`: by default
    ours.
    """
    wanted = metadata.requires(DISTRIBUTION) or [] if requirements is None else requirements
    faults, there = [], 0
    for name, version in _pinned(wanted):
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            faults.append(f"{name} is missing")
            continue
        there += 1
        if version and found != version:
            faults.append(f"{name} is {found}, not {version}")
    if faults:
        return fault(
            "packages", "; ".join(faults), f"{install_command()}; without them only `iscp-admin` and the client work"
        )
    return ok("packages", f"all {there} of a node")


def _pinned(requirements: list[str]) -> Iterator[tuple[str, str]]:
    for each in requirements:
        if found := _REQUIREMENT.match(each):
            yield found[1], found[2] or ""


def examine_java(environ: Mapping[str, str]) -> Examined:
    try:
        java = find_java(environ)
    except ConfigurationError as error:
        return fault("Java", error.message, error.remedy)
    found = f"{java.release} ({java.build}) at {java.home}"
    if unfit := home_fault(environ):
        return warning("Java", f"{found}; {unfit}", HOME_REMEDY)
    return ok("Java", found)


def examine_jars(cache_dir: Path) -> list[Examined]:
    store = log_store_jar()
    built = ok("log store", str(store)) if store else fault("log store", "its jar is not there", "Run jvm/build")
    missing = missing_delta_jars(cache_dir)
    if not missing:
        return [ok("Delta's jars", f"whole, in {cache_dir}"), built]
    found = f"{len(missing)} of them are missing or damaged in {cache_dir}"
    fetch = "`python -m iscp.spark.warm_up` fetches them, as the first start does: it needs the network"
    return [warning("Delta's jars", found, f"{fetch}; {IVY_SETTINGS} names another repository"), built]


def examine_etcd_binary(environ: Mapping[str, str]) -> Examined:
    """Examine the binary that `iscp up` would start."""
    try:
        binary = find_etcd(environ)
    except ConfigurationError as error:
        return fault("etcd", error.message, error.remedy)
    try:
        output = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return fault("etcd", f"{binary} does not run ({error})", "Install etcd 3.5.6 or later, or name it in ISCP_ETCD")
    version = re.search(r"etcd Version: (\S+)", output)
    return _of_version(version[1] if version else "of an unknown version", f"at {binary}", trial=True)


def examine_etcd_members(config: EtcdConfig, clock: Clock) -> list[Examined]:
    """Examine the members of the etcd cluster that a configuration names."""
    from iscp.etcd.client import EtcdClient

    where, settings = ", ".join(config.endpoints), EtcdSettings.of(config)
    start = "Start it, or correct etcd.endpoints and what TLS and passwords need"
    try:
        with EtcdClient(settings, clock) as etcd:
            releases = member_releases(etcd, settings, clock, config.request_timeout_s)
    except (IscpError, OSError) as error:
        return [fault("etcd", f"{where}: {error}", start)]
    return [
        _of_version(version, f"member {member} of {where}", trial=config.accept_faulty_release)
        if version
        else warning("etcd", f"member {member} of {where} does not answer at its client URLs", start)
        for member, version in releases.items()
    ]


def _of_version(version: str, where: str, *, trial: bool) -> Examined:
    """Examine a release: what a node refuses is a warning on a `trial`."""
    found = release_fault(version)
    if found and not trial:
        return fault("etcd", f"{found}, {where}", RELEASE_REMEDY)
    if found := found or release_warning(version):
        return warning("etcd", f"{found}, {where}", RELEASE_REMEDY)
    return ok("etcd", f"{version} {where}")


# --- the command ------------------------------------------------------------------------------------------------------

DESCRIBE_TIMEOUT_S = 2.0
"""Seconds that whoever listens on a node's port may take to say who it is; then it counts as a stranger."""

_EXAMINED = ("etcd", "log.uri", "storage.self_test", "data_dir", "listen")
"""Settings whose places and addresses are looked at, if they are right."""

_STYLES = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAULT: "red"}


def run(data: Path, file: Path | None, port: int, output: str) -> int:
    """Print what is found; the exit status: 1 if there is a fault."""
    logging.getLogger("iscp").addHandler(logging.NullHandler())  # what is found is shown, and not by bare log lines
    found = list(_examine_node(file) if file else _examine_up(data, port))
    counts = Counter(each.verdict for each in found)
    if not render.show([asdict(each) for each in found], output):
        _show(found, counts)
    return 1 if counts[Verdict.FAULT] else 0


def _show(found: Sequence[Examined], counts: Counter[Verdict]) -> None:
    width = max(len(each.subject) for each in found)
    for each in found:
        colour = None if os.environ.get("NO_COLOR") else _STYLES[each.verdict]
        say_headed(f"{each.verdict:7}", f"  {each.subject:{width}}  {each.found}", colour)
        if each.remedy:
            say(f"{'':7}  {'':{width}}  remedy: {each.remedy}")
    warnings, faults = counts[Verdict.WARNING], counts[Verdict.FAULT]
    say(f"{len(found)} looked at: {counts[Verdict.OK]} ok, {warnings} with a warning, {faults} with a fault")


def _examine_up(data: Path, port: int) -> Iterator[Examined]:
    """Examine what `iscp up` on this directory needs."""
    from iscp.cli.doctor import doctor_command
    from iscp.model.settings.config import SparkConfig

    yield from _examine_any(SparkConfig().driver_memory_mb)
    yield doctor_command.examine_etcd_binary(os.environ)
    yield doctor_command.examine_disk("data", data)
    yield from doctor_command.examine_links("data", data)
    yield doctor_command.examine_port(port, _holder(data, port))


def _holder(data: Path, port: int) -> str:
    """Return who runs on the directory, if that port is one of its last start; empty if nobody is known to."""
    from iscp.cli.node.local_cluster import Layout, hold_directory
    from iscp.model.values.errors import ConfigurationError

    layout = Layout(data.absolute())
    try:
        ours = port in json.loads(layout.ports.read_text())["nodes"]
        if ours:
            with hold_directory(layout):
                return ""
    except (OSError, ValueError, LookupError):
        return ""
    except ConfigurationError:
        return f"`iscp up` on {layout.root}"
    return ""


def _examine_node(file: Path) -> Iterator[Examined]:
    """Examine what `iscp node --config` needs."""
    from iscp.cli.doctor import doctor_command
    from iscp.storage.locations import on_s3
    from iscp.system.threads import SystemClock

    config, faults = _read(file)

    def right(path: str) -> bool:
        return not any(each == path or each.startswith(f"{path}.") for each in faults)

    heap_mb = config.spark.driver_memory_mb if config and right("spark.driver_memory_mb") else None
    yield from _examine_any(heap_mb)
    yield from faults.values()
    if config is None:
        return
    if right("etcd"):
        yield from doctor_command.examine_etcd_members(config.etcd, SystemClock())
    uris = [("log.uri", config.log.uri), *(("storage.self_test", uri) for uri in config.storage.self_test)]
    for what, uri in uris:
        if right(what) and not on_s3(uri):
            yield from _examine_directory(what, Path(uri.removeprefix("file:")))
    if config.data_dir and right("data_dir"):
        yield doctor_command.examine_disk("data_dir", Path(config.data_dir))
    if right("listen"):
        yield doctor_command.examine_port(int(config.listen.rpartition(":")[2]), "" if faults else _node_at(config))
    if skipped := [each for each in _EXAMINED if not right(each)]:
        yield warning("not looked at", ", ".join(skipped), "Correct these settings, then run `iscp doctor` again")


def _node_at(config: NodeConfig) -> str:
    """Return who has the port, if it is the node of the configuration; empty if it is somebody else, or nobody."""
    from iscp.model.values.errors import IscpError
    from iscp.server.node.owner_streams import describe
    from iscp.system.tls.certificate_watch import certificate_watch

    try:
        found = describe(config.address, tls=certificate_watch(config), timeout_s=DESCRIBE_TIMEOUT_S)
    except IscpError:  # whoever listens there is no node
        return ""
    return (
        f"{found.node_id}, which runs" if (found.cluster, found.node_id) == (config.etcd_prefix, config.node_id) else ""
    )


def _examine_directory(what: str, directory: Path) -> Iterator[Examined]:
    from iscp.cli.doctor import doctor_command

    if not directory.is_dir():
        yield fault(what, f"{directory} is not there", "Mount it, or make it: a node never does")
        return
    yield doctor_command.examine_disk(what, directory)
    yield from doctor_command.examine_links(what, directory)


def _read(file: Path) -> tuple[NodeConfig | None, dict[str, Examined]]:
    """Return the configuration, unless it cannot be read at all, and its faults by their settings."""
    from iscp.model.values.errors import ConfigurationError

    try:
        from iscp.app.settings import read_settings
    except ImportError as error:
        return None, {"": fault("configuration", f"cannot be read: {error}", install_command())}
    try:
        config, found = read_settings(file, os.environ)
    except ConfigurationError as error:
        return None, {"": fault("configuration", error.message, error.remedy)}
    return config, {each.path: fault("configuration", each.line, each.remedy) for each in found}


def _examine_any(heap_mb: int | None) -> Iterator[Examined]:
    from iscp.cli.doctor import doctor_command
    from iscp.spark.jvm_launch import default_cache_dir
    from iscp.system.small_files import raise_open_files_limit

    yield doctor_command.examine_python()
    yield doctor_command.examine_packages()
    yield doctor_command.examine_java(os.environ)
    yield from doctor_command.examine_jars(default_cache_dir(os.environ))
    yield doctor_command.examine_memory(doctor_command.memory_bytes(), heap_mb)
    yield doctor_command.examine_open_files(raise_open_files_limit())
    yield doctor_command.examine_clock(doctor_command.clock_state())
