"""A real node with TLS and authentication, by the commands that a user types: from the first token to the audit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from iscp.cli.iscp_admin import cli
from iscp.cli.node.local_cluster import healthy
from iscp.system.tls.tls_files import TlsFiles
from tests.e2e.evidence import WIDE, Answer
from tests.e2e.harness import NODE_ID, Cluster, assert_equal, read, wait_for
from tests.fakes.certs import NODE_NAME, Certs

REVOKED_WITHIN_S = 5.0
ROWS = pa.table({"id": [1, 2, 3], "text": ["a", "b", "c"]})


class Guarded:
    """The cluster, and its callers: each has the certificate that all clients share, and a token of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cluster, self.certs = Cluster(root), Certs(root / "certs")
        self.environ = {"ISCP_SECURITY__AUTHENTICATION": "true"}
        self.environ |= _files("ISCP_SECURITY__TLS__", self.certs.files("node"))

    def start(self) -> None:
        self.cluster.start_etcd()
        self.cluster.launch_node(**self.environ)
        tls = self.certs.files("node", NODE_NAME).read()

        def serving() -> bool:
            assert self.cluster.node.alive, self.cluster.node.log.read_text()[-4_000:]
            return healthy(self.cluster.endpoint, tls)

        wait_for("the node serves", serving)

    def run(self, token: str, *arguments: str) -> Answer:
        """What `iscp-admin` does for whoever has this token."""
        file = self.root / "token"
        file.write_text(token)
        endpoint = f"localhost:{self.cluster.ports.nodes[0]}"
        own = {"ISCP_ENDPOINT": endpoint, "ISCP_ACCOUNT": "acme", "ISCP_TOKEN_FILE": str(file)}
        run = CliRunner().invoke(cli, arguments, env=WIDE | own | _files("ISCP_", self.certs.files("client")))
        return Answer(run.exit_code, run.stdout, run.stderr)

    def token(self, admin: str, role: str) -> tuple[str, str]:
        """A new one of acme, and its id."""
        made = self.run(admin, "token", "create", "--account", "acme", "--role", role, "--ttl", "10m", "-o", "json")
        assert made.status == 0, made
        found = json.loads(made.out)
        return found["token"], found["id"]

    def bootstrap(self) -> str:
        command = [sys.executable, "-P", "-m", "iscp.cli.iscp", "token", "bootstrap"]
        command += ["--config", str(self.cluster.layout.config(NODE_ID))]
        made = subprocess.run(
            command, env=os.environ | self.environ, capture_output=True, text=True, check=True, timeout=120
        )
        return made.stdout.strip()


def _files(prefix: str, files: TlsFiles) -> dict[str, str]:
    return {f"{prefix}{name.upper()}": str(getattr(files, name)) for name in ("ca_file", "cert_file", "key_file")}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(tmp_path_factory.mktemp("cluster"))
    try:
        made.start()
        yield made
    finally:
        made.cluster.stop()


@pytest.mark.further  # each time: tests/integration/tls/test_guarded_cluster.py
@pytest.mark.spark
def test_from_the_first_token_to_the_audit(guarded: Guarded) -> None:
    source = guarded.cluster.table("orders", ROWS)
    target = f"{guarded.cluster.derived}/copy"
    root = guarded.bootstrap()
    (viewer, _), (editor, editor_id) = (guarded.token(root, role) for role in ("viewer", "editor"))
    register = ("job", "register", "--table", source, "--name", "copy", "--target", target, "--key", "id")
    refused = guarded.run(viewer, *register)
    assert refused.status == 1
    assert "this needs the role editor" in refused.err
    assert guarded.run("iscp_" + "0" * 64, "job", "list").status == 1
    assert guarded.run(editor, *register).status == 0
    assert guarded.run(viewer, "job", "wait", source, "copy", "--timeout", "120s").status == 0
    assert_equal(target, read(source))
    assert [job["account"] for job in json.loads(guarded.run(viewer, "job", "list", "-o", "json").out)] == ["acme"]
    assert guarded.run(viewer, "job", "describe", source, "copy").status == 0
    assert "'system' alone" in guarded.run(editor, "status").err
    assert guarded.run(root, "status").status == 0
    assert guarded.run(root, "token", "revoke", editor_id).status == 0
    revoked_s = time.monotonic()
    wait_for("the token is refused", lambda: guarded.run(editor, "job", "list").status == 1, REVOKED_WITHIN_S)
    assert time.monotonic() - revoked_s <= REVOKED_WITHIN_S
    assert "was revoked" in guarded.run(editor, "job", "pause", source, "copy").err

    def audited() -> list[tuple[str, str, str, str]]:
        found = json.loads(guarded.run(root, "audit", "-o", "json").out)
        return [(each["method"].rpartition("/")[2], each["caller"], each["result"], each["account"]) for each in found]

    wait_for("all is audited", lambda: len(audited()) >= 5, 30.0)
    entries = audited()[::-1]
    methods = [(method, result) for method, _, result, _ in entries]
    assert methods == [
        ("CreateToken", "OK"),
        ("CreateToken", "OK"),
        ("Register", "PERMISSION_DENIED"),
        ("Register", "OK"),
        ("RevokeToken", "OK"),
    ]
    assert entries[3] == ("Register", editor_id, "OK", "acme")
    logs = guarded.cluster.node.log.read_text()
    assert not any(token.removeprefix("iscp_") in logs for token in (root, viewer, editor))
