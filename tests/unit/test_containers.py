"""Where the tests of containers find an engine, and what they say where there is none; what they run is pinned."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from iscp.etcd.server import release_fault
from tests.chart.values_file import CHART
from tests.containers.engine import HINT, find_engine, sockets
from tests.containers.go_programs import CURRENT_ETCD, NAMES, SOURCES, NotBuiltError, build, current_etcd, kept

HOME = Path("/home/dev")


def test_the_first_socket_that_answers_is_taken() -> None:
    answering = {"unix:///run/podman/podman.sock", "unix:///run/user/7/podman/podman.sock"}
    assert find_engine({}, HOME, answering.__contains__) == ("unix:///run/podman/podman.sock", "")
    assert "unix:///run/user/7/podman/podman.sock" in sockets({"XDG_RUNTIME_DIR": "/run/user/7"}, HOME)


def test_the_one_that_is_named_is_taken_and_no_other() -> None:
    named = {"DOCKER_HOST": "unix:///elsewhere.sock"}
    assert find_engine(named, HOME, lambda _: True) == ("unix:///elsewhere.sock", "")
    address, reason = find_engine(named, HOME, lambda each: "elsewhere" not in each)
    assert address is None
    assert "/elsewhere.sock" in reason
    assert HINT in reason


def test_one_of_another_machine_is_none() -> None:
    address, reason = find_engine({"DOCKER_HOST": "tcp://build:2375"}, HOME, lambda _: True)
    assert address is None
    assert "tcp://build:2375" in reason


def test_a_socket_where_nobody_speaks_is_none(tmp_path: Path) -> None:
    (tmp_path / "docker.sock").write_text("")
    address, reason = find_engine({"DOCKER_HOST": f"unix://{tmp_path}/docker.sock"}, HOME)
    assert address is None
    assert "no containers' socket answers" in reason


def test_what_was_built_is_taken_and_where_it_cannot_be_built_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotBuiltError, match="built by Go"):
        build("etcd", tmp_path)
    program = kept(tmp_path, "etcd")
    program.parent.mkdir()
    program.write_text("")
    assert build("etcd", tmp_path) == program


def test_tests_start_the_current_etcd_once_it_was_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISCP_CACHE", str(tmp_path))
    assert current_etcd() is None
    program = kept(tmp_path, CURRENT_ETCD)
    program.parent.mkdir()
    program.write_text("")
    assert current_etcd() == program


def test_a_build_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "bin/go"
    go.parent.mkdir()
    go.write_text("#!/bin/sh\necho no such module >&2\nexit 1\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    with pytest.raises(NotBuiltError, match="no such module"):
        build("s3", tmp_path / "cache")
    assert not kept(tmp_path / "cache", "s3").exists()


def pinned(directory: str) -> list[str]:
    return re.findall(r"go\.etcd\.io/etcd/server/v3 (v[\d.]+)", (SOURCES / directory / "go.mod").read_text())


def test_etcd_is_the_one_that_the_chart_deploys() -> None:
    assert pinned("etcd") == [yaml.safe_load((CHART / "values.yaml").read_text())["etcd"]["image"]["tag"]]
    (current,) = pinned(CURRENT_ETCD)
    assert not release_fault(current.removeprefix("v"))
    assert {path.name for path in SOURCES.iterdir()} == set(NAMES)
