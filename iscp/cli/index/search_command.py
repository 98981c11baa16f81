"""`iscp search`: a search of an index on this machine, without a node."""

from __future__ import annotations

from typing import Any

import click

from iscp.cli.index.index_commands import show_dead_letters
from iscp.cli.index.search_options import OWN_OPTIONS, requested, search_options
from iscp.cli.index.search_output import show_answer
from iscp.cli.shell.arguments import TARGET, anywhere_output
from iscp.cli.shell.error_words import options_named
from iscp.cli.shell.invocation import Invocation


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
    from iscp.adapters.delta.storage.dataset_trial import try_datasets_as_user

    try_datasets_as_user()
    if dead_letters:
        show_dead_letters(uri, options["k"], invocation.output)
        return
    with options_named(own=OWN_OPTIONS):
        request = requested(uri, text, **options)
        from iscp.index.search.search_library import run_search

        answer = run_search(request)
    show_answer(answer, invocation.output)
