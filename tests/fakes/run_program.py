"""Runs of `iscp run`, each a process of its own: a fork of this program, which has loaded all that runs need.

So a run costs what it does, and not the start of Python and the imports. Reads orders from stdin, a JSON object a line:
`arguments` of iscp, `directory`, `environ`, and the files `out` and `err` that get what the run says. Answers each with
the status that the run has ended with, negative for a signal. Nothing here uses what no fork may use after its parent.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any

from iscp.cli.iscp import main as iscp_main

LOADED = (
    "iscp.app.local_engine",
    "iscp.cli.job.job_file",
    "iscp.cli.run.run_output",
    "iscp.cli.run.run_output",
    "iscp.cli.view.definition_files",
    "iscp.consumers.changefeed.changefeed_kind",
    "iscp.consumers.replica.replica_kind",
    "iscp.consumers.view.view_kind",
)
"""Modules that runs would load one after the other."""


def main() -> None:
    for name in LOADED:
        import_module(name)
    while line := os.read(0, 1_000_000):
        order = json.loads(line)
        sys.stdout.flush()
        if not (child := os.fork()):
            _run(order)
            return
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _run(order: dict[str, Any]) -> None:
    os.chdir(order["directory"])
    os.environ.update(order["environ"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    out, err = (os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for name in ("out", "err"))
    for opened, place in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(opened, place)
        os.close(opened)
    iscp_main(order["arguments"])


if __name__ == "__main__":
    main()
