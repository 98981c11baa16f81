"""`iscp-admin search`: a search of an index by a node."""

from __future__ import annotations

from typing import Any

import click

from iscp.cli.index.search_options import OWN_OPTIONS, requested, search_options
from iscp.cli.index.search_output import show_answer
from iscp.cli.shell.arguments import ACCOUNT_VARIABLE, TARGET, invocation
from iscp.cli.shell.completion import ACCOUNT
from iscp.cli.shell.error_words import options_named
from iscp.cli.shell.invocation import Invocation


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
