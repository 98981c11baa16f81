"""`iscp-admin token` and `iscp-admin audit` against a real server whose callers have to be known."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from iscp.adapters.grpc.access.access_server import AccessServer
from iscp.adapters.grpc.admin.admin_server import AdminServer
from iscp.adapters.system.clock import SystemClock
from iscp.cli.iscp_admin import cli
from iscp.core.values.access_roles import Role
from tests.fakes.access import Access
from tests.fakes.admin import FakeAdmin

Run = Callable[..., Result]


@pytest.fixture
def access() -> Access:
    return Access(SystemClock())


@pytest.fixture
def endpoint(access: Access) -> Iterator[str]:
    services, interceptors = [AccessServer(access.service)], [access.interceptor]
    server = AdminServer(FakeAdmin(), "127.0.0.1:0", services=services, interceptors=interceptors)
    server.start()
    yield server.address
    server.stop(grace_s=0)


@pytest.fixture
def run(endpoint: str, access: Access, tmp_path: Path) -> Run:
    """As an admin of acme, unless a token is given."""

    def run(*arguments: str, token: str = "", **environ: str) -> Result:
        file = tmp_path / "token"
        file.write_text(token or access.token(Role.ADMIN))
        own = {"ISCP_ENDPOINT": endpoint, "ISCP_TOKEN_FILE": str(file), "XDG_CONFIG_HOME": str(tmp_path), **environ}
        return CliRunner().invoke(cli, arguments, env=own)

    return run


def test_a_token_is_printed_alone_and_can_be_used(run: Run, access: Access) -> None:
    made = run("token", "create", "--role", "editor", "--ttl", "1h", "--note", "nightly")
    token = made.stdout.strip()
    assert made.stdout == f"{token}\n"  # as it is redirected into a file
    record = access.tokens.kept[token[5:17]]
    assert (record.account, record.role, record.note) == ("acme", Role.EDITOR, "nightly")
    assert f"{record.token_id} is editor of acme until" in made.stderr
    assert run("job", "list", token=token).exit_code == 0
    assert run("token", "list", token=token).exit_code == 1


def test_tokens_are_listed_without_their_secrets_and_revoked(run: Run, access: Access) -> None:
    made = json.loads(run("token", "create", "-o", "json").stdout)
    assert (made["role"], made["account"], made["state"]) == ("viewer", "acme", "ready")
    access.tokens.expire(made["id"])
    listed = run("token", "list")
    row = next(line for line in listed.stdout.splitlines() if made["id"] in line)
    assert "ended" in row
    assert made["token"] not in listed.stdout
    assert run("token", "list", "-o", "name").stdout.split().count(made["id"]) == 1
    assert run("token", "revoke", made["id"]).stdout == f"{made['id']} is revoked\n"
    assert run("token", "revoke", made["id"]).stdout == f"there is no token {made['id']}, or no longer\n"
    whole = access.token(Role.VIEWER)
    assert run("token", "revoke", whole).stdout == f"{whole[5:17]} is revoked\n"


def test_the_audit_shows_who_did_what(run: Run) -> None:
    run("token", "create", "--note", "first")
    shown = run("audit")
    assert shown.exit_code == 0
    assert "CreateToken" in shown.stdout
    (entry,) = json.loads(run("audit", "--since", "1h", "--method", "CreateToken", "-o", "json").stdout)
    assert (entry["account"], entry["caller_role"], entry["result"]) == ("acme", "admin", "OK")
    assert json.loads(entry["what"])["things"][0]["note"] == "first"


def test_errors_say_what_to_do(run: Run) -> None:
    for token, status, words in (
        ("iscp_" + "0" * 64, 1, ("has ended or was revoked", "iscp-admin token create")),
        ("-", 1, ("has ended or was revoked",)),
        ("two words", 1, ("holds no token",)),
    ):
        refused = run("job", "list", token=token)
        assert refused.exit_code == status
        assert all(each in refused.stderr for each in words), refused.stderr
    both = run("job", "list", ISCP_TOKEN="t")
    assert "ISCP_TOKEN is set beside ISCP_TOKEN_FILE" in both.stderr
    assert "--ttl" in run("token", "create", "--ttl", "never").stderr
    assert "at most 31622400 seconds" in run("token", "create", "--ttl", "400d").stderr


def test_a_context_names_the_file_of_a_token(run: Run, access: Access, endpoint: str, tmp_path: Path) -> None:
    file = tmp_path / "own.token"
    file.write_text(access.token(Role.VIEWER))
    run("context", "set", "lake", "--endpoint", endpoint, "--token-file", str(file))
    assert json.loads(run("context", "show", "lake", "-o", "json").stdout)["token_file"] == str(file)
    environ = {"ISCP_ENDPOINT": "", "ISCP_TOKEN_FILE": "", "XDG_CONFIG_HOME": str(tmp_path)}
    assert CliRunner().invoke(cli, ["job", "list"], env=environ).exit_code == 0
    file.write_text("iscp_" + "0" * 64)
    assert CliRunner().invoke(cli, ["job", "list"], env=environ).exit_code == 1
