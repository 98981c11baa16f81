"""Commands about indexes: `iscp index` and `iscp search`, which read an index on this machine without a node, and
`iscp-admin search`, which has a node search.

The two searches share their options and the form of their answers.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

from iscp.cli.shell import render
from iscp.cli.shell.arguments import (
    ACCOUNT,
    ACCOUNT_VARIABLE,
    COLUMNS,
    DURATION,
    TARGET,
    VERSION,
    WholeNumber,
    anywhere_output,
    invocation,
)
from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.root_group import options_named
from iscp.cli.shell.terminal import json_text, pairs, say, say_marked, table
from iscp.model.api.api_requests import (
    K_MAX,
    VECTOR_NUMBERS_MAX,
    SearchAnswer,
    SearchHit,
    SearchRequest,
    SearchWeights,
    fragment_parts,
)
from iscp.model.values.untrusted_values import json_value, one_line

# --- what an index is -------------------------------------------------------------------------------------------------


@click.group()
def index() -> None:
    """See what an index is."""


@index.command()
@click.argument("uri", type=TARGET, metavar="URI")
@anywhere_output
def show(invocation: Invocation, /, uri: str) -> None:
    """Show the index at URI: what it indexes, how far it is, its rows, and what it is made of."""
    from iscp.index.search.search_library import read_overview
    from iscp.storage.dataset_trial import try_datasets_as_user

    try_datasets_as_user()

    found = read_overview(uri)
    if render.show(dataclasses.asdict(found), invocation.output):
        return
    at = render.moment(found.version_at_s) if found.version_at_s else ""
    pairs(
        {
            "index": found.uri,
            "kind": found.kind,
            "key": ", ".join(found.key),
            **{name: value if isinstance(value, str) else json_text(value) for name, value in found.options.items()},
            "source": f"version {found.version}{at and f', of {at}'}" if found.version >= 0 else "being built",
            "rows": str(found.rows),
            "dead letters": f"{found.faults}; see `iscp search --dead-letters`" if found.faults else "",
            "vectors": str(found.vectors) if found.kind != "fulltext" else "",
            "fragments": f"{found.fragments}, with {found.dead_rows} dead rows",
            "index version": f"{found.index_version}, with {found.versions} kept",
            "bytes": f"{found.bytes:,}",
        }
    )
    say()
    parts = [
        (each.name, str(each.rows), str(each.segments), str(each.fresh_rows), str(each.indexed_from))
        for each in found.parts
    ]
    table(("PART", "ROWS", "SEGMENTS", "FRESH ROWS", "INDEXED FROM"), parts, wide=invocation.wide)


def show_dead_letters(uri: str, limit: int, output: str) -> None:
    """Show rows that could not be indexed, by their keys."""
    from iscp.index.search.search_library import read_dead_letters

    found = read_dead_letters(uri, limit)
    if render.show([dataclasses.asdict(each) for each in found], output):
        return
    if not found:
        say("no row has a fault", err=True)
        return
    names = list(found[0].key)
    rows = [(*(_text(each.key.get(name)) for name in names), each.fault) for each in found]
    table((*names, "WHY"), rows, wide=output == "wide")


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else json_text(value)


# --- options of searches ----------------------------------------------------------------------------------------------

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


# --- answers of searches ----------------------------------------------------------------------------------------------

CELL_CHARS = 60
"""Characters of a value in a table; the rest is cut off, unless all is to be shown."""

SCORE = "_score"
"""The heading of scores, which no column of an index has."""


def answer_row(answer: SearchAnswer) -> render.Row:
    """Return the answer as JSON has it."""
    row: render.Row = json_value(dataclasses.asdict(answer))
    return row


def show_answer(answer: SearchAnswer, output: str) -> None:
    """Show the hits as a table, and at which version of the source they are; otherwise as `output` says."""
    if render.show(answer_row(answer), output):
        return
    wide = output == "wide"
    if answer.hits:
        _draw_hits(answer.hits, wide)
    for each in answer.cut:
        say(f"{each} stands for more words than were searched for", err=True)
    if not answer.proven:
        say("another row may be nearer: not all vectors were compared", err=True)
    waited = f", after {answer.waited_ms:.0f} ms of waiting" if answer.waited_ms >= 1 else ""
    count = f"{len(answer.hits)} hit{'' if len(answer.hits) == 1 else 's'}"
    say(f"{count} at version {answer.version} of the source, in {answer.took_ms:.1f} ms{waited}", err=True)


def _draw_hits(hits: tuple[SearchHit, ...], wide: bool) -> None:
    names = list(dict.fromkeys(name for hit in hits for name in (*hit.key, *hit.columns)))
    rows = [
        (f"{hit.score:.4f}", *(_cell({**hit.columns, **hit.key}.get(name), wide) for name in names)) for hit in hits
    ]
    table((SCORE, *names), rows, spare=tuple(reversed([name for name in names if name not in hits[0].key])), wide=wide)
    for hit in hits:
        if hit.highlights or hit.explanation:
            say()
            say(one_line(" ".join(f"{name}={json.dumps(json_value(value))}" for name, value in hit.key.items())))
        for name, fragments in hit.highlights.items():
            for fragment in fragments:
                say_marked(f"  {one_line(name)}: ", fragment_parts(fragment), one_line(fragment))
        for line in hit.explanation.splitlines():
            say(f"  {one_line(line) if line.strip() else ''}".rstrip())


def _cell(value: Any, wide: bool) -> str:
    plain = json_value(value)
    text = plain if isinstance(plain, str) else "" if plain is None else json.dumps(plain, ensure_ascii=False)
    text = one_line(text)
    return text if wide or len(text) <= CELL_CHARS else f"{text[: CELL_CHARS - 1]}…"


# --- searches by a node, and on this machine --------------------------------------------------------------------------


@click.command(name="search")
@click.argument("uri", type=TARGET, metavar="URI")
@click.argument("text", default="", metavar="[TEXT]")
@search_options
@click.option(
    "--account",
    type=ACCOUNT,
    default="",
    envvar=ACCOUNT_VARIABLE,
    metavar="A",
    help="The tenant whose index it is.  [default: one's own, or any for who may see all]",
)
@invocation
def node_search(invocation: Invocation, /, uri: str, text: str, account: str, **options: Any) -> None:
    """Have a node search the index at URI, the target of a job of the kind fulltext, vector or search.

    Where the index can be read from this machine, `iscp search` needs no node. TEXT is as there.
    """
    with options_named(own=OWN_OPTIONS):
        request = requested(uri, text, **options)
        with invocation.client() as client:
            answer = client.search(
                request.uri,
                request.text,
                vector=request.vector,
                k=request.k,
                filter=request.filter,
                min_version=request.min_version,
                wait_s=request.wait_s,
                columns=request.columns,
                highlight=request.highlight,
                explain=request.explain,
                weights=request.weights,
                account=account,
            )
    show_answer(answer, invocation.output)


@click.command()
@click.argument("uri", type=TARGET, metavar="URI")
@click.argument("text", default="", metavar="[TEXT]")
@search_options
@click.option("--dead-letters", is_flag=True, help="Show up to K rows that could not be indexed, and why, instead.")
@anywhere_output
def search(invocation: Invocation, /, uri: str, text: str, dead_letters: bool, **options: Any) -> None:
    """Search the index at URI, the target of a job of the kind fulltext, vector or search.

    TEXT is a query: words, "a phrase", +must -not, title:fox, fo*, foks~1; or what an index of vectors embeds.
    """
    from iscp.storage.dataset_trial import try_datasets_as_user
    from iscp.system.late_imports import do_without_pandas

    do_without_pandas()
    try_datasets_as_user()
    if dead_letters:
        show_dead_letters(uri, options["k"], invocation.output)
        return
    with options_named(own=OWN_OPTIONS):
        request = requested(uri, text, **options)
        from iscp.index.search.search_library import run_search

        answer = run_search(request)
    show_answer(answer, invocation.output)
