"""The file of contexts: what is read, what is refused, what is written, and what wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from iscp.cli.shell.context_file import Context, Contexts, choose, config_path, load_contexts, save_contexts
from iscp.client.admin_client import Client
from iscp.model.values.errors import ConfigurationError
from iscp.system.tls.tls_files import TlsFiles


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path)}


@pytest.fixture
def path(environ: dict[str, str]) -> Path:
    return config_path(environ)


def test_the_file_lies_where_xdg_says(tmp_path: Path) -> None:
    assert config_path({"XDG_CONFIG_HOME": str(tmp_path)}) == tmp_path / "iscp" / "config.toml"
    home = Path.home() / ".config" / "iscp" / "config.toml"
    assert config_path({}) == config_path({"XDG_CONFIG_HOME": "relative"}) == home


def test_what_is_written_is_read_again(path: Path) -> None:
    known = {"lake.1": Context("h:1"), "b": Context("10.0.0.1:1,10.0.0.2:1", '/a "b"/ä.pem', "/c", "/k")}
    for contexts in (Contexts("b", known), Contexts("", known), Contexts()):
        save_contexts(path, contexts)
        assert load_contexts(path) == contexts
    assert [each.name for each in path.parent.iterdir()] == ["config.toml"]


def test_an_option_wins_over_the_variable_it_over_the_current_context_and_that_over_the_default(
    path: Path, environ: dict[str, str]
) -> None:
    assert choose(None, None, environ).source == "default"
    save_contexts(path, Contexts("a", {"a": Context("a:1"), "b": Context("b:1")}))
    named = {**environ, "ISCP_ENDPOINT": "e:1"}
    order = [
        choose("o:1", "b", named),
        choose(None, "b", named),
        choose(None, None, named),
        choose(None, None, environ),
    ]
    assert [(each.source, each.context.endpoint) for each in order] == [
        ("--endpoint", "o:1"),
        ("--context", "b:1"),
        ("ISCP_ENDPOINT", "e:1"),
        ("context", "a:1"),
    ]


def test_a_file_that_is_wrong_is_in_nobodys_way_where_it_does_not_count(path: Path, environ: dict[str, str]) -> None:
    path.parent.mkdir()
    path.write_text("][")
    assert choose("o:1", None, environ).context.endpoint == "o:1"
    assert choose(None, None, {**environ, "ISCP_ENDPOINT": "e:1"}).context.endpoint == "e:1"
    with pytest.raises(ConfigurationError, match="is not TOML"):
        choose(None, None, environ)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = " + "[" * 90_000, "is not TOML"),
        (".".join("a" * 20_000) + " = 1", "has a key of more than 100 parts in line 1"),
        ("currnt = 'a'", "a field currnt that is not known"),
        ("current = 'a'", "there is no context 'a'"),
        ("current = 1", "current is 1, not a text"),
        ("context = 1", "context is no table"),
        ("[context]\na = 1", "not known"),
        ("[context.a]\nca_file = '/x'", "is missing"),
        ("[context.a]\nendpoint = 'x'", "not HOST:PORT"),
        ("[context.a]\nendpoint = 'x:1'\nport = 1", "a field context.a.port that is not known"),
        ("[context.'a b']\nendpoint = 'x:1'", "is no name for a context"),
        ("[context.a]\nendpoint = 'x:1'\ncert_file = '/c'", "go together"),
    ],
)
def test_what_is_wrong_in_it_is_named(path: Path, text: str, words: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=words):
        load_contexts(path)


def test_files_of_tls_are_read_when_they_are_used(tmp_path: Path) -> None:
    ca_file = tmp_path / "ca.pem"
    assert Context("h:1", str(ca_file), server_name="n").tls() == TlsFiles(ca_file, server_name="n")
    assert Context("h:1").tls() is None
    with pytest.raises(ConfigurationError, match=r"ca\.pem cannot be read"):
        Client("h:1", tls=Context("h:1", str(ca_file)).tls())
