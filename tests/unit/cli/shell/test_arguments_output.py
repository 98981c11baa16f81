"""Every command of both programs says its answer in the same forms, by the same options."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from iscp.cli.iscp import iscp
from iscp.cli.iscp_admin import cli

PROGRAMS = {"iscp": iscp, "iscp-admin": cli}
WITHOUT_ANSWER = {"iscp node"}


def leaves(command: click.Command, words: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield words, command
        return
    for name, each in command.commands.items():
        yield from leaves(each, f"{words} {name}")


COMMANDS = dict(leaf for program, root in PROGRAMS.items() for leaf in leaves(root, program))


@pytest.mark.parametrize("words", sorted(COMMANDS.keys() - WITHOUT_ANSWER))
def test_every_command_has_the_options(words: str) -> None:
    options = [option for each in COMMANDS[words].params for option in each.opts]
    assert [options.count(each) for each in ("-o", "--output", "--json")] == [1, 1, 1]


def test_to_follow_has_one_letter_everywhere() -> None:
    found = [each.opts for command in COMMANDS.values() for each in command.params if "--follow" in each.opts]
    assert len(found) == 6
    assert set(map(tuple, found)) == {("-f", "--follow")}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("form", [("-o", "json"), ("--json",), ("-o", "yaml", "--json")])
def test_json_is_printed_wherever_it_stands_on_the_line(program: str, form: tuple[str, ...], tmp_path: Path) -> None:
    for line in ((*form, "man", str(tmp_path)), ("man", str(tmp_path), *form), ("man", *form, str(tmp_path))):
        told = CliRunner().invoke(PROGRAMS[program], line)
        assert (told.exit_code, told.stderr) == (0, "")
        assert json.loads(told.stdout) == {"directory": str(tmp_path), "pages": len(list(tmp_path.iterdir()))}


def test_a_script_of_completion_is_printed_as_it_is_unless_a_form_is_wanted() -> None:
    plain = CliRunner().invoke(iscp, ["completion", "bash"]).stdout
    told = json.loads(CliRunner().invoke(iscp, ["completion", "bash", "-o", "json"]).stdout)
    assert told == {"shell": "bash", "script": plain.removesuffix("\n")}


@pytest.mark.parametrize("program", PROGRAMS)
def test_errors_are_objects_too(program: str, tmp_path: Path) -> None:
    lines = {"iscp": ["certs", "renew", "n", "--dir", str(tmp_path)], "iscp-admin": ["view", "import", str(tmp_path)]}
    extra = ["--target-root", "/lake"] if program == "iscp-admin" else []
    told = CliRunner().invoke(PROGRAMS[program], [*lines[program], *extra, "--json"])
    assert (told.exit_code, told.stdout) == (1, "")
    error = json.loads(told.stderr)["error"]
    assert error["message"]
    assert error["remedy"]
    wrong = CliRunner().invoke(PROGRAMS[program], ["--json", *lines[program], "--nope"])
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "--nope" in json.loads(wrong.stderr)["error"]["message"]


def test_certificates_are_named_as_json(tmp_path: Path) -> None:
    run = CliRunner()
    made = run.invoke(iscp, ["certs", "init", "--dir", str(tmp_path), "--json"])
    assert json.loads(made.stdout) == {"directory": str(tmp_path)}
    issued = json.loads(run.invoke(iscp, ["certs", "issue", "client", "me", "--dir", str(tmp_path), "--json"]).stdout)
    assert Path(issued["cert_file"]).is_file()
    assert Path(issued["key_file"]).is_file()
    renewed = json.loads(
        run.invoke(iscp, ["certs", "renew", "me", "--dir", str(tmp_path), "--days", "1", "--json"]).stdout
    )
    assert renewed["valid_until_s"] < issued["valid_until_s"]


def test_contexts_are_changed_and_named_as_json(tmp_path: Path) -> None:
    run = CliRunner(env={"XDG_CONFIG_HOME": str(tmp_path)})
    made = run.invoke(cli, ["context", "set", "lake", "--endpoint", "h:1", "-o", "json"])
    assert json.loads(made.stdout) == {"name": "lake", "file": str(tmp_path / "iscp/config.toml"), "current": True}
    used = run.invoke(cli, ["context", "use", "lake", "-o", "jsonpath=.endpoint"])
    assert used.stdout == "h:1\n"
    assert json.loads(run.invoke(cli, ["context", "delete", "lake", "--json"]).stdout) == {"deleted": True}
