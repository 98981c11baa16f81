"""A job log that is lost or damaged: every node refuses it with an error, and the released commands repair it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from iscp.cli.node.up import RunningUp, start_up
from iscp.client.admin_client import Client
from iscp.model.values.errors import Unavailable
from iscp.system.threads import SystemClock
from tests.e2e.evidence import admin
from tests.e2e.harness import MARK, QUICK, STOP_WAIT_S, leftovers, wait_for

ISCP = str(Path(sys.executable).parent / "iscp")


@dataclass
class Home:
    """A data directory of `iscp up`, whatever runs on it."""

    data: Path
    mark: str = field(default_factory=lambda: uuid4().hex)
    running: list[RunningUp] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.data / "joblog" / "iscp_log" / "_delta_log"

    @property
    def commits(self) -> list[Path]:
        return sorted(self.log.glob("*.json"))

    def start(self, nodes: int = 1) -> RunningUp:
        environ = os.environ | QUICK | {MARK: self.mark}
        self.running.append(start_up(self.data, SystemClock(), environ, port=0, nodes=nodes))
        return self.running[-1]

    def refusal(self) -> str:
        """What `iscp up` says that does not come up."""
        with pytest.raises(Unavailable) as raised:
            self.start()
        return str(raised.value)

    def repair(self) -> subprocess.CompletedProcess[str]:
        command = [ISCP, "log", "repair", "--data", str(self.data)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    def jobs(self) -> list[str]:
        """Those that `iscp-admin` lists once it is up again."""
        up = self.start()
        listed = admin(up.endpoint, "job", "list", "-o", "json").json
        assert up.stop() == 0
        return sorted(job["name"] for job in listed)

    def close(self) -> None:
        for each in self.running:
            each.stop()
        wait_for("no process is left", lambda: not leftovers(self.mark), STOP_WAIT_S)


def register(endpoint: str, lake: Path, *names: str) -> None:
    """And wait until each is built."""
    with Client(endpoint) as client:
        for name in names:
            source = str(lake / name)
            write_deltalake(source, pa.table({"id": [1, 2], "text": ["a", "b"]}))
            client.register(source, name, target=str(lake / f"{name}_copy"), key=["id"])
            client.wait(source, name, timeout_s=90.0)


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data directory of a cluster that had two jobs, and was stopped in order."""
    root = tmp_path_factory.mktemp("used")
    home = Home(root / "iscp")
    try:
        up = home.start()
        register(up.endpoint, root / "lake", "first", "second")
        assert up.stop() == 0
        yield home.data
    finally:
        home.close()


@pytest.fixture
def home(used: Path, tmp_path: Path) -> Iterator[Home]:
    made = Home(Path(shutil.copytree(used, tmp_path / "iscp", symlinks=True)))
    try:
        yield made
    finally:
        made.close()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def delete(path: Path) -> None:
    path.unlink()


@pytest.mark.further  # each time: tests/integration/joblog/test_log_check.py
@pytest.mark.spark
@pytest.mark.parametrize("damage", [truncate, delete])
def test_a_last_commit_that_is_lost_is_refused_by_its_name_and_given_up_by_a_command(
    home: Home, damage: Callable[[Path], None]
) -> None:
    last, before = home.commits[-1], home.commits[-2]
    damage(last)
    said = home.refusal()
    assert str(last) in said
    assert "acknowledged" in said
    assert "iscp log repair" in said
    assert home.commits[-1] in (last, before)
    repaired = home.repair()
    assert repaired.returncode == 0, repaired.stderr
    assert f"after version {int(before.stem)}, up to {int(last.stem)}" in repaired.stdout
    # What the last commit of an orderly stop held, no request was answered for.
    assert home.jobs() == ["first", "second"]
    again = home.repair()
    assert (again.returncode, "nothing is wrong" in again.stderr) == (1, True)


@pytest.mark.further  # each time: tests/integration/joblog/test_log_check.py
@pytest.mark.spark
def test_a_commit_that_is_missing_in_the_middle_is_refused_and_not_repaired(home: Home) -> None:
    missing = home.commits[len(home.commits) // 2]
    kept = missing.read_bytes()
    missing.unlink()
    said = home.refusal()
    assert str(missing) in said
    assert "Restore it from a backup" in said
    repaired = home.repair()
    assert (repaired.returncode, str(missing) in repaired.stderr) == (3, True)
    missing.write_bytes(kept)
    assert home.jobs() == ["first", "second"]


@pytest.mark.further  # each time: tests/integration/joblog/test_log_check.py
def test_a_directory_that_is_gone_is_no_first_start(home: Home) -> None:
    shutil.rmtree(home.data / "joblog")
    said = home.refusal()
    assert str(home.data / "joblog") in said
    assert "Restore it from a backup" in said
    assert not (home.data / "joblog").exists()


@pytest.mark.further  # each time: the directory that is gone above
@pytest.mark.spark
def test_the_log_of_a_cluster_that_never_applied_anything_is_missed_too(tmp_path: Path) -> None:
    home = Home(tmp_path / "iscp")
    try:
        assert home.start().stop() == 0
        shutil.rmtree(home.data / "joblog")
        assert str(home.data / "joblog") in home.refusal()
        (home.data / "joblog").mkdir()  # as a mount point without its disk
        assert "is gone, and this cluster has used one" in home.refusal()
        assert not list((home.data / "joblog").iterdir())
    finally:
        home.close()


@pytest.mark.further  # each time: tests/integration/joblog/test_log_check.py
@pytest.mark.spark
def test_every_node_names_the_fault_that_keeps_the_next_owner_from_the_log(tmp_path: Path) -> None:
    home = Home(tmp_path / "iscp")
    try:
        up = home.start(nodes=3)
        register(up.endpoint, tmp_path / "lake", "first")
        view = admin(up.endpoints, "status", "-o", "json").json
        (owner,) = [node for node in view["nodes"] if node["id"] == view["owner"]]
        others = [node["address"] for node in view["nodes"] if node is not owner]
        os.kill(owner["pid"], signal.SIGKILL)
        last = home.commits[-1]
        kept = last.read_bytes()
        truncate(last)

        def named(endpoint: str, *command: str) -> bool:
            answer = admin(endpoint, *command)
            return answer.status != 0 and str(last) in answer.err and "iscp log repair" in answer.err

        for endpoint in others:
            for command in (("status",), ("job", "list")):
                wait_for(f"{endpoint} names it", lambda at=endpoint, what=command: named(at, *what))  # type: ignore[misc]
        last.write_bytes(kept)
        wait_for("it goes on", lambda: admin(others[0], "job", "list").status == 0)
    finally:
        home.close()
