"""`iscp-admin` where no node is: one error, at once or within --request-timeout, with the endpoint and what to do."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from iscp.cli.iscp_admin import cli
from iscp.system.http_exchange import free_port

AT_ONCE_S = 3.0
FILE = "table: /lake/sales\nname: copy\nconsumer: replica\ntarget: /copy\n"


@pytest.mark.parametrize("host", ["127.0.0.1", "nobody.invalid"])
@pytest.mark.parametrize("command", [("status",), ("notify", "/lake/sales"), ("apply", "--dry-run", "-f")])
def test_where_nobody_listens_one_error_says_so_at_once(tmp_path: Path, host: str, command: tuple[str, ...]) -> None:
    (file := tmp_path / "job.yaml").write_text(FILE)
    endpoint, begun_s = f"{host}:{free_port()}", time.monotonic()
    ended = CliRunner().invoke(cli, ["--endpoint", endpoint, *command, *([str(file)] if command[0] == "apply" else [])])
    assert time.monotonic() - begun_s < AT_ONCE_S
    assert ended.exit_code != 0
    assert ended.stdout == ""
    assert "trying for" not in ended.stderr
    assert ended.stderr.count("does not answer") == 1
    assert endpoint in ended.stderr
    assert "--endpoint" in ended.stderr


@pytest.mark.parametrize("command", [("status",), ("apply", "--dry-run", "-f")])
def test_a_node_that_says_nothing_is_given_the_time_of_a_request(tmp_path: Path, command: tuple[str, ...]) -> None:
    (file := tmp_path / "job.yaml").write_text(FILE)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint, begun_s = f"127.0.0.1:{silent.getsockname()[1]}", time.monotonic()
        given = ["--endpoint", endpoint, "--request-timeout", "1s", *command]
        ended = CliRunner().invoke(cli, [*given, *([str(file)] if command[0] == "apply" else [])])
    assert time.monotonic() - begun_s < 1.0 + AT_ONCE_S
    assert ended.exit_code != 0
    assert endpoint in ended.stderr
