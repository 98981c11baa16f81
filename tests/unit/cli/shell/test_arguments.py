"""Arguments of the command line are parsed into values that the node understands.

Every command of both programs says its answer in the same forms, by the same options.

Paths into answers: what they find, and the error for those that find nothing.

What shells complete: through click's own protocol, and once through a real bash.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from iscp.cli.iscp import iscp
from iscp.cli.iscp_admin import cli
from iscp.cli.shell.arguments import TABLES, TARGET, absolute_table, parse_duration_s, parse_path, values_at
from iscp.cli.shell.context_file import Context, Contexts, config_path, save_contexts
from iscp.model.api.api_requests import JobName, RegisterRequest
from iscp.server.admin.admin_server import AdminServer
from iscp.system.http_exchange import free_port
from tests.fakes.admin import FakeAdmin


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60s", 60.0), ("2m", 120.0), ("1h30m", 5400.0), ("500ms", 0.5), ("90", 90.0), ("1.5m", 90.0), ("0", 0.0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "60 s", "1x", "-5s", "-5", "nan", "1m junk"])
def test_what_is_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"^is not a duration$"):
        parse_duration_s(text)


@pytest.mark.parametrize("text", ["inf", "1e300", "3153600001", "876001h", "9" * 400 + "h"])
def test_no_duration_is_longer_than_a_wait_may_be(text: str) -> None:
    with pytest.raises(ValueError, match=r"^is more than a hundred years$"):
        parse_duration_s(text)
    assert parse_duration_s("876000h") == 3_153_600_000


@pytest.mark.parametrize(
    "text",
    ["/data/orders", "s3a://bucket/orders", "file:/data/x", "sales.orders", "8e1f4e3a-3f65-4d5e-9d5e-0d8e6a1b2c3d"],
)
def test_what_the_node_understands_stays(text: str) -> None:
    assert absolute_table(text) == text


@pytest.mark.parametrize("text", ["orders", "./sales.orders", "data/orders", "../x"])
def test_relative_paths_become_absolute(text: str) -> None:
    assert absolute_table(text) == os.path.abspath(text)


def test_a_name_that_is_a_path_too_is_the_path(tmp_path: Path) -> None:
    here = Path.cwd()
    existing = sorted(path.name for path in here.iterdir() if path.suffix == ".toml")[0]
    assert absolute_table(existing) == str(here / existing)
    assert absolute_table(str(tmp_path)) == str(tmp_path)


def test_a_target_is_a_path_never_a_name() -> None:
    """The node would take `copies.orders` relative to its own directory."""
    for text in ("copies.orders", "copies/orders", "8e1f4e3a-3f65-4d5e-9d5e-0d8e6a1b2c3d"):
        assert TARGET.convert(text, None, None) == os.path.abspath(text)
    for text in ("/data/copy", "s3a://bucket/copy", "file:/data/copy"):
        assert TARGET.convert(text, None, None) == text


def test_patterns_of_relative_paths_are_made_absolute_and_others_stay() -> None:
    for text in ("sales.*", "/data/*", "*/orders", "s3a://bucket/*", "orders?"):
        assert TABLES.convert(text, None, None) == text
    assert TABLES.convert("data/*", None, None) == os.path.abspath("data/*")
    assert TABLES.convert("data/orders", None, None) == os.path.abspath("data/orders")


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


ANSWER = [{"name": "a", "status": {"rows": 1}, "odd key": 1}, {"name": "b", "status": {"rows": 2}, "odd key": 2}]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("[*].name", ["a", "b"]),
        ("{.items[*].name}", ["a", "b"]),
        ("$[0].status.rows", [1]),
        ("[-1].name", ["b"]),
        ("[7].name", []),
        ("name", ["a", "b"]),
        ("[*]['odd key']", [1, 2]),
        ('[0]["odd key"]', [1]),
        ("[0].status[*]", [1]),
    ],
)
def test_a_path_finds_values_in_order(path: str, found: list[Any]) -> None:
    assert values_at(ANSWER, parse_path(path)) == found


@pytest.mark.parametrize("path", ["", "{}", ".a[", ".a[?(@.b)]", "[1:2]", "..a", ".a b"])
def test_what_is_no_path_is_refused_with_an_example(path: str) -> None:
    with pytest.raises(ValueError, match=r"as in \.status\.rows"):
        parse_path(path)


def test_a_field_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(LookupError, match=r"no field 'row'; there are rows"):
        values_at(ANSWER, parse_path("[*].status.row"))
    with pytest.raises(LookupError, match="which has no parts"):
        values_at(ANSWER, parse_path("[0].name.first"))


Complete = Callable[..., list[str]]


@pytest.fixture
def endpoint() -> Iterator[str]:
    admin = FakeAdmin()
    spec = '{"iteration": {"consumer": {"kind": "replica", "target": "/copy"}}}'
    for table, name, account in (("/lake/a", "copy", "acme"), ("/lake/a", "open", "acme"), ("/lake/b", "all", "zoo")):
        admin.register([RegisterRequest(JobName(table, name, account), spec)])
    view = '{"iteration": {"consumer": {"kind": "view", "target": "/both"}}}'
    admin.register([RegisterRequest(JobName("/lake/b", "both", "zoo"), view)])
    server = AdminServer(admin, "127.0.0.1:0")
    server.start()
    yield server.address
    server.stop(grace_s=0)


@pytest.fixture
def complete(endpoint: str) -> Complete:
    """The plain values for the last of the words; what the shell completes itself is in angle brackets."""

    def complete(*words: str) -> list[str]:
        shell = ShellComplete(cli, {}, "iscp-admin", "_ISCP_ADMIN_COMPLETE")
        found = shell.get_completions(["--endpoint", endpoint, *words[:-1]], words[-1])
        return [each.value if each.type == "plain" else f"<{each.type}>" for each in found]

    return complete


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("job", "des"), ["describe"]),
        (("job", "status", "/lake/"), ["<dir>", "/lake/a", "/lake/b"]),
        (("job", "status", "/lake/a", ""), ["copy", "open"]),
        (("job", "pause", "/lake/*", ""), ["all", "both", "copy", "open"]),
        (("job", "list", "/lake/b", ""), ["all", "both"]),
        (("job", "status", "/lake/a", "copy", "--account", ""), ["acme", "zoo"]),
        (("view", "show", ""), ["both"]),
        (("node", "drain", ""), ["n1"]),
        (("job", "list", "--state", "e"), ["error"]),
        (("job", "list", "-o", "j"), ["json", "jsonpath="]),
        (("job", "list", "--sort-by", "status.err"), ["status.error_code", "status.error_msg"]),
        (("job", "register", "--target", "/"), ["<dir>"]),
        (("apply", "-f", ""), ["<file>"]),
        (("explain", "job.tr"), ["job.trigger", "job.trigger_name", "job.trigger_options"]),
        (("explain", "job.spec.it"), ["job.spec.iteration"]),
    ],
)
def test_words_are_completed_by_what_is_there(complete: Complete, words: tuple[str, ...], values: list[str]) -> None:
    assert complete(*words) == values


def test_contexts_are_those_of_the_file(complete: Complete, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert complete("context", "use", "") == []
    save_contexts(config_path(), Contexts("", {"lake": Context("h:1"), "test": Context("h:2")}))
    assert complete("context", "use", "") == ["lake", "test"]
    assert complete("job", "list", "--context", "t") == ["test"]
    config_path().write_text("][")
    assert complete("context", "use", "") == []


def test_a_cluster_that_is_away_completes_nothing_and_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    shell = ShellComplete(cli, {}, "iscp-admin", "_ISCP_ADMIN_COMPLETE")
    assert shell.get_completions(["--endpoint", f"127.0.0.1:{free_port()}", "node", "drain"], "") == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_for_both_programs(shell: str) -> None:
    for command, variable in ((cli, "_ISCP_ADMIN_COMPLETE"), (iscp, "_ISCP_COMPLETE")):
        result = CliRunner().invoke(command, ["completion", shell])
        assert result.exit_code == 0
        assert f"{variable}={shell}_complete" in result.stdout


COMPLETED: list[tuple[click.Group, str, tuple[str, ...], list[tuple[str, str]]]] = [
    (cli, "iscp-admin", ("job", "status", "/lake/a", ""), [("plain", "copy"), ("plain", "open")]),
    (cli, "iscp-admin", ("job", "status", "/lake/"), [("dir", "/lake/"), ("plain", "/lake/a"), ("plain", "/lake/b")]),
    (cli, "iscp-admin", ("node", "drain", ""), [("plain", "n1")]),
    (cli, "iscp-admin", ("apply", "-f", ""), [("file", "")]),
    (cli, "iscp-admin", ("job", "list", "--sort-by", "status.error_c"), [("plain", "status.error_code")]),
    (cli, "iscp-admin", ("job", "list", "--late"), [("plain", "--late")]),
    (iscp, "iscp", ("do",), [("plain", "doctor")]),
    (iscp, "iscp", ("demo", "--nothing-like-it"), []),
]
"""What the scripts are answered for the last of the words: what the shell completes itself, and values."""


def asked(shell: str, group: click.Group, program: str, words: tuple[str, ...], endpoint: str) -> str:
    """The answer to what the shell's script sends: zsh the number of the word, fish the word itself."""
    variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
    line = " ".join((program, *words))
    position = words[-1] if shell == "fish" else str(len(words))
    environ = {variable: f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": position, "ISCP_ENDPOINT": endpoint}
    done = CliRunner(env=environ).invoke(group, [], prog_name=program, complete_var=variable)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout.removesuffix("\n")


@pytest.mark.parametrize(("group", "program", "words", "wanted"), COMPLETED)
def test_zsh_and_fish_are_answered_in_the_form_that_their_scripts_read(
    endpoint: str, group: click.Group, program: str, words: tuple[str, ...], wanted: list[tuple[str, str]]
) -> None:
    lines = asked("zsh", group, program, words, endpoint).splitlines()
    assert len(lines) % 3 == 0, "zsh reads three lines each: type, value, help"
    assert list(zip(lines[::3], lines[1::3], strict=True)) == wanted
    found = asked("fish", group, program, words, endpoint).splitlines()
    assert [tuple(line.split("\t")[0].split(",", 1)) for line in found] == wanted


def test_bash_completes_by_the_script() -> None:
    programs = Path(sys.executable).parent
    line = "COMP_WORDS=(iscp do); COMP_CWORD=1; _iscp_completion iscp; echo ${COMPREPLY[@]}"
    done = subprocess.run(
        ["bash", "-c", f'eval "$(iscp completion bash)"; {line}'],
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["doctor"]
