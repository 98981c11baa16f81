"""What etcd keeps of the job log, and `iscp log repair --config`, which reads it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from iscp.app.settings import to_toml
from iscp.cli.iscp import iscp
from iscp.delta.joblog.delta_job_log import DeltaJobLog
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import Keys, Put
from iscp.etcd.owner_keys import EtcdElection, EtcdLogMarks
from iscp.etcd.server import EtcdServer
from iscp.model.job.job_row import LogEntry
from iscp.model.settings.config import EtcdConfig, JobLogConfig, NodeConfig
from iscp.model.values.errors import JobLogDamaged, NotOwner, StorageError
from iscp.model.values.ids import Leader
from iscp.ports.system import Clock
from iscp.system.threads import SystemClock
from tests.fakes.guards import ScriptedFailpoints
from tests.fakes.log_program import job


def configured(etcd: EtcdConfig, log: str) -> NodeConfig:
    return NodeConfig(node_id="n1", etcd=etcd, log=JobLogConfig(uri=log))


class Term:
    def __init__(self, client: EtcdClient, clock: Clock, prefix: str) -> None:
        self.prefix = prefix
        self.keys = Keys(configured(EtcdConfig(prefix=prefix), "/").etcd_prefix)
        self.election = EtcdElection(client, self.keys, clock, lease_ttl_s=2.0, margin_s=0.5)
        self.marks = EtcdLogMarks(client, self.election, self.keys)
        elected, terms = threading.Event(), list[Leader]()

        def lead(leader: Leader) -> None:
            terms.append(leader)
            elected.set()

        self.election.campaign("n1", lead, lambda: None)
        assert elected.wait(10)
        self.leader = terms[0]


@pytest.fixture
def term(client: EtcdClient, clock: Clock, prefix: str) -> Iterator[Term]:
    made = Term(client, clock, prefix)
    yield made
    made.election.resign()


def test_a_version_is_known_once_it_was_saved_and_only_the_owner_saves(term: Term) -> None:
    assert term.marks.load() == -1
    term.marks.save(term.leader, 7)
    assert term.marks.load() == 7
    with pytest.raises(NotOwner):
        term.marks.save(Leader("n1", term.leader.revision + 1), 8)
    assert term.marks.load() == 7


def test_a_checkpoint_or_what_cannot_be_read_says_that_there_was_a_log(term: Term, client: EtcdClient) -> None:
    client.txn((), (Put(term.keys.checkpoint, b"1.0"),))
    assert term.marks.load() == 0
    client.txn((), (Put(term.keys.job_log, b"\xffseven"),))
    assert term.marks.load() == 0


@pytest.mark.parametrize("fault", [JobLogDamaged("x.json is torn", remedy="Repair it"), StorageError("no disk")])
def test_a_fault_is_known_to_all_until_it_is_over_or_the_term_is(term: Term, fault: StorageError) -> None:
    assert term.marks.fault() is None
    term.marks.report_fault(term.leader, fault)
    said = term.marks.fault()
    assert (type(said), str(said)) == (type(fault), str(fault))
    term.marks.report_fault(term.leader, None)
    assert term.marks.fault() is None
    term.marks.report_fault(term.leader, fault)
    term.election.resign()
    assert term.marks.fault() is None


@pytest.mark.parametrize("value", [b"", b"[]", b'{"code": 18}', b'{"code": 77, "message": "", "remedy": ""}'])
def test_a_fault_that_cannot_be_read_is_none(term: Term, client: EtcdClient, value: bytes) -> None:
    client.txn((), (Put(term.keys.job_log_fault, value),))
    assert term.marks.fault() is None


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


@pytest.mark.parametrize("damage", [truncate, Path.unlink])
def test_repair_by_a_nodes_configuration_gives_up_what_etcd_says_was_written(
    term: Term, shared_server: EtcdServer, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    def opened() -> DeltaJobLog:
        return DeltaJobLog(str(tmp_path), SystemClock(), ScriptedFailpoints(), reached=term.marks.load)

    joblog = opened()
    joblog.claim_term()
    for number in range(3):
        joblog.append([LogEntry(job(number))])
    term.marks.save(term.leader, joblog.version)
    last = max((tmp_path / "iscp_log" / "_delta_log").glob("*.json"))
    damage(last)
    config = tmp_path / "node.toml"
    etcd = EtcdConfig(endpoints=(shared_server.endpoint,), prefix=term.prefix)
    config.write_text(to_toml(configured(etcd, str(tmp_path))))

    def repaired() -> tuple[int, str]:
        done = CliRunner().invoke(iscp, ["log", "repair", "--config", str(config)])
        return done.exit_code, f"{done.output}{done.exception or ''}"

    status, said = repaired()
    assert (status, "n1 leads the cluster" in said) == (1, True)
    term.election.resign()
    with pytest.raises(JobLogDamaged, match=last.name):
        opened().claim_term()
    status, said = repaired()
    assert status == 0, said
    assert f"given up: what was acknowledged after version {joblog.version - 1}, up to {joblog.version}" in said
    again = opened()
    again.claim_term()
    assert len(again.load()) == 2
    status, said = repaired()
    assert (status, "nothing is wrong" in said) == (1, True)
