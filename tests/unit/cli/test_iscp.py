"""The command `iscp`: what it refuses, and what it does not load."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from iscp.cli.iscp import iscp

ISCP = (sys.executable, "-m", "iscp.cli.iscp")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("up", "--nodes", "0"), "1<=x<=20"),
        (("up", "--nodes", "x"), "'x' is not a valid integer.\n"),
        (("demo", "--nodes", "21"), "1<=x<=20"),
        (("demo", "--chaos"), "--nodes 2"),
    ],
)
def test_numbers_of_nodes_that_make_no_sense_are_wrong_usage(arguments: tuple[str, ...], complaint: str) -> None:
    result = CliRunner().invoke(iscp, arguments)
    assert result.exit_code == 2
    assert complaint in result.output


@pytest.mark.parametrize("arguments", [(), ("up",), ("node",), ("demo",), ("feed",), ("feed", "tail")])
def test_help_loads_neither_spark_nor_grpc(arguments: tuple[str, ...]) -> None:
    code = (
        "import sys; from iscp.cli.iscp import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'pyspark', 'grpc', 'deltalake', 'pyarrow', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code, *arguments, "--help"], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [(("up",), "node"), (("node",), "node"), (("demo",), "demo"), (("feed", "tail", "/feed"), "node")],
)
def test_what_needs_more_packages_says_which(tmp_path: Path, arguments: tuple[str, ...], extra: str) -> None:
    """As after `pip install iscp-delta` alone."""
    code = (
        "import sys\n"
        "for name in ('pyspark', 'pydantic', 'deltalake', 'pyarrow', 'numpy'): sys.modules[name] = None\n"
        "from iscp.cli.iscp import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", code, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (run.returncode, run.stdout) == (1, "")
    assert re.fullmatch(
        rf"error: the Python module \S+ is not installed. Run: pip install 'iscp-delta\[{extra}\]'\n", run.stderr
    )


@pytest.mark.parametrize(
    ("data", "environ", "words"),
    [
        ("/proc/foo", {}, r"error: /proc/foo cannot be written: .*\n  field: --data\n  remedy: .*"),
        (
            "data",
            {"ISCP_BACKOFF__BASE_S": "soon"},
            r"error: 'soon' will not do\n  field: backoff\.base_s\n  remedy: .*",
        ),
        (
            "data",
            {"ISCP_BOGUS": "1"},
            r"error: ISCP_BOGUS is not a setting\n  field: ISCP_BOGUS\n  remedy: Remove it, .*",
        ),
    ],
)
def test_a_start_that_cannot_be_is_refused_in_one_sentence(
    tmp_path: Path, data: str, environ: dict[str, str], words: str
) -> None:
    command = [*ISCP, "up", "--data", str(tmp_path / data)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environ)
    assert (run.returncode, run.stdout) == (1, "")
    assert re.fullmatch(words + "\n", run.stderr)


def test_a_bad_configuration_is_reported_with_status_1(tmp_path: Path) -> None:
    file = tmp_path / "iscp.toml"
    file.write_text('listen = "x"\nfoo = 1\n')
    run = subprocess.run([*ISCP, "node", "--config", file], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stdout == ""
    for path in ("listen", "foo", "node_id", "log.uri"):
        assert re.search(rf"\n  {path}:? ", run.stderr)
