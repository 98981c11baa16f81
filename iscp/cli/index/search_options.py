"""The options of searches, on this machine and by a node."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

from iscp.cli.shell.arguments import COLUMNS, DURATION, VERSION, WholeNumber
from iscp.core.api.search_views import K_MAX, VECTOR_NUMBERS_MAX, SearchRequest, SearchWeights

F = TypeVar("F", bound=Callable[..., Any])

VECTOR_CHARS_MAX = 1_000_000
"""Characters of a vector's JSON; a longer one is refused."""


class VectorType(click.ParamType):  # type: ignore[type-arg]
    """A vector as JSON, or the file that has it."""

    name = "vector"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        text = str(value)
        source = "the vector" if text.lstrip().startswith("[") else text
        try:
            if source == text:
                with click.open_file(text, encoding="utf-8") as stream:
                    text = stream.read(VECTOR_CHARS_MAX + 1)
            if len(text) > VECTOR_CHARS_MAX:
                raise ValueError(f"it has more than {VECTOR_CHARS_MAX} characters")
            found = json.loads(text)
            if not isinstance(found, list) or not 0 < len(found) <= VECTOR_NUMBERS_MAX:
                raise ValueError(f"it is no list of 1 to {VECTOR_NUMBERS_MAX} numbers")
            if not all(type(each) in (int, float) for each in found):
                raise ValueError("it has something in it that is no number")
            return tuple(map(float, found))
        except OSError as error:
            self.fail(f"{source} cannot be read: {error.strerror or error}. Name a file, or give it as [0.1, …]")
        except (ValueError, OverflowError, RecursionError) as error:
            self.fail(f"{source} is no vector: {error}. Give it as [0.1, …]", param, ctx)


class FactorType(click.ParamType):  # type: ignore[type-arg]
    """A number of 0 or more; bounds are those of searches."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number. Give it as in 2 or 0.5", param, ctx)


_OPTIONS = (
    click.option("-k", "k", type=WholeNumber(1, K_MAX), default=10, show_default=True, help="How many hits at most."),
    click.option("--filter", "condition", default="", metavar="SQL", help="Only rows for which this holds."),
    click.option("--vector", type=VectorType(), metavar="FILE|JSON", help="A query's vector, as [0.1, …]; - is stdin."),
    click.option("--columns", type=COLUMNS, metavar="a,b", help="Show these stored columns.  [default: all]"),
    click.option("--min-version", type=VERSION, metavar="V", help="The source's version that has to be in it."),
    click.option("--wait", "wait_s", type=DURATION, default="10s", show_default=True, help="For --min-version."),
    click.option("--highlight", is_flag=True, help="Show where words were found."),
    click.option("--explain", is_flag=True, help="Show how each score came about."),
    click.option("--text-weight", type=FactorType(), default=1.0, metavar="W", help="Of words, where both are sought."),
    click.option("--vector-weight", type=FactorType(), default=1.0, metavar="W", help="Of vectors.  [default: 1 each]"),
)


def search_options(command: F) -> F:
    """Give a command the options of a search, as `requested` takes them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def requested(
    uri: str,
    text: str,
    *,
    k: int,
    condition: str,
    vector: tuple[float, ...] | None,
    columns: tuple[str, ...] | None,
    min_version: int | None,
    wait_s: float,
    highlight: bool,
    explain: bool,
    text_weight: float,
    vector_weight: float,
) -> SearchRequest:
    """Return the search that a command line says. Raises InvalidRequest for what is out of bounds."""
    weights = SearchWeights(text_weight, vector_weight)
    return SearchRequest(
        uri, text, vector or (), k, condition, columns, min_version, wait_s, highlight, explain, weights
    )


OWN_OPTIONS = {
    "filter": "--filter",
    "columns": "--columns",
    "vector": "--vector",
    "min_version": "--min-version",
    "wait_s": "--wait",
    "timeout_s": "--wait",
    "weights.text": "--text-weight",
    "weights.vector": "--vector-weight",
    "weights": "--text-weight",
    "text": "TEXT",
    "query": "TEXT",
    "uri": "URI",
    "k": "-k",
}
"""The names of a search's fields on the command line, in the order in which the longer name comes first."""
