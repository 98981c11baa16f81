"""The wheel as pip installs it, without an extra, in an environment of its own. Needs the network."""

from __future__ import annotations

import re
import subprocess
import sys
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

from iscp.model.values.untrusted_values import EXTRA_MODULES

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 250.0
RELATIVE_LINK = re.compile(r"\]\((?!https?://|#)|(?:src|href)=[\"'](?!https?://|#)")
NAMED_FILE = re.compile(r"(?<![\w./-])((?:docs|examples|scripts|tests|jvm|iscp)/[\w./-]*\w)")

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


def run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, cwd=cwd)


def succeed(*command: str | Path, cwd: Path | None = None) -> str:
    ended = run(*command, cwd=cwd)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the environment's programs are."""
    where = tmp_path_factory.mktemp("plain") / "venv" / "bin"
    succeed(sys.executable, "-m", "venv", where.parent)
    return where


@pytest.fixture(scope="module")
def wheel(programs: Path) -> Path:
    """Built by the build backend, as pip does it."""
    out = programs.parent.parent
    succeed(programs / "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", out, ROOT)
    (built,) = out.glob("iscp_delta-*.whl")
    return built


@pytest.fixture(scope="module")
def plain(programs: Path, wheel: Path) -> Path:
    """The programs, with the wheel installed."""
    succeed(programs / "pip", "install", "--quiet", wheel)
    code = f"from importlib.util import find_spec; print([name for name in {EXTRA_MODULES} if find_spec(name)])"
    assert succeed(programs / "python", "-c", code) == "[]\n"
    return programs


def test_the_help_of_both_programs_is_shown(plain: Path) -> None:
    for name in ("iscp", "iscp-admin"):
        assert succeed(plain / name, "--help").startswith(f"Usage: {name} ")


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [(("up",), "node"), (("node",), "node"), (("demo",), "demo"), (("feed", "tail", "feed"), "node")],
)
def test_what_needs_an_extra_says_so_in_one_sentence(
    plain: Path, tmp_path: Path, arguments: tuple[str, ...], extra: str
) -> None:
    ended = run(plain / "iscp", *arguments, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert re.fullmatch(
        rf"error: the Python module [\w.]+ is not installed\. Run: pip install 'iscp-delta\[{extra}\]'\n", ended.stderr
    )


def test_the_client_the_errors_and_changefeeds_can_be_imported(plain: Path, tmp_path: Path) -> None:
    code = "import iscp, iscp.errors, iscp.aio, iscp.changefeed; iscp.Client('127.0.0.1:1').close(); iscp.aio.Client"
    succeed(plain / "python", "-c", code, cwd=tmp_path)
    ended = run(plain / "python", "-c", "from iscp import changefeed; changefeed.create", cwd=tmp_path)
    assert ended.stderr.endswith("is not installed. Run: pip install 'iscp-delta[node]'\n")


def test_the_manual_pages_can_be_written(plain: Path, tmp_path: Path) -> None:
    for name in ("iscp", "iscp-admin"):
        succeed(plain / name, "man", tmp_path)
        assert (tmp_path / f"{name}.1").read_text().startswith(".TH ")


def metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(files.read(name).decode())


def test_the_description_can_be_read_outside_of_the_repository(wheel: Path) -> None:
    described = metadata(wheel)
    assert described["Description-Content-Type"] == "text/markdown"
    text = str(described.get_payload())
    assert RELATIVE_LINK.search((ROOT / "README.md").read_text())
    assert RELATIVE_LINK.findall(text) == []
    assert text.startswith("# iscp\n")
    assert "`docs/operations.md`" in text
    assert "recording" not in text  # what is said of a picture goes with it
    assert text.count("## Try it") == 1


def test_the_description_says_where_files_are_before_it_names_the_first(wheel: Path) -> None:
    text = str(metadata(wheel).get_payload())
    told = text.index("The files that are named here are those of the source distribution")
    named = [found for found in NAMED_FILE.finditer(text) if not found[1].startswith("iscp/")]
    assert len(named) > 20
    assert min(found.start() for found in named) > told
    assert [found[1] for found in named if not (ROOT / found[1]).exists()] == []
