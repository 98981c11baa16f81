"""The command group `iscp index`: what an index is, read on this machine without a node."""

from __future__ import annotations

import dataclasses

import click

from iscp.cli.shell import render
from iscp.cli.shell.arguments import TARGET, anywhere_output
from iscp.cli.shell.drawing import pairs, table
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.terminal import json_text, say


@click.group()
def index() -> None:
    """See what an index is."""


@index.command()
@click.argument("uri", type=TARGET, metavar="URI")
@anywhere_output
def show(invocation: Invocation, /, uri: str) -> None:
    """Show the index at URI: what it indexes, how far it is, its rows, and what it is made of."""
    from iscp.adapters.delta.storage.dataset_trial import try_datasets_as_user
    from iscp.index.search.index_overview import read_overview

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
    from iscp.index.search.index_overview import read_dead_letters

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
