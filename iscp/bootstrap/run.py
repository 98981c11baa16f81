"""A node's process: Spark and the node are started, supervised, and stopped by a signal."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

from iscp.adapters.delta.spark.session import SparkRuntime
from iscp.adapters.delta.storage.dataset_trial import try_datasets
from iscp.adapters.delta.storage.s3_settings import enter_s3
from iscp.adapters.system.crash_ledger import CrashLedger
from iscp.adapters.system.failpoints import EnvironmentFailpoints
from iscp.adapters.system.open_files import files_needed, raise_open_files_limit
from iscp.adapters.system.scratch_directory import scratch_directory
from iscp.bootstrap.compose import compose
from iscp.bootstrap.configuration.spark_settings import spark_settings
from iscp.bootstrap.foundation import Foundation
from iscp.bootstrap.self_tests import run_self_tests
from iscp.core.settings.config import NodeConfig
from iscp.core.values.members import NODES_MAX
from iscp.ports.engine import NO_DEATHS, NodeDeaths
from iscp.ports.node_log import NodeLog
from iscp.runtime.loop.gc_tuning import collect_rarely
from iscp.runtime.node.node import Node
from iscp.views.analysis.separate_analysis import SeparateAnalysis, settings_apart

log = logging.getLogger(__name__)

JVM_LOOK_S = 0.5
"""Pause between two checks whether Spark still runs; when it does not, the node ends."""

KILL_AFTER_S = 8.0
"""Seconds that a node may live beyond the time that an orderly stop may take; then the process ends as it is."""


def run_node(config: NodeConfig, node_log: NodeLog) -> int:
    """Run one node until SIGTERM or SIGINT; the exit status (1: it could not go on and wants to be restarted).

    `node_log`: what this process keeps of its log.
    """
    stop = threading.Event()
    broken = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def on_broken(error: Exception) -> None:
        log.critical("node.broken", extra={"error": str(error)})
        broken.set()
        stop.set()

    _raise_open_files_limit()
    given = nullcontext(Path(config.data_dir)) if config.data_dir else scratch_directory("iscp-node-")
    with given as work_dir:
        enter_s3(config.storage.s3)  # before the JVM and other children: they inherit it
        settings = spark_settings(config, work_dir)
        spark = SparkRuntime.start(settings)
        try:
            analysis = SeparateAnalysis(settings_apart(settings, config.spark.analysis_memory_mb))
            with closing(analysis), _deaths(config) as deaths:
                tested = run_self_tests(config, spark)
                foundation = Foundation.lay(
                    config,
                    spark,
                    failpoints=EnvironmentFailpoints(),
                    on_broken=on_broken,
                    tested=tested,
                    node_log=node_log,
                    deaths=deaths,
                    analysis=analysis,
                )
                _run(compose(foundation), foundation, stop, broken)
        finally:
            spark.stop()
    return 1 if broken.is_set() else 0


def _run(node: Node, foundation: Foundation, stop: threading.Event, broken: threading.Event) -> None:
    collect_rarely()
    try:
        node.start(stop)
    except BaseException:
        _exit_after(KILL_AFTER_S)
        node.stop(0.0)
        raise
    while not stop.wait(JVM_LOOK_S):
        if not foundation.spark.alive():
            foundation.on_broken(RuntimeError("Spark has ended: its JVM, or its application on the cluster"))
    _exit_after(foundation.config.stop_timeout_s + KILL_AFTER_S)
    node.stop(0.0 if broken.is_set() else foundation.config.stop_timeout_s)


@contextmanager
def _deaths(config: NodeConfig) -> Iterator[NodeDeaths]:
    """Yield the jobs' deaths, stored if the node has a directory that it has after a restart too."""
    ledger = None
    try_datasets(Path(config.data_dir) / "index-files" if config.data_dir else None)
    if config.data_dir:
        try:
            ledger = CrashLedger(Path(config.data_dir) / "crashes", time.time)
        except OSError as error:  # it runs without
            log.warning("node.deaths_not_kept", extra={"error": str(error)})
    if ledger is None:
        yield NO_DEATHS
        return
    with closing(ledger):
        yield ledger


def _raise_open_files_limit() -> None:
    """Raise the limit before the cluster has grown so far: one that is too large by now refuses the node as it
    starts.
    """
    limit, needed = raise_open_files_limit(), files_needed(NODES_MAX)
    if limit < needed:
        log.warning("node.open_files_low", extra={"limit": limit, "needed": needed, "nodes": NODES_MAX})


def _exit_after(seconds: float) -> None:
    """However a stop may hang, the process ends: its lease then runs out like a dead node's."""

    def end() -> None:
        log.critical("node.stop_hangs")
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
