"""`iscp up` with real etcd, and `tests.fakes.node_program` for a node: run it by its path."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from iscp.cli.node import up
from iscp.cli.shell.arguments import anywhere_output
from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.root_group import show_error
from iscp.model.values.errors import IscpError

COMMAND = (sys.executable, str(Path(__file__)))


def node_command(config: Path) -> list[str]:
    return [sys.executable, str(Path(__file__).with_name("node_program.py")), str(config)]


@click.command()
@click.option("--data", type=click.Path(path_type=Path), required=True)
@click.option("--port", type=int)
@click.option("--nodes", type=int, default=1)
@anywhere_output
def main(invocation: Invocation, /, data: Path, port: int | None, nodes: int) -> None:
    try:
        sys.exit(up.run(data, port, invocation.output, nodes, node_command))
    except IscpError as error:
        show_error(error, "table", lines=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
