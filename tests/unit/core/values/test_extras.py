"""The libraries as after `pip install iscp-delta` alone: they can be imported, and say what the rest of them needs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from iscp.core.values.extras import EXTRA_MODULES

PLAIN = ("Conflict", "Cursor", "CursorBehind", "EtcdSettings", "FeedIncident", "InvalidRequest", "IscpError")
"""What needs no more than the client does; among others."""


def run(code: str) -> subprocess.CompletedProcess[str]:
    """In a Python that has none of the extras' modules."""
    blocked = f"import sys\nfor name in {EXTRA_MODULES}: sys.modules[name] = None\n"
    return subprocess.run([sys.executable, "-c", blocked + code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("module", "needs_extras"),
    [("iscp.changefeed", True), ("iscp.changefeed.spark", True), ("iscp.consumers.custom", False)],
)
def test_each_name_is_there_or_says_what_to_install(module: str, needs_extras: bool) -> None:
    code = (
        f"import {module} as module\n"
        "for name in module.__all__:\n"
        "    try: getattr(module, name)\n"
        "    except ModuleNotFoundError as error: print(error)\n"
        "    else: print(name)\n"
    )
    ended = run(code)
    assert ended.stderr == ""
    lines = ended.stdout.splitlines()
    refused = [line for line in lines if " " in line]
    assert bool(refused) is needs_extras
    for line in refused:
        assert re.fullmatch(
            rf"{module}\.\w+: the Python module [\w.]+ is not installed\. Run: pip install 'iscp-delta\[node\]'", line
        ), line
    if module == "iscp.changefeed":
        assert set(lines) >= set(PLAIN)


def test_a_call_ends_in_that_sentence_and_in_one_traceback() -> None:
    ended = run("from iscp import changefeed\nchangefeed.create('/feed', None)")
    assert ended.returncode == 1
    assert ended.stderr.count("Traceback") == 1
    assert re.search(
        r"\nModuleNotFoundError: iscp\.changefeed\.create: the Python module [\w.]+ is not installed\. "
        r"Run: pip install 'iscp-delta\[node\]'\n$",
        ended.stderr,
    )


def test_a_module_of_another_program_is_reported_as_it_is() -> None:
    ended = run("sys.modules['json'] = None\nfrom iscp import changefeed\nchangefeed.Cursor")
    assert "ModuleNotFoundError: import of json halted" in ended.stderr
    assert "pip install" not in ended.stderr


def test_no_module_of_an_extra_comes_without_it() -> None:
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    always = {re.split(r"[\[<>=~! ]", each)[0] for each in project["dependencies"]}
    assert len(always) >= 5
    assert always.isdisjoint(EXTRA_MODULES)
