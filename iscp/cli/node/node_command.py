"""`iscp node`: one node, until SIGTERM."""

from __future__ import annotations

import os
import time
from pathlib import Path

from iscp.app.settings import check_files, load_settings
from iscp.notices.log_ring import LogRing, configure_logging, log_uncaught
from iscp.system.late_imports import do_without_pandas


def run(file: Path | None) -> int:
    """Run the node that `file` and the environment describe; the exit status. Raises IscpError."""
    config = check_files(load_settings(file, os.environ), os.environ)
    ring = LogRing(config.node_id, time.time_ns(), time.time)
    configure_logging(config.log_format, config.log_level, {"node": config.node_id}, ring=ring)
    log_uncaught()
    if not config.allows_foreign_code:  # which may use pandas
        do_without_pandas()
    # The rest is loaded only for a configuration that is valid.
    from iscp.app.compose import run_node

    return run_node(config, ring)
