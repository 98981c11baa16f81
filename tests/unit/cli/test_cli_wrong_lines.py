"""Every command, with every option and argument wrong: one error that helps, the right exit status, nothing written.

The commands are found in the parsers: one that is added is tried without being named. They run here, against
a node with the real servicer and validation.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.cli.iscp import iscp as iscp_group
from iscp.cli.iscp import main as iscp_main
from iscp.cli.iscp_admin import cli as admin_group
from iscp.cli.iscp_admin import main as admin_main
from iscp.cli.shell.root_group import ExitStatus
from tests.fakes.fuzzed_node import KEPT, FuzzedNode
from tests.fakes.wrong_lines import ODD, Leaf, leaves, line, wrong_of

GROUPS: Mapping[str, click.Group] = {"iscp": iscp_group, "iscp-admin": admin_group}
MAINS: Mapping[str, Callable[[Sequence[str]], None]] = {"iscp": iscp_main, "iscp-admin": admin_main}
LEAVES = [(program, leaf) for program, group in GROUPS.items() for leaf in leaves(group)]
LASTING = {("iscp", "node"), ("iscp", "up"), ("iscp", "demo"), ("iscp", "doctor"), ("iscp-admin", "build", "watch")}
"""What starts or examines a machine, or goes on until a build ends, where its arguments are in order; only what is
wrong is tried.
"""

ENDLESS = {"watch", "follow"}
NOBODY = "nobody"
"""No address of etcd: one that could be would be waited for."""


def aliases(levels: int) -> bytes:
    """A list of little text that is 2 ** levels long where it is written out."""
    return b"[&a0 [x]" + b"".join(b", &a%d [*a%d, *a%d]" % (n, n - 1, n - 1) for n in range(1, levels)) + b"]"


FILES = {
    "empty": b"",
    "views": b"CREATE MATERIALIZED VIEW v AS SELECT id FROM o",
    "binary": b"\xff\xfe\x00",
    "deep": b"[" * 100_000,
    "stairs": b"- " * 100_000,
    "itself": b"&a [*a]",
    "aliases of aliases": b"- {table: /t, name: n, target: /x, options: {a: " + aliases(24) + b"}}",
    "target of aliases": b"- {table: /t, name: n, target: " + aliases(24) + b"}",
    "merges of merges": b"- &a0 {a: 1}\n"
    + b"".join(b"- &a%d {<<: [*a%d, *a%d]}\n" % (n, n - 1, n - 1) for n in range(1, 24)),
    "options of itself": b"- &a {table: /t, name: n, target: /x, options: *a}",
    "half": b'- {table: /t, name: n, target: "/x\\uD800"}',
    "unreadable": b"- {table: /t, name: n, target: /x, where: 2020-01-01 99:99:99}",
    "digits": b"- {table: /t, name: n, target: /x, priority: " + b"9" * 5_000 + b"}",
    "no number": b"- {table: /t, name: n, target: /x, target_lag: .nan}",
    "no day": b"- {table: /t, name: n, target: /x, where: 2020-99-99}",
    "no text": b"- {table: /t, name: n, target: /x, where: 2020-01-01}",
    "escape": b'- {table: /t, name: "\\e[31m", target: /x}',
    "raw escape": b"a: \x1b[31m\n",
    "another language": b"!!python/object:os.system {}",
    "two faults": b"- {table: /t, name: n}\n- {nope: 1}\n",
}
ERROR = re.compile(r"^error: (?P<text>.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed, and how it ended."""

    argv: tuple[str, ...]
    status: int
    out: str
    err: str


@dataclass(slots=True)
class Shell:
    """Where commands run: a directory of their own, and a node."""

    node: FuzzedNode
    home: Path
    files: Path
    environ: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        config = str(self.home / ".config")
        home = str(self.home)
        self.environ = {"HOME": home, "XDG_CONFIG_HOME": config, "ISCP_ENDPOINT": self.node.address, "COLUMNS": "200"}
        self.environ |= {"VISUAL": "true"}  # an editor that waits for nobody

    def run(self, program: str, argv: Sequence[str]) -> Said:
        status: Any = 0
        with CliRunner(env=self.environ).isolation(input="") as (out, err, _):
            try:
                MAINS[program](list(argv))
            except SystemExit as end:
                status = end.code
        return Said((program, *argv), status or 0, out.getvalue().decode(), err.getvalue().decode())

    def values(self, leaf: Leaf) -> dict[str, str | None]:
        """Of its required arguments and options, in order; with short waits."""
        node = self.node
        known = {
            "table": node.table,
            "tables": node.table,
            "uri": node.table,
            "name": KEPT,
            "node_id": "n-1",
            "token_id": "0" * 12,
        }
        known |= {"shell": "bash", "directory": str(self.home / "pages"), "etcd": NOBODY, "path": "spec"}
        known["token_id"] = "0" * 12
        known |= {
            "paths": str(self.files / "empty"),
            "timeout_s": "1ms",
            "older_than_s": "7d",
            "priority": "1",
            "data": ".",
        }
        if leaf.words == ("job", "register"):
            known |= {"name": "new", "target": str(node.lake / "new")}
        if leaf.words[0] == "backup":
            known |= {"destination": str(self.home / "backup"), "source": str(self.home / "nothing")}
        if leaf.words[0] == "certs":
            known |= {"kind": "client", "directory": str(self.home / "certs")}
        if leaf.words == ("view", "create"):
            known |= {
                "target": str(node.lake / "new"),
                "sql": "SELECT id FROM orders",
                "tables": f"orders={node.table}",
            }
        if leaf.words == ("view", "apply"):
            known |= {
                "sql_paths": str(self.files / "views"),
                "target_root": str(node.lake),
                "tables": f"o={node.table}",
            }
        if leaf.words == ("apply",):
            known |= {"target_root": str(node.lake), "tables": f"o={node.table}"}
        if leaf.words == ("view", "import"):
            known |= {"project": str(self.files / "views"), "target_root": str(node.lake), "tables": f"o={node.table}"}
        wanted = {"sql", "timeout_s", "target", "older_than_s", "priority", "data", "directory"}
        wanted |= {str(each.name) for each in leaf.command.params if each.required}
        return {
            str(each.name): known[str(each.name)]
            for each in leaf.command.params
            if each.name in known and (each.name in wanted or leaf.words[-1] in ("register", "create", "apply"))
        }

    def state(self) -> tuple[Any, ...]:
        files = sorted((str(path), path.stat().st_size) for path in self.home.rglob("*"))
        return self.node.state(), files

    def restore(self) -> None:
        self.node.restore()
        for path in self.home.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    lake, home, files = (tmp_path_factory.mktemp(name) for name in ("lake", "home", "files"))
    for name, content in FILES.items():
        (files / name).write_bytes(content)
    node = FuzzedNode(lake)
    with contextlib.chdir(home):
        yield Shell(node, home, files)
    node.close()


def check(shell: Shell, program: str, argv: Sequence[str], *, wrong: bool) -> Said:
    """It does what it should; or it is refused in words that help, and nothing is written."""
    before = shell.state()
    said = shell.run(program, argv)
    assert said.status in {0, *ExitStatus}, said
    assert said.status or not wrong, said
    if said.status == 0:
        assert not ERROR.search(said.err), said
        if shell.state() != before:
            shell.restore()
        return said
    assert shell.state() == before, said
    assert all(text.isprintable() for text in said.err.splitlines()), said
    assert len(said.err) < 10_000, said
    objects = [each for each in said.err.splitlines() if each.startswith("{")]
    if objects:  # a question may stand before them; files are refused with all their faults
        for each in objects:
            _check_object(said, each)
    elif said.status != ExitStatus.NOT_FRESH:  # what was found is an answer
        _check_lines(said)
    return said


def _check_object(said: Said, line: str) -> None:
    error = json.loads(line)["error"]
    assert set(error) == {"code", "name", "field", "message", "remedy"}
    assert error["message"], said
    assert error["name"] != "INTERNAL", said
    assert error["remedy"] or said.status == 2, said


def _check_lines(said: Said) -> None:
    if said.status == ExitStatus.WRONG_USAGE and said.err.startswith("Usage: ") and "\nCommands:\n" in said.err:
        return  # a group without a command shows its help
    faults = len(ERROR.findall(said.err))
    assert faults >= 1, said
    assert "unforeseen" not in said.err
    if said.argv[0] == "iscp-admin" and said.err.startswith("error: ") and said.status != ExitStatus.WRONG_USAGE:
        assert said.err.count("  remedy: ") == faults, said
        assert said.err.count("  field: ") == faults or said.status == 3, said


def tried(program: str, leaf: Leaf) -> bool:
    return (program, *leaf.words) not in LASTING


@pytest.mark.parametrize("program", GROUPS)
def test_a_value_that_is_wrong_is_refused(shell: Shell, program: str) -> None:
    for leaf in leaves(GROUPS[program]):
        for param in leaf.with_values():
            for value in wrong_of(param):
                check(shell, program, line(leaf, shell.values(leaf) | {str(param.name): value}), wrong=True)


@pytest.mark.parametrize("program", GROUPS)
def test_a_value_that_is_odd_is_taken_or_refused(shell: Shell, program: str) -> None:
    for leaf in filter(lambda leaf: tried(program, leaf), leaves(GROUPS[program])):
        for param in leaf.own_values():
            for value in ODD:
                check(shell, program, line(leaf, shell.values(leaf) | {str(param.name): value}), wrong=False)


@pytest.mark.parametrize("program", GROUPS)
def test_what_is_missing_and_what_is_too_much_is_wrong_usage(shell: Shell, program: str) -> None:
    for leaf in leaves(GROUPS[program]):
        values = shell.values(leaf)
        for param in leaf.command.params:
            if param.required:
                said = check(shell, program, line(leaf, values | {str(param.name): None}), wrong=True)
                assert said.status == 2, said
        for extra in (["--nope\x1b[31m", "x"], *([["a", "b", "c\x1b[31m"]] if not leaf.command.params else [])):
            assert check(shell, program, line(leaf, values, *extra), wrong=True).status == 2
        if not any(param.nargs == -1 for param in leaf.command.params):
            assert check(shell, program, [*line(leaf, values), "a", "b", "c\x1b[31m"], wrong=True).status == 2
    for words in {leaf.words[:-1] for leaf in leaves(GROUPS[program])}:
        assert check(shell, program, [*words, "nope\x1b[31m"], wrong=True).status == 2


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_views_that_is_wrong_is_refused(shell: Shell, name: str) -> None:
    """The one that is in order too: this node keeps no views."""
    path = str(shell.files / name)
    for argv in (["view", "apply", "-f", path], ["view", "import", path]):
        assert check(shell, "iscp-admin", [*argv, "--target-root", "/x"], wrong=True).status == 1
        assert check(shell, "iscp-admin", ["-o", "json", *argv, "--target-root", "/x"], wrong=True).status == 1


@pytest.mark.parametrize("name", FILES)
def test_a_job_file_that_is_wrong_is_refused(shell: Shell, name: str) -> None:
    path = str(shell.files / name)
    for argv in (["apply", "-f", path], ["job", "register", "-f", path]):
        assert check(shell, "iscp-admin", argv, wrong=True).status == 1
        assert check(shell, "iscp-admin", ["-o", "json", *argv], wrong=True).status == 1


@pytest.mark.parametrize("path", ["", "nothing/here", "x" * 5_000, "/dev/full", "\x1b[31m"])
def test_a_job_file_that_cannot_be_read_is_refused(shell: Shell, path: str) -> None:
    check(shell, "iscp-admin", ["apply", "-f", path], wrong=True)


@st.composite
def spoilt(draw: st.DrawFn, shell: Shell) -> tuple[str, list[str]]:
    """A line with several faults: wrong and odd values, options twice, out of order, or cut off."""
    program, leaf = draw(st.sampled_from([each for each in LEAVES if tried(*each)]))
    values = shell.values(leaf)
    for param in draw(st.lists(st.sampled_from(leaf.with_values()), max_size=3)) if leaf.with_values() else []:
        values[str(param.name)] = draw(st.none() | st.sampled_from([*wrong_of(param), *ODD]))
    argv = line(leaf, values)
    flags = [each.opts[0] for each in leaf.flags() if each.name not in ENDLESS]
    more = draw(st.lists(st.sampled_from([*flags, *argv, "-o", "json", "--"]), max_size=3))
    argv = draw(st.permutations([*argv, *more])) if draw(st.booleans()) else [*argv, *more]
    head = draw(st.sampled_from([[], ["-o", "json"], ["-o", "yaml"]])) if program == "iscp-admin" else []
    return program, [*head, *argv]


def check_spoilt(shell: Shell, examples: int) -> None:
    @settings(max_examples=examples, derandomize=True, database=None)
    @given(st.data())
    def at_random(data: st.DataObject) -> None:
        program, argv = data.draw(spoilt(shell))
        check(shell, program, argv, wrong=False)

    at_random()


def test_several_faults_at_once_are_taken_or_refused(shell: Shell) -> None:
    check_spoilt(shell, 200)


# A timeout that ends it within a draw is reported by hypothesis as a strategy that is not deterministic.
@pytest.mark.full
@pytest.mark.timeout(1800)
def test_very_many_faults_are_taken_or_refused(shell: Shell) -> None:
    check_spoilt(shell, 20_000)


def test_a_line_in_order_is_no_wrong_usage(shell: Shell) -> None:
    """The control: the lines that other tests spoil are no wrong usage."""
    for program, leaf in LEAVES:
        if tried(program, leaf):
            assert shell.run(program, line(leaf, shell.values(leaf))).status != 2, leaf
            shell.restore()
