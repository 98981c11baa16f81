"""`iscp doctor`: whether this machine can run a node, and what to do if not; offline, and without a node's packages."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from iscp.cli.doctor.examination import Examined, Verdict, fault, warning
from iscp.cli.shell import render
from iscp.cli.shell.terminal import say, say_headed
from iscp.core.values.extras import install_command

if TYPE_CHECKING:
    from iscp.core.settings.config import NodeConfig

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
    from iscp.cli.doctor import machine, programs
    from iscp.core.settings.config import SparkConfig

    yield from _examine_any(SparkConfig().driver_memory_mb)
    yield programs.examine_etcd_binary(os.environ)
    yield machine.examine_disk("data", data)
    yield from machine.examine_links("data", data)
    yield machine.examine_port(port, _holder(data, port))


def _holder(data: Path, port: int) -> str:
    """Return who runs on the directory, if that port is one of its last start; empty if nobody is known to."""
    from iscp.cli.node.data_directory import Layout, hold_directory
    from iscp.core.values.errors import ConfigurationError

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
    from iscp.adapters.delta.storage.locations import on_s3
    from iscp.adapters.system.clock import SystemClock
    from iscp.cli.doctor import machine, programs

    config, faults = _read(file)

    def right(path: str) -> bool:
        return not any(each == path or each.startswith(f"{path}.") for each in faults)

    heap_mb = config.spark.driver_memory_mb if config and right("spark.driver_memory_mb") else None
    yield from _examine_any(heap_mb)
    yield from faults.values()
    if config is None:
        return
    if right("etcd"):
        yield from programs.examine_etcd_members(config.etcd, SystemClock())
    uris = [("log.uri", config.log.uri), *(("storage.self_test", uri) for uri in config.storage.self_test)]
    for what, uri in uris:
        if right(what) and not on_s3(uri):
            yield from _examine_directory(what, Path(uri.removeprefix("file:")))
    if config.data_dir and right("data_dir"):
        yield machine.examine_disk("data_dir", Path(config.data_dir))
    if right("listen"):
        yield machine.examine_port(int(config.listen.rpartition(":")[2]), "" if faults else _node_at(config))
    if skipped := [each for each in _EXAMINED if not right(each)]:
        yield warning("not looked at", ", ".join(skipped), "Correct these settings, then run `iscp doctor` again")


def _node_at(config: NodeConfig) -> str:
    """Return who has the port, if it is the node of the configuration; empty if it is somebody else, or nobody."""
    from iscp.adapters.grpc.node.node_client import describe
    from iscp.adapters.tls.node_certificates import certificate_watch
    from iscp.core.values.errors import IscpError

    try:
        found = describe(config.address, tls=certificate_watch(config), timeout_s=DESCRIBE_TIMEOUT_S)
    except IscpError:  # whoever listens there is no node
        return ""
    return (
        f"{found.node_id}, which runs" if (found.cluster, found.node_id) == (config.etcd_prefix, config.node_id) else ""
    )


def _examine_directory(what: str, directory: Path) -> Iterator[Examined]:
    from iscp.cli.doctor import machine

    if not directory.is_dir():
        yield fault(what, f"{directory} is not there", "Mount it, or make it: a node never does")
        return
    yield machine.examine_disk(what, directory)
    yield from machine.examine_links(what, directory)


def _read(file: Path) -> tuple[NodeConfig | None, dict[str, Examined]]:
    """Return the configuration, unless it cannot be read at all, and its faults by their settings."""
    from iscp.core.values.errors import ConfigurationError

    try:
        from iscp.bootstrap.configuration.settings import read_settings
    except ImportError as error:
        return None, {"": fault("configuration", f"cannot be read: {error}", install_command())}
    try:
        config, found = read_settings(file, os.environ)
    except ConfigurationError as error:
        return None, {"": fault("configuration", error.message, error.remedy)}
    return config, {each.path: fault("configuration", each.line, each.remedy) for each in found}


def _examine_any(heap_mb: int | None) -> Iterator[Examined]:
    from iscp.adapters.delta.spark.jvm_launch import default_cache_dir
    from iscp.adapters.system.open_files import raise_open_files_limit
    from iscp.cli.doctor import machine, programs

    yield machine.examine_python()
    yield programs.examine_packages()
    yield programs.examine_java(os.environ)
    yield from programs.examine_jars(default_cache_dir(os.environ))
    yield machine.examine_memory(machine.memory_bytes(), heap_mb)
    yield machine.examine_open_files(raise_open_files_limit())
    yield machine.examine_clock(machine.clock_state())
