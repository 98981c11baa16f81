"""Proves that no error that a run can meet names a command that only a cluster has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from iscp.core.run.run_words import FULL, words_of_a_run

ROOT = Path(__file__).parents[4] / "iscp"

ROOMS = (
    *("consumers", "views", "index", "runtime/iteration", "runtime/local", "adapters/delta", "core/spec", "core/run"),
    "page/boards",
)
"""The rooms of what runs use of the code that clusters use too."""

OF_CLUSTERS = (
    *("adapters/delta/joblog", "core/spec/spec_patch.py", "core/run/run_words.py"),
    "page/boards/cluster_board.py",
)
"""Parts of those rooms that a run does not use: the job log, changes of registered jobs, the board of a cluster; and
the words themselves.
"""

OF_A_CLUSTER = re.compile(r"iscp-admin|`job |[Rr]esync|[Rr]esume the|[Rr]egister (the|a|it) |\bthe nodes?\b")


def texts(tree: ast.Module) -> Iterator[str]:
    """Return the texts of a module that are no docstrings, with `{}` for what is put in."""
    parts = [each for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for each in node.values]
    left_out = {id(each) for each in parts}
    left_out |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(each.value) if isinstance(each, ast.Constant) else "{}" for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.value


def named() -> list[tuple[str, str]]:
    """Return the texts that name what only a cluster has, with their modules."""
    modules = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    places = {path: path.relative_to(ROOT).as_posix() for path in modules}
    return [
        (place, text)
        for path, place in places.items()
        if not place.startswith(OF_CLUSTERS)
        for text in texts(ast.parse(path.read_text()))
        if OF_A_CLUSTER.search(text) and " " in text  # a verb alone is no sentence
    ]


def test_every_remedy_that_names_what_a_cluster_has_is_said_otherwise_in_a_run() -> None:
    found = named()
    assert len(found) > 25, "they are found"
    left = {place: words for place, text in found if OF_A_CLUSTER.search(words := words_of_a_run(text))}
    assert left == {}


@pytest.mark.parametrize(
    ("of_a_cluster", "of_a_run"),
    [
        ("Bring it back and resume the job", "Bring it back and run the job again"),
        ("`iscp-admin notify` has the view brought to them", "A refresh has the view brought to them"),
        ("Have it built by `iscp-admin job resync`", f"Have it built by {FULL}"),
        ("or `iscp-admin job resync` it with another query", f"or give it, by {FULL}, another query"),
        ("Restore what is gone, or resync the job", f"Restore what is gone, or build its target again by {FULL}"),
        ("the kind changefeed; see `iscp-admin job list`", "the kind changefeed"),
        ("Repair it, on every node, and restart them", "Repair it, and run the job again"),
        ("Install it on every node, and restart them", "Install it, and run the job again"),
        ("Name a path that the node may write", "Name a path that you may write"),
        ("the disk is full", "the disk is full"),
    ],
)
def test_the_words_of_a_run(of_a_cluster: str, of_a_run: str) -> None:
    assert words_of_a_run(of_a_cluster) == of_a_run
