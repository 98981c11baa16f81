"""What the documents show is what is printed, word for word: each block is held to the code, or says that it is not."""

from __future__ import annotations

import contextlib
import io
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from iscp.cli.iscp_admin import cli
from iscp.cli.run.run_output import outcome_words, show_line, show_summary
from iscp.cli.shell.render import progress_lines
from iscp.model.run.run_plan import ResultState, RunResult
from iscp.model.spec.spec_parsing import parse_spec
from iscp.model.values.progress import RunProgress
from tests.fakes.fuzzed_node import FuzzedNode

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- not checked: (?P<why>[^\n]+) -->\n)?^```(?P<language>\w*)\n(?P<body>.*?)^```", re.M | re.S
)
ERROR = re.compile(r"^error: (?P<text>.+)$", re.MULTILINE)

READ_ELSEWHERE = frozenset({"sh", "bash", "python", "py", "toml", "yaml", "ini", "sql", "mermaid"})
"""What is typed, run, read or drawn: `test_docs.py` and the tests of the examples hold it to the code."""

UNCHECKED = 7
"""Blocks that nothing holds to the code; one more has to be counted here."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A block of a document, and why it is not checked where it says so."""

    document: str
    text: str
    why: str


def shown(path: Path) -> Iterator[Shown]:
    for found in BLOCK.finditer(path.read_text()):
        if found["language"] not in READ_ELSEWHERE:
            yield Shown(path.relative_to(ROOT).as_posix(), found["body"], found["why"] or "")


def shown_everywhere() -> list[Shown]:
    return [each for path in DOCUMENTS for each in shown(path)]


def is_printed(block: Shown, node: FuzzedNode) -> None:
    """As `job register` refuses a table that is not there."""
    table = ERROR.findall(block.text)[0].split()[0]
    given = ["--table", table, "--name", "copy", "--target", str(node.lake / "copy"), "--key", "id"]
    answer = CliRunner().invoke(cli, ["--endpoint", node.address, "job", "register", *given])
    assert (answer.stdout, answer.stderr) == ("", block.text)


def is_a_spec(block: Shown, node: FuzzedNode) -> None:
    assert parse_spec(block.text)


def is_the_order_of_layers(block: Shown, node: FuzzedNode) -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each["type"] == "layers")
    assert block.text.strip() == " > ".join(layers).replace("iscp.", "")


def is_the_progress_of(block: Shown, node: FuzzedNode) -> None:
    begun = RunProgress("apply", 0.0, elapsed_s=42.0, tasks=120, tasks_done=37, left_s=31.5)
    read = replace(begun, rows_read=12_000_000, bytes_read=840_000_000, rows_per_s=285_714.0, bytes_per_s=20e6)
    written = replace(read, rows_written=4_000_000, bytes_written=210_500_000, rows_total=10_000_000)
    lines = block.text.removeprefix("progress").splitlines()
    assert [line.strip() for line in lines] == progress_lines(written)


def is_printed_by_a_run(block: Shown, node: FuzzedNode) -> None:
    common: dict[str, Any] = {
        "account": "default",
        "table": "/lake/orders",
        "state": ResultState.UPDATED,
        "to_version": 0,
    }
    first = RunResult("copy", kind="replica", target="/copy", strategy="snapshot", rows=1_000, seconds=0.14, **common)
    need = "its query is analyzed; all rows are computed (the first build)"
    second = RunResult(
        "totals",
        kind="view",
        target="/lake/totals",
        strategy="full",
        reason="the first build",
        rows=40,
        seconds=2.38,
        spark=need,
        started_spark=True,
        **common,
    )
    with contextlib.redirect_stdout(io.StringIO()) as said:
        for place, each in enumerate((first, second), 1):
            show_line(f"{place} of 2  {each.name:<6}", each.state.value, 7, outcome_words(each))
        show_summary([first, second], 8.4)
    assert said.getvalue() == block.text


CHECKS: Mapping[str, Callable[[Shown, FuzzedNode], None]] = {
    "error: ": is_printed,
    '{"trigger": ': is_a_spec,
    "progress  ": is_the_progress_of,
    "1 of 2  copy": is_printed_by_a_run,
    "lake > cli > app": is_the_order_of_layers,
}
"""By how a block begins."""


def checks_of(block: Shown) -> list[Callable[[Shown, FuzzedNode], None]]:
    return [check for begins, check in CHECKS.items() if block.text.startswith(begins)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FuzzedNode]:
    with contextlib.closing(FuzzedNode(tmp_path_factory.mktemp("lake"))) as node:
        yield node


def test_what_is_shown_is_what_is_printed(node: FuzzedNode) -> None:
    checked = [(block, check) for block in shown_everywhere() if not block.why for check in checks_of(block)]
    assert {check for _, check in checked} == set(CHECKS.values())
    for block, check in checked:
        check(block, node)


def test_what_is_not_checked_says_so_and_is_counted() -> None:
    blocks = shown_everywhere()
    assert [block for block in blocks if not block.why and not checks_of(block)] == []
    assert len([block for block in blocks if block.why]) == UNCHECKED


def test_another_word_than_the_printed_one_is_found(node: FuzzedNode) -> None:
    (block,) = [each for each in shown_everywhere() if each.text.startswith("error: ")]
    with pytest.raises(AssertionError):
        is_printed(Shown(block.document, block.text.replace("is not a Delta table", "is no Delta table"), ""), node)


def test_every_error_that_a_document_cites_is_in_the_code() -> None:
    """Without its first word, which is what the error is about."""
    code = " ".join(path.read_text() for path in (ROOT / "iscp").rglob("*.py"))
    for path in DOCUMENTS:
        for text in ERROR.findall(path.read_text()):
            assert text.partition(" ")[2] in code, f"{path.name}: {text}"
