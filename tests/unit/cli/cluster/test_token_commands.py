"""`iscp-admin token` and `iscp-admin audit` against a real server whose callers have to be known.

`iscp-admin token bootstrap` with a real etcd: what it makes is a token, wherever the command stands.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from iscp.app.settings import load_settings
from iscp.cli.iscp import iscp
from iscp.cli.iscp_admin import cli
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import EtcdSettings, Keys
from iscp.etcd.server import EtcdServer
from iscp.etcd.watched_keys import EtcdTokens
from iscp.model.access.authorization import id_of
from iscp.model.access.service_table import Role
from iscp.server.access.access_interceptor import AccessServer
from iscp.server.admin.admin_server import AdminServer
from iscp.system.threads import SystemClock
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


CONFIG = """
node_id = "n-1"
[log]
uri = "/lake/iscp_log"
[etcd]
endpoints = ["{endpoint}"]
"""


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    server = EtcdServer.start(tmp_path / "etcd", clock=SystemClock())
    file = tmp_path / "node.toml"
    file.write_text(CONFIG.format(endpoint=server.endpoint))
    yield file
    server.stop()


def test_the_first_token_is_made_in_the_new_place_and_in_the_old_one(config: Path) -> None:
    run = CliRunner()
    made = run.invoke(cli, ["token", "bootstrap", "--config", str(config), "--ttl", "1h", "-o", "json"])
    assert (made.exit_code, made.stderr) == (0, "")
    row = json.loads(made.stdout)
    assert (row["id"], row["role"], row["state"]) == (id_of(row["token"]), "admin", "ready")
    before = run.invoke(iscp, ["token", "bootstrap", "--config", str(config)])
    assert before.exit_code == 0
    assert "is admin of" in before.stderr
    settings = load_settings(config, {})
    with EtcdClient(EtcdSettings.of(settings.etcd), SystemClock()) as etcd:
        stored = EtcdTokens(etcd, Keys(settings.etcd_prefix), settings.security.cluster_account).records()
    assert {each.token_id for each in stored} == {row["id"], id_of(before.stdout.strip())}
    assert {each.role for each in stored} == {Role.ADMIN}


def test_the_old_place_is_shown_no_more() -> None:
    assert "bootstrap" in CliRunner().invoke(cli, ["token", "--help"]).stdout
    assert "token" not in CliRunner().invoke(iscp, ["--help"]).stdout


def test_without_a_configuration_it_is_said_what_to_give() -> None:
    told = CliRunner().invoke(cli, ["token", "bootstrap"])
    assert (told.exit_code, told.stdout) == (1, "")
    assert "node_id is missing" in told.stderr
    assert "\n  field: --config\n  remedy: Give the configuration of a node by --config" in told.stderr
