"""The token that a client sends: from where, in what form, and never over a network in clear text."""

from __future__ import annotations

import os
import select
import socket
from pathlib import Path

import pytest

from iscp.client.admin_client import Client
from iscp.client.channel.attempts import TOKEN_CHECK_S, CallerToken, TokenChannel, token_of_environment
from iscp.model.access.authorization import TOKEN_CHARS_MAX
from iscp.model.values.errors import ConfigurationError, IscpError
from tests.fakes.clock import FakeClock


def test_the_environment_names_a_token_or_its_file() -> None:
    assert token_of_environment({}) is None
    assert token_of_environment({"ISCP_TOKEN": "t"}) == "t"
    assert token_of_environment({"ISCP_TOKEN_FILE": "/f"}) == Path("/f")
    with pytest.raises(ConfigurationError, match="ISCP_TOKEN"):
        token_of_environment({"ISCP_TOKEN": "t", "ISCP_TOKEN_FILE": "/f"})


@pytest.mark.parametrize("text", ["", " ", "a b", "é", "a\nb", "a" * (TOKEN_CHARS_MAX + 1), "secret\x00"])
def test_what_is_no_token_is_refused_and_not_shown(text: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    for given in (text, file):
        with pytest.raises(ConfigurationError) as refused:
            CallerToken(given)
        assert refused.value.remedy
        assert "secret" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        CallerToken(tmp_path / "none")


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    file, clock = tmp_path / "token", FakeClock()
    file.write_text("first\n")
    token = CallerToken(file, clock.monotonic_s)
    assert token.current() == "first"
    replace(file, "second")
    assert token.current() == "first"
    clock.advance(TOKEN_CHECK_S)
    assert token.current() == "second"
    replace(file, "")  # half a renewal
    clock.advance(TOKEN_CHECK_S)
    assert token.current() == "second"
    replace(file, "third")
    clock.advance(TOKEN_CHECK_S)
    assert token.current() == "third"


def replace(file: Path, text: str) -> None:
    file.with_suffix(".new").write_text(text)
    os.replace(file.with_suffix(".new"), file)


def test_each_call_says_who_makes_it() -> None:
    class Channel:
        def unary_unary(self, method: str) -> object:
            return lambda request, metadata, timeout: (method, request, metadata, timeout)

        unary_stream = unary_unary

        def close(self) -> str:
            return "closed"

    channel = TokenChannel(Channel(), CallerToken("t"))
    bearer = (("authorization", "Bearer t"),)
    assert channel.unary_unary("/m")(b"r", timeout=1) == ("/m", b"r", bearer, 1)
    assert channel.unary_stream("/m")(b"r", timeout=1) == ("/m", b"r", bearer, 1)
    assert channel.close() == "closed"


def test_a_token_is_not_sent_in_clear_text_to_another_machine() -> None:
    for endpoint in ("10.0.0.1:7430", "lake.example:7430", "127.0.0.1:1,10.0.0.1:1"):
        with pytest.raises(ConfigurationError, match="in clear text"):
            Client(endpoint, token="t")
    Client("127.0.0.1:1", token="t").close()
    Client("10.0.0.1:1").close()


@pytest.mark.parametrize(("token", "by_proxy"), [("t", False), (None, True)])
def test_a_token_is_not_given_to_a_proxy_in_clear_text(
    token: str | None, by_proxy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("grpc_proxy", "https_proxy", "no_grpc_proxy", "no_proxy", "ISCP_TOKEN", "ISCP_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as proxy, socket.create_server(("127.0.0.1", 0)) as node:
        (_, proxy_port), (_, node_port) = proxy.getsockname(), node.getsockname()
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy_port}")
        with Client(f"127.0.0.1:{node_port}", token=token, timeout_s=0.5) as client, pytest.raises(IscpError):
            client.jobs()
        reached, _, _ = select.select([proxy, node], [], [], 0.0)
        assert reached == [proxy if by_proxy else node]
