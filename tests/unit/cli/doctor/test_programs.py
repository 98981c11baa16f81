"""What `iscp doctor` finds of programs: present, of another version, broken, and missing."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from iscp.adapters.system.clock import SystemClock
from iscp.adapters.system.free_port import free_port
from iscp.cli.doctor import programs
from iscp.cli.doctor.examination import Verdict
from iscp.core.settings.config import EtcdConfig
from iscp.core.values.extras import DISTRIBUTION

CLICK = metadata.version("click")


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_packages_are_those_of_the_extra_by_their_pinned_versions() -> None:
    wanted = [
        "click>=8",
        f'click[x]=={CLICK}; extra == "node"',
        'none-such>=1; extra == "node"',
        'pytest; extra == "demo"',
    ]
    found = programs.examine_packages(wanted)
    assert (found.verdict, found.found) == (Verdict.FAULT, "none-such is missing")
    assert "iscp-delta[node]" in found.remedy
    assert programs.examine_packages(wanted[:2]).found == "all 1 of a node"
    assert programs.examine_packages(["click==1.0; extra == 'node'"]).found == f"click is {CLICK}, not 1.0"
    assert "pyspark" in " ".join(metadata.requires(DISTRIBUTION) or []), "by default those that iscp itself names"


def test_the_java_that_is_taken_is_named(tmp_path: Path) -> None:
    script(tmp_path / "bin/java", f"echo '    java.home = {tmp_path}\n    java.version = 17.0.1' >&2")
    found = programs.examine_java({"JAVA_HOME": str(tmp_path), "PATH": ""})
    assert (found.verdict, found.found) == (Verdict.OK, f"17 (17.0.1) at {tmp_path}")


def test_a_java_home_that_is_passed_over_is_a_warning_and_without_another_java_a_fault(tmp_path: Path) -> None:
    script(tmp_path / "bin/java", f"echo '    java.home = {tmp_path}\n    java.version = 17.0.1' >&2")
    found = programs.examine_java({"JAVA_HOME": "/nonexistent", "PATH": f"{tmp_path}/bin:/usr/bin:/bin"})
    assert found.verdict is Verdict.WARNING
    assert found.found.startswith(f"17 (17.0.1) at {tmp_path}; JAVA_HOME is passed over: /nonexistent/bin/java")
    assert found.remedy == "Set JAVA_HOME to the directory of Java 17 or 21, or unset it"


def test_jars_that_are_missing_are_a_warning_as_the_first_start_fetches_them(tmp_path: Path) -> None:
    found = programs.examine_jars(tmp_path)[0]
    assert found.verdict is Verdict.WARNING
    assert "7 of them are missing" in found.found
    assert list(tmp_path.iterdir()) == [], "nothing is fetched"


@pytest.mark.parametrize(
    ("text", "verdict", "words"),
    [
        ("echo 'etcd Version: 3.5.9'", Verdict.OK, "3.5.9 at "),
        ("echo 'etcd Version: 3.5.1'", Verdict.WARNING, "etcd 3.5.1 can corrupt its data"),
        ("exit 3", Verdict.FAULT, "does not run"),
    ],
)
def test_the_version_of_etcd_is_read(tmp_path: Path, text: str, verdict: Verdict, words: str) -> None:
    found = programs.examine_etcd_binary({"ISCP_ETCD": str(script(tmp_path / "etcd", text))})
    assert found.verdict is verdict
    assert words in found.found
    assert bool(found.remedy) is (verdict is not Verdict.OK)


def test_an_etcd_that_is_named_and_not_there_is_a_fault(tmp_path: Path) -> None:
    assert programs.examine_etcd_binary({"ISCP_ETCD": str(tmp_path / "none")}).verdict is Verdict.FAULT


def test_members_that_do_not_answer_are_a_fault() -> None:
    config = EtcdConfig(endpoints=(f"127.0.0.1:{free_port()}",), request_timeout_s=0.3)
    (found,) = programs.examine_etcd_members(config, SystemClock())
    assert found.verdict is Verdict.FAULT
    assert "etcd.endpoints" in found.remedy


@pytest.mark.parametrize(
    ("version", "trial", "verdict"),
    [
        ("3.5.1", False, Verdict.FAULT),
        ("3.5.1", True, Verdict.WARNING),
        ("3.5.3", False, Verdict.FAULT),
        ("3.5.5", False, Verdict.WARNING),
        ("3.6.16", False, Verdict.OK),
    ],
)
def test_a_release_that_nodes_refuse_is_a_fault_but_for_trials(version: str, trial: bool, verdict: Verdict) -> None:
    assert programs._of_version(version, "at /etcd", trial=trial).verdict is verdict
