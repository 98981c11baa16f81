"""What shells complete: through click's own protocol, and once through a real bash."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from iscp.adapters.grpc.admin.admin_server import AdminServer
from iscp.adapters.system.free_port import free_port
from iscp.cli.iscp import iscp
from iscp.cli.iscp_admin import cli
from iscp.cli.shell.context_file import Context, Contexts, config_path, save_contexts
from iscp.core.api.api_requests import JobName, RegisterRequest
from tests.fakes.admin import FakeAdmin

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
