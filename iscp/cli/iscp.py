"""The command `iscp`: nodes, what starts them, feeds and indexes. The needs of a subcommand are loaded only when that
one runs.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from iscp import __version__
from iscp.cli.changefeed.changefeed_commands import feed
from iscp.cli.cluster.token_commands import node_token
from iscp.cli.index.index_commands import index, search
from iscp.cli.node.node_commands import certs, config_option, log
from iscp.cli.run.run_command import run
from iscp.cli.shell import render
from iscp.cli.shell.arguments import WholeNumber, anywhere_output, output_options
from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.program_end import run_to_end
from iscp.cli.shell.root_group import ExitStatus, RootGroup, pages_argument, shell_argument, show_script, show_written
from iscp.cli.shell.terminal import say
from iscp.model.settings.config import ADMIN_PORT
from iscp.model.values.errors import EXIT_JOB_LOG_DAMAGED, IscpError, JobLogDamaged

_EXTRAS = {"demo": "demo", "search": "search", "index": "search"}
"""The extra that a command needs, where it is not that of nodes."""

NODES_MAX = 20
"""Nodes that `iscp up` starts on one machine; more are refused."""

CHAOS_NODES_MIN = 2
"""Nodes that `demo --chaos` needs, as something has to go on; fewer are refused."""

DEMO_DAYS = 120
"""Days that `demo` replays by default: less than four minutes on two busy cores."""


_nodes = click.option(
    "--nodes",
    type=WholeNumber(1, NODES_MAX),
    default=1,
    show_default=True,
    metavar="N",
    help="How many nodes.",
)


class _NodeRoot(RootGroup):
    """Exit status 0, 1 if something failed, 2 for wrong usage, 3 if the job log is lost or damaged."""

    own_words = True

    def status_of(self, error: IscpError) -> int:
        return EXIT_JOB_LOG_DAMAGED if isinstance(error, JobLogDamaged) else ExitStatus.FAILED

    def extra_of(self, command: str) -> str:
        return _EXTRAS.get(command, "node")


@click.group(cls=_NodeRoot, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="iscp")
@output_options
def iscp() -> None:
    """Keeps what is derived from Delta Lake tables fresh."""


iscp.add_command(feed)
iscp.add_command(log)
iscp.add_command(certs)
iscp.add_command(node_token)
iscp.add_command(run)
iscp.add_command(search)
iscp.add_command(index)


F = TypeVar("F", bound=Callable[..., Any])


def _data(about: str) -> Callable[[F], F]:
    return click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path(".iscp"),
        show_default=True,
        metavar="DIR",
        help=about,
    )


@iscp.command()
@config_option("A TOML file; ISCP_* variables win over it.")
def node(file: Path | None) -> None:
    """Run one node until SIGTERM."""
    from iscp.app.settings import check_files, load_settings
    from iscp.notices.log_ring import LogRing, configure_logging, log_uncaught
    from iscp.system.late_imports import do_without_pandas

    config = check_files(load_settings(file, os.environ), os.environ)
    ring = LogRing(config.node_id, time.time_ns(), time.time)
    configure_logging(config.log_format, config.log_level, {"node": config.node_id}, ring=ring)
    log_uncaught()
    if not config.allows_foreign_code:  # which may use pandas
        do_without_pandas()
    # The rest is loaded only for a configuration that is valid.
    from iscp.app.compose import run_node

    sys.exit(run_node(config, ring))


@iscp.command()
@_nodes
@_data("Where everything is kept.")
@click.option(
    "--port",
    type=WholeNumber(0, 65_535),
    metavar="P",
    help="Where the first node listens; 0: any free port.  [default: as the last time, or 7430]",
)
@anywhere_output
def up(invocation: Invocation, /, nodes: int, data: Path, port: int | None) -> None:
    """Start etcd and nodes on this machine, and keep them up until Ctrl-C.

    With `-o json` one line of JSON says that they are ready, and where.
    """
    from iscp.cli.node.up import run

    sys.exit(run(data, port, invocation.output, nodes))


@iscp.command()
@_data("The directory of `iscp up`.")
@click.option("--port", type=WholeNumber(1, 65_535), default=ADMIN_PORT, show_default=True, metavar="P")
@config_option("A node's configuration, to look at what that node needs instead.", exists=True)
@anywhere_output
def doctor(invocation: Invocation, /, data: Path, port: int, file: Path | None) -> None:
    """Check whether this machine can run a node, and say what to do if not.

    Exit status 0 if nothing stands in the way, also if there are warnings; 1 if there is a fault.
    """
    from iscp.cli.doctor.doctor_command import run

    sys.exit(run(data, file, port, invocation.output))


@iscp.command()
@_nodes
@click.option(
    "--days",
    type=WholeNumber(1, 365),
    default=DEMO_DAYS,
    show_default=True,
    metavar="D",
    help="How many days of 2013, from its first.",
)
@click.option("--chaos", is_flag=True, help="Kill a node every few seconds; needs --nodes 2 or more.")
@anywhere_output
def demo(invocation: Invocation, /, nodes: int, days: int, chaos: bool) -> None:
    """Replay the flights of New York in 2013, and check what is derived from them row by row."""
    if chaos and nodes < CHAOS_NODES_MIN:
        raise click.UsageError(
            f"--chaos kills nodes, and somebody has to go on: give --nodes {CHAOS_NODES_MIN} or more"
        )
    from iscp.cli.demo.command import run

    sys.exit(run(days, invocation.output, nodes, chaos))


@iscp.command()
@anywhere_output
def version(invocation: Invocation, /) -> None:
    """Show the version of this program."""
    if not render.show({"client": __version__}, invocation.output):
        say(f"client {__version__}")


@iscp.command()
@shell_argument
@anywhere_output
def completion(invocation: Invocation, /, shell: str) -> None:
    """Print a script that completes this command in a shell.

    As in: eval "$(iscp completion bash)"
    """
    show_script(shell, iscp, "iscp", invocation.output)


@iscp.command()
@pages_argument
@anywhere_output
def man(invocation: Invocation, /, directory: Path) -> None:
    """Write the manual pages of all commands into DIR, as in ~/.local/share/man/man1."""
    show_written(iscp, "iscp", directory, invocation.output)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point, of `sys.argv` where no arguments are given."""
    iscp(arguments, prog_name="iscp")


if __name__ == "__main__":
    run_to_end(main)
