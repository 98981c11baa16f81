"""The entry points of the programs `iscp` and `iscp-admin`: Ctrl-C ends them in order also while their modules load."""

from __future__ import annotations

from iscp.cli.shell.program_end import end_at_once, run_to_end


def iscp() -> None:
    with end_at_once():
        from iscp.cli.iscp import main
    run_to_end(main)


def iscp_admin() -> None:
    with end_at_once():
        from iscp.cli.iscp_admin import main
    run_to_end(main)
