"""The page of all benchmarks: what each measures, by its own docstring, and how it is run again."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.site.tables import plain

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"

_HEAD = """\
# Benchmarks

[Performance](../performance.md) has what was measured. Run a benchmark
again with its command below, from the project's folder after `scripts/setup`:

- With `--json` the last line is one JSON object with all figures. Each figure is also a line of JSON on stderr as soon
  as it is measured, so a run that is cut off leaves what it had.
- `--help` shows the options, mostly by how much it can be made smaller or larger.
- Whatever is compared takes turns in one run. Figures of different runs are comparable only on a quiet machine.
- A test runs every benchmark at its smallest, so all of them can be run as they are here.
"""

_COMMAND = re.compile(r"`(python -m benchmarks\.\w+)([^`]*)`")


def page() -> str:
    """Return the page, by the names of the benchmarks."""
    lines = [_HEAD]
    for name, text in benchmarks().items():
        lines += [f"## {name}", "", *_described(text)]
    return "\n".join(lines)


def benchmarks() -> dict[str, str]:
    """Return the docstring of each module or package that is run by itself and prints figures, by its name."""
    modules = {path.stem: path for path in FOLDER.glob("*.py")}
    packages = {path.parent.name: path.with_name("__init__.py") for path in FOLDER.glob("*/__main__.py")}
    found = {}
    for name, path in sorted((modules | packages).items()):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        command = _COMMAND.search(text.partition("\n\n")[0])
        if command and command[1].endswith(f".{name}") and command[2].startswith((" [--", " --")):
            found[name] = text
    return found


def _described(text: str) -> Iterator[str]:
    """Yield the command of a docstring, then its sentences and its list of figures."""
    first, _, rest = text.partition("\n\n")
    found = _COMMAND.search(first)
    assert found is not None, text
    yield from ("```text", f"{found[1]}{found[2]}", "```", "")
    subject, colon, _ = " ".join(first.split()).partition(f": `{found[1]}")
    yield from (plain(subject + "." if colon else first), "")
    for paragraph in filter(None, rest.split("\n\n")):
        if paragraph.startswith("- "):
            yield from (f"- {plain(point)}" for point in re.split(r"^- ", paragraph, flags=re.MULTILINE)[1:])
            yield ""
        else:
            yield from (plain(paragraph), "")
