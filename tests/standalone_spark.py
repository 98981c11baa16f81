"""Spark's own standalone cluster, of the Spark that is installed with pyspark: a master, workers, and their executors.

with standalone_spark(tmp_path) as cluster:      # a master and two workers, with two cores each
    settings = SparkSettings(work_dir=…, master=cluster.master, conf=cluster.conf)
    ...
    cluster.applications()                       # that run now, by the master
    cluster.work()                               # what executors have done, by Spark's own log of events
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from iscp.spark.java import find_java, spark_home
from iscp.system.child_process import end, spawn, tail
from iscp.system.http_exchange import LOOPBACK, free_port

START_WAIT_S = 120.0
STOP_WAIT_S = 10.0
ANSWER_WAIT_S = 30.0
POLL_S = 0.2
CORES = 2
"""Of each worker."""

EXECUTOR_MB = 768


@dataclass(slots=True)
class Work:
    """Tasks that succeeded, and their rows."""

    tasks: int = 0
    rows_read: int = 0
    rows_written: int = 0


@dataclass(frozen=True, slots=True)
class StandaloneSpark:
    master: str
    web_port: int
    events: Path
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def conf(self) -> dict[str, str]:
        """What a driver of this cluster needs beside the master's address."""
        return {
            "spark.driver.host": LOOPBACK,
            "spark.executor.memory": f"{EXECUTOR_MB}m",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": self.events.as_uri(),
        }

    @property
    def master_page(self) -> str:
        return f"http://{LOOPBACK}:{self.web_port}"

    def applications(self) -> list[dict[str, Any]]:
        """What runs, as the master has it."""
        found: list[dict[str, Any]] = _get(f"{self.master_page}/json/")["activeapps"]
        return found

    def live_workers(self) -> int:
        return sum(worker["state"] == "ALIVE" for worker in _get(f"{self.master_page}/json/")["workers"])

    def work(self) -> dict[tuple[str, str], Work]:
        """Of each application's executors, by both ids; an application's last events come with its end."""
        found: dict[tuple[str, str], Work] = defaultdict(Work)
        for file in self.events.rglob("events_*"):
            application = file.parent.name
            for line in file.read_text().splitlines():
                event = json.loads(line)
                if event["Event"] == "SparkListenerTaskEnd" and event["Task End Reason"]["Reason"] == "Success":
                    work, metrics = found[application, event["Task Info"]["Executor ID"]], event["Task Metrics"]
                    work.tasks += 1
                    work.rows_read += metrics["Input Metrics"]["Records Read"]
                    work.rows_written += metrics["Output Metrics"]["Records Written"]
        return dict(found)


@contextmanager
def standalone_spark(root: Path, workers: int = 2, **environ: str) -> Iterator[StandaloneSpark]:
    """On the loopback interface, for as long as it is needed; `environ` goes to all its processes."""
    port, web_port = free_port(), free_port()
    cluster = StandaloneSpark(f"spark://{LOOPBACK}:{port}", web_port, root / "events")
    cluster.events.mkdir(parents=True)
    run = _Runner(root, environ)
    master = run.start("master", "--host", LOOPBACK, "--port", str(port), "--webui-port", str(web_port))
    try:
        _await("the master", master, root / "master.log", lambda: cluster.applications() == [])
        for number in range(workers):
            about = ("--host", LOOPBACK, "--cores", str(CORES), "--memory", "2g", "--webui-port", str(free_port()))
            name = f"worker-{number}"
            cluster.workers.append(run.start(name, *about, "--work-dir", str(root / name), cluster.master))
        _await("the workers", master, root / "master.log", lambda: cluster.live_workers() == workers)
        yield cluster
    finally:
        for child in (*cluster.workers, master):
            end(child, STOP_WAIT_S)


@dataclass(frozen=True, slots=True)
class _Runner:
    root: Path
    environ: dict[str, str]

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        java = find_java(os.environ)
        kind = name.partition("-")[0]
        opened = "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"
        jvm = (str(java.executable), "-cp", f"{spark_home()}/jars/*", "-Xmx256m", "-XX:+UseSerialGC", opened)
        main = f"org.apache.spark.deploy.{kind}.{kind.capitalize()}"
        environ = os.environ | {
            "SPARK_HOME": str(spark_home()),
            "SPARK_SCALA_VERSION": "2.13",
            "JAVA_HOME": str(java.home),
            "SPARK_LOCAL_IP": LOOPBACK,
            **self.environ,
        }
        return spawn([*jvm, main, *arguments], self.root / f"{name}.log", environ)


def _get(url: str) -> Any:
    with urlopen(url, timeout=ANSWER_WAIT_S) as answer:
        return json.load(answer)


def _await(what: str, child: subprocess.Popen[bytes], log: Path, true: Any) -> None:
    deadline_s = time.monotonic() + START_WAIT_S
    while True:
        with suppress(OSError, HTTPException, ValueError):
            if true():
                return
        assert child.poll() is None, tail(log)
        assert time.monotonic() < deadline_s, f"not within {START_WAIT_S:g} s: {what}: {tail(log)}"
        time.sleep(POLL_S)
