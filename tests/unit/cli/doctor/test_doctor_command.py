"""`iscp doctor`: its table, its JSON and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from iscp.adapters.grpc.admin.admin_server import AdminServer
from iscp.adapters.grpc.node.node_server import NodeServer
from iscp.adapters.system.free_port import free_port
from iscp.cli.iscp import iscp
from iscp.cli.node.data_directory import Layout, hold_directory
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
