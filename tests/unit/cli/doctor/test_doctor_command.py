"""`iscp doctor`: its table, its JSON and its exit status.

What `iscp doctor` finds of programs: present, of another version, broken, and missing.

What `iscp doctor` finds of a machine: by real files and sockets, and by given figures.
"""

from __future__ import annotations

import json
import os
import socket
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from iscp.cli.doctor import doctor_command
from iscp.cli.doctor.doctor_command import Verdict
from iscp.cli.iscp import iscp
from iscp.cli.node.local_cluster import Layout, hold_directory
from iscp.model.settings.config import EtcdConfig
from iscp.model.values.untrusted_values import DISTRIBUTION
from iscp.server.admin.admin_server import AdminServer
from iscp.server.node.node_server import NodeServer
from iscp.system.http_exchange import free_port
from iscp.system.threads import SystemClock
from tests.fakes.admin import FakeAdmin
from tests.fakes.node_calls import FakeNodeCalls


def doctor(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(iscp, ["doctor", *arguments], env=environ)


@pytest.fixture
def etcd(tmp_path: Path) -> str:
    binary = tmp_path / "etcd"
    binary.write_text("#!/bin/sh\necho 'etcd Version: 3.5.9'\n")
    binary.chmod(0o755)
    return str(binary)


def test_a_machine_that_can_run_a_node_ends_with_0(tmp_path: Path, etcd: str) -> None:
    result = doctor("--data", str(tmp_path / "data"), "--port", str(free_port()), ISCP_ETCD=etcd)
    assert result.exit_code == 0, result.output
    for subject in (
        "Python",
        "packages",
        "Java",
        "Delta's jars",
        "memory",
        "clock",
        "etcd",
        "hard links of data",
        "port",
    ):
        assert subject in result.stdout
    assert "0 with a fault" in result.stdout.splitlines()[-1]
    assert not (tmp_path / "data").exists()


def test_a_fault_ends_with_1_and_has_its_remedy(tmp_path: Path) -> None:
    result = doctor("--data", str(tmp_path), "--json", ISCP_ETCD="/no/etcd")
    assert result.exit_code == 1
    (fault,) = [each for each in json.loads(result.stdout) if each["verdict"] == "fault" and each["subject"] == "etcd"]
    assert fault["remedy"] == "Give the path of an etcd binary"


def test_a_cluster_that_runs_on_the_directory_may_have_its_port(tmp_path: Path, etcd: str) -> None:
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        options = ("--data", str(tmp_path), "--port", str(port), "--json")
        assert doctor(*options, ISCP_ETCD=etcd).exit_code == 1
        layout = Layout(tmp_path)
        layout.ports.write_text(json.dumps({"nodes": [port]}))
        assert doctor(*options, ISCP_ETCD=etcd).exit_code == 1, "nobody holds the directory"
        with hold_directory(layout):
            assert doctor(*options, ISCP_ETCD=etcd).exit_code == 0


def test_a_configuration_is_checked_with_all_that_it_names(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        f'node_id = "n"\nlisten = "127.0.0.1:{free_port()}"\n[log]\nuri = "{tmp_path}/none"\n'
        f'[etcd]\nendpoints = ["127.0.0.1:1"]\nrequest_timeout_s = 0.3\n[storage]\nself_test = ["{tmp_path}"]\n'
    )
    result = doctor("--config", str(file), "--json")
    found = {each["subject"]: each for each in json.loads(result.stdout)}
    assert result.exit_code == 1
    assert found["log.uri"]["verdict"] == found["etcd"]["verdict"] == "fault"
    assert found["hard links of storage.self_test"]["verdict"] == "ok"


def test_the_node_of_the_configuration_may_have_its_port(tmp_path: Path) -> None:
    def port_of(node_id: str) -> str:
        node = NodeServer(node_id, lambda: 1, "/iscp/c", "1", FakeNodeCalls(), lambda messages: None)
        server = AdminServer(FakeAdmin(), "127.0.0.1:0", services=[node])
        server.start()
        file = tmp_path / "node.toml"
        file.write_text(
            f'node_id = "n"\ncluster = "c"\nlisten = "{server.address}"\n[log]\nuri = "{tmp_path}"\n'
            '[etcd]\nendpoints = ["127.0.0.1:1"]\nrequest_timeout_s = 0.3\n'
        )
        found = json.loads(doctor("--config", str(file), "--json").stdout)
        server.stop(grace_s=0)
        return str(next(each["found"] for each in found if each["subject"].startswith("port")))

    assert port_of("n") == "in use by n, which runs"
    assert port_of("another") == "in use"


def test_a_configuration_that_cannot_be_read_is_one_fault_among_what_was_found(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("nodeid = 1\n")
    found = {each["subject"]: each for each in json.loads(doctor("--config", str(file), "--json").stdout)}
    assert found["configuration"]["verdict"] == "fault"
    assert "Java" in found


def test_each_fault_of_a_configuration_is_one_and_what_is_right_is_examined(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        f'nodeid = "n"\nlisten = "127.0.0.1:{free_port()}"\n[log]\nuri = "{tmp_path}/none"\n'
        '[etcd]\nendpoint = ["127.0.0.1:1"]\n[spark]\ndriver_memory_mb = "much"\n'
    )
    result = doctor("--config", str(file), "--json")
    found = json.loads(result.stdout)
    faults = [(each["found"], each["remedy"]) for each in found if each["subject"] == "configuration"]
    assert [each for each, _ in faults] == [
        "nodeid is not a setting",
        "etcd.endpoint is not a setting",
        "node_id is missing",
        "spark.driver_memory_mb: 'much' will not do",
    ]
    assert faults[0][1] == "Did you mean node_id?"
    by_subject = {each["subject"]: each for each in found}
    assert "heap" not in by_subject["memory"]["found"]
    assert by_subject["log.uri"]["verdict"] == "fault"
    assert any(subject.startswith("port ") for subject in by_subject)
    assert "etcd" not in by_subject, "whose endpoints are not known"
    assert by_subject["not looked at"]["found"] == "etcd"
    shown = doctor("--config", str(file))
    assert shown.stdout.splitlines()[-1].endswith(f"{sum(each['verdict'] == 'fault' for each in found)} with a fault")


def test_a_configuration_that_is_no_toml_is_a_fault_among_what_can_be_found_without_it(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("listen = \n")
    found = {each["subject"]: each for each in json.loads(doctor("--config", str(file), "--json").stdout)}
    assert found["configuration"]["verdict"] == "fault"
    assert "heap" not in found["memory"]["found"]


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
    found = doctor_command.examine_packages(wanted)
    assert (found.verdict, found.found) == (Verdict.FAULT, "none-such is missing")
    assert "iscp-delta[node]" in found.remedy
    assert doctor_command.examine_packages(wanted[:2]).found == "all 1 of a node"
    assert doctor_command.examine_packages(["click==1.0; extra == 'node'"]).found == f"click is {CLICK}, not 1.0"
    assert "pyspark" in " ".join(metadata.requires(DISTRIBUTION) or []), "by default those that iscp itself names"


def test_the_java_that_is_taken_is_named(tmp_path: Path) -> None:
    script(tmp_path / "bin/java", f"echo '    java.home = {tmp_path}\n    java.version = 17.0.1' >&2")
    found = doctor_command.examine_java({"JAVA_HOME": str(tmp_path), "PATH": ""})
    assert (found.verdict, found.found) == (Verdict.OK, f"17 (17.0.1) at {tmp_path}")


def test_a_java_home_that_is_passed_over_is_a_warning_and_without_another_java_a_fault(tmp_path: Path) -> None:
    script(tmp_path / "bin/java", f"echo '    java.home = {tmp_path}\n    java.version = 17.0.1' >&2")
    found = doctor_command.examine_java({"JAVA_HOME": "/nonexistent", "PATH": f"{tmp_path}/bin:/usr/bin:/bin"})
    assert found.verdict is Verdict.WARNING
    assert found.found.startswith(f"17 (17.0.1) at {tmp_path}; JAVA_HOME is passed over: /nonexistent/bin/java")
    assert found.remedy == "Set JAVA_HOME to the directory of Java 17 or 21, or unset it"


def test_jars_that_are_missing_are_a_warning_as_the_first_start_fetches_them(tmp_path: Path) -> None:
    found = doctor_command.examine_jars(tmp_path)[0]
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
    found = doctor_command.examine_etcd_binary({"ISCP_ETCD": str(script(tmp_path / "etcd", text))})
    assert found.verdict is verdict
    assert words in found.found
    assert bool(found.remedy) is (verdict is not Verdict.OK)


def test_an_etcd_that_is_named_and_not_there_is_a_fault(tmp_path: Path) -> None:
    assert doctor_command.examine_etcd_binary({"ISCP_ETCD": str(tmp_path / "none")}).verdict is Verdict.FAULT


def test_members_that_do_not_answer_are_a_fault() -> None:
    config = EtcdConfig(endpoints=(f"127.0.0.1:{free_port()}",), request_timeout_s=0.3)
    (found,) = doctor_command.examine_etcd_members(config, SystemClock())
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
    assert doctor_command._of_version(version, "at /etcd", trial=trial).verdict is verdict


GIB = 1024**3


@pytest.mark.parametrize(
    ("memory", "verdict"),
    [(None, Verdict.WARNING), (GIB, Verdict.FAULT), (2 * GIB, Verdict.WARNING), (3 * GIB, Verdict.OK)],
)
def test_memory_has_to_hold_the_heap_and_the_rest(memory: int | None, verdict: Verdict) -> None:
    found = doctor_command.examine_memory(memory, 2048)
    assert found.verdict is verdict
    assert ("spark.driver_memory_mb" in found.remedy) is (verdict is not Verdict.OK)


def test_a_containers_limit_counts_where_it_is_less(tmp_path: Path) -> None:
    assert doctor_command.memory_bytes(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:        8388608 kB\nMemFree: 1 kB\n")
    assert doctor_command.memory_bytes(tmp_path) == 8 * GIB
    limit = tmp_path / "sys/fs/cgroup/memory.max"
    limit.parent.mkdir(parents=True)
    limit.write_text("max\n")
    assert doctor_command.memory_bytes(tmp_path) == 8 * GIB
    limit.write_text(f"{GIB}\n")
    assert doctor_command.memory_bytes(tmp_path) == GIB


@pytest.mark.parametrize(("free", "verdict"), [(1024, Verdict.FAULT), (GIB, Verdict.WARNING), (3 * GIB, Verdict.OK)])
def test_disks_are_judged_by_what_is_free(tmp_path: Path, free: int, verdict: Verdict) -> None:
    assert doctor_command.examine_disk("data", tmp_path, free).verdict is verdict
    assert "GiB free" in doctor_command.examine_disk("data", tmp_path / "not" / "there" / "yet").found


def test_links_are_tried_above_a_directory_that_is_not_there_and_nothing_is_left(tmp_path: Path) -> None:
    (found,) = doctor_command.examine_links("data", tmp_path / "new" / "dir")
    assert found.verdict is Verdict.OK
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_takes_no_files_is_a_fault() -> None:
    (found,) = doctor_command.examine_links("data", Path("/proc/none"))
    assert found.verdict is Verdict.FAULT
    assert "hard links, or on S3" in found.remedy


@pytest.mark.parametrize(("state", "verdict"), [(5, Verdict.WARNING), (0, Verdict.OK), (None, Verdict.OK)])
def test_a_clock_that_nothing_sets_is_a_warning(state: int | None, verdict: Verdict) -> None:
    assert doctor_command.examine_clock(state).verdict is verdict
    assert doctor_command.clock_state() in (None, *range(-1, 6))


def test_a_port_in_use_is_a_fault_unless_it_is_ones_own() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert doctor_command.examine_port(port).verdict is Verdict.FAULT
        assert doctor_command.examine_port(port, "`iscp up` on /d").found == "in use by `iscp up` on /d"
    assert doctor_command.examine_port(port).verdict is Verdict.OK


def test_old_pythons_other_systems_and_few_open_files_are_named() -> None:
    assert doctor_command.examine_python((3, 10)).verdict is Verdict.FAULT
    assert doctor_command.examine_python((3, 12), "darwin").verdict is Verdict.WARNING
    assert doctor_command.examine_python((3, 12), "linux").verdict is Verdict.OK
    assert doctor_command.examine_open_files(1024).verdict is Verdict.WARNING
    assert doctor_command.examine_open_files(4096).verdict is Verdict.OK


def test_the_users_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "first").write_text("mine")
    doctor_command.examine_links("data", tmp_path)
    assert os.listdir(tmp_path) == ["first"]
