"""Looks at the programs that a node needs: its packages, Java, the jars, etcd. Starts only what says its version."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from iscp.adapters.delta.spark.jars import IVY_SETTINGS, log_store_jar, missing_delta_jars
from iscp.adapters.delta.spark.java import HOME_REMEDY, find_java, home_fault
from iscp.adapters.etcd.server import RELEASE_REMEDY, find_etcd, member_releases, release_fault, release_warning
from iscp.adapters.etcd.values import EtcdSettings
from iscp.cli.doctor.examination import Examined, fault, ok, warning
from iscp.core.settings.config import EtcdConfig
from iscp.core.values.errors import ConfigurationError, IscpError
from iscp.core.values.extras import DISTRIBUTION, install_command
from iscp.ports.system import Clock

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
    fetch = "`python -m iscp.adapters.delta.spark.warm_up` fetches them, as the first start does: it needs the network"
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
    from iscp.adapters.etcd.client import EtcdClient

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
