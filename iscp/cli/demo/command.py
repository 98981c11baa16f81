"""`iscp demo`: start a cluster of its own, replay a year of flights against it, and compare each target with a
recomputation.

The module also kills nodes while the demo runs, if that is wanted, and shows the demo while it runs and at its end.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table

from iscp.cli.demo import lake
from iscp.cli.demo.lake import SEARCHES, Day, DemoJob, JobResult, Search, Sources, demo_jobs, verify, version
from iscp.cli.demo.replay import Follower
from iscp.cli.node.up import start_up
from iscp.cli.shell import render
from iscp.cli.shell.terminal import console_of, grid, plain, print_on
from iscp.client.admin_client import Client
from iscp.index.search.search_library import search
from iscp.model.api.api_requests import ClusterView, JobView, NodeView, SearchAnswer
from iscp.model.settings.variables import setting_variable
from iscp.model.values.errors import IscpError, TemporaryError
from iscp.system.threads import SystemClock

# --- kills ------------------------------------------------------------------------------------------------------------

EVERY_S = 5.0
READY_MIN = 2
"""Nodes that have to be ready before one is killed: something has to go on."""
OWNER_EVERY = 3
"""One kill of so many is the owner's, from the second on."""


class Chaos:
    """A thread that kills nodes with SIGKILL, the owner in its turn; `kills` are those so far, by the nodes' names.

    Whoever runs the nodes starts them again.
    """

    def __init__(self, endpoint: str, draw: random.Random) -> None:
        self.kills: list[str] = []
        self._endpoint = endpoint
        self._draw = draw
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-chaos", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        with Client(self._endpoint, timeout_s=EVERY_S) as client:
            while not self._ended.wait(EVERY_S):
                with suppress(IscpError):  # it is not known who is there: nobody is killed
                    self._kill(client.cluster())

    def _kill(self, cluster: ClusterView) -> None:
        ready = [node for node in cluster.nodes if node.state == "ready"]
        victim = self._victim(ready, cluster.owner) if len(ready) >= READY_MIN else None
        if victim is not None:
            with suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGKILL)
                self.kills.append(f"{victim.node_id} (owner)" if victim.node_id == cluster.owner else victim.node_id)

    def _victim(self, ready: Sequence[NodeView], owner: str) -> NodeView | None:
        owners = [node for node in ready if node.node_id == owner]
        if owners and len(self.kills) % OWNER_EVERY == 1:
            return owners[0]
        return self._draw.choice([node for node in ready if node.node_id != owner] or owners or [None])


# --- the picture ------------------------------------------------------------------------------------------------------

_PER_S = 4
_SHOWN = 90
"""Characters of a text that is found."""
_PLAIN_EVERY = 10
"""Without a terminal there is a line for so many days, instead of a picture."""


@dataclass(slots=True)
class View:
    """The progress of the replay."""

    console: Console
    days: int
    phase: str = "starting etcd and a node"
    done: int = 0
    date: str = ""
    jobs: Mapping[str, JobView] = field(default_factory=dict)

    def say(self, phase: str) -> None:
        self.phase = phase
        if not self.console.is_terminal:
            print_on(self.console, phase)

    def day(self, number: int, date: str, jobs: Sequence[JobView]) -> None:
        self.done, self.date = number, date
        self.jobs = {each.name: each for each in jobs}
        if not self.console.is_terminal and (number % _PLAIN_EVERY == 0 or number == self.days):
            lags = ", ".join(f"{each.name} {render.lag(each)}" for each in jobs)
            print_on(self.console, f"{date}  {number}/{self.days}  lag: {lags}")

    def show_search(self, search: Search, when: str, answer: SearchAnswer) -> None:
        """Show what a search has found."""
        print_on(self.console, f"search {when}, version {answer.version}: {search.text}")
        for hit in answer.hits:
            text = str(hit.columns["body"])
            shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"
            print_on(self.console, f"  {hit.score:6.3f}  {hit.columns['topic']}: {shown}")

    @contextmanager
    def live(self) -> Iterator[None]:
        if not self.console.is_terminal:
            yield
            return
        with Live(get_renderable=self._picture, console=self.console, refresh_per_second=_PER_S, transient=True):
            yield

    def _picture(self) -> RenderableType:
        head = plain(f"{self.phase}   {self.date}  day {self.done} of {self.days}")
        numbers = ("applied", "newest", "iterations", "lag")
        table = grid(("job", "state", *numbers), right=numbers)
        for each in self.jobs.values():
            versions = each.applied_version, each.source_version, each.seq
            table.add_row(*map(plain, (each.name, each.condition, *versions, render.lag(each))))
        bar = ProgressBar(total=self.days, completed=self.done, width=60)
        return Group(head, Padding(bar, 0), table)  # a bar alone ends no line


def _lag(lag_s: float | None) -> str:
    return "–" if lag_s is None else f"{lag_s:.1f} s"


def result_table(results: Sequence[JobResult]) -> Table:
    numbers = ("rows", "iterations", "lag p50", "lag p95")
    title = "What was derived, against a recomputation from the source"
    table = grid(("job", *numbers, "equal"), right=numbers, title=title)
    for each in results:
        equal = plain("yes", "green") if each.equal else plain(f"no: {each.differences:,} rows differ", "red")
        cells = (each.name, f"{each.rows:,}", each.iterations, _lag(each.lag_p50_s), _lag(each.lag_p95_s))
        table.add_row(*map(plain, cells), equal)
    return table


# --- the run ----------------------------------------------------------------------------------------------------------

REPLAY_S, DAY_MAX_S = 90.0, 2.0
"""The replay takes REPLAY_S, or DAY_MAX_S a day if that is less: it is to be watched, and to leave time to the node."""
CATCH_UP_TIMEOUT_S = 300.0
CALL_TIMEOUT_S = 180.0
HITS = 2
"""Hits that each search shows."""
SHORT_LEASES = {setting_variable("etcd.lease_ttl_s"): "5", setting_variable("etcd.margin_s"): "1"}
"""Leases that are short, as a node that dies is to be noticed soon if nodes die all the time."""


def run(days: int, output: str, nodes: int = 1, chaos: bool = False) -> int:
    """Run the demo, and return the exit status: 0 if every target is equal to its recomputation. Raises IscpError."""
    started_s = time.monotonic()
    view = View(console_of(err=output not in ("table", "wide")), days)
    with _scratch() as root:
        with view.live():
            results, kills = _play(root, view, nodes, chaos)
        verified = all(each.equal for each in results)
        if not verified:
            # They stay, as somebody will want to look into them.
            tables = Path(tempfile.mkdtemp(prefix="iscp-demo-kept-"))
            shutil.move(root / "lake", tables)
            print_on(view.console, f"The tables are kept in {tables}")
    elapsed_s = round(time.monotonic() - started_s, 1)
    result = {"verified": verified, "jobs": [each.to_json() for each in results], "days": days, "elapsed_s": elapsed_s}
    if not render.show_line(result | {"nodes": nodes, "kills": kills}, output):
        print_on(view.console, result_table(results))
        print_on(view.console, f"{days} days in {elapsed_s:.0f} s")
        if chaos:
            print_on(view.console, f"{len(kills)} nodes were killed: {', '.join(kills) or 'none'}")
    return 0 if verified else 1


@contextmanager
def _scratch() -> Iterator[Path]:
    # Sources are refused by paths that lead through links, as the one of a directory for temporary files may.
    root = Path(tempfile.mkdtemp(prefix="iscp-demo-")).resolve()
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _play(root: Path, view: View, nodes: int, chaos: bool) -> tuple[list[JobResult], list[str]]:
    """Play the demo, and return what became of the jobs, and which nodes were killed."""
    view.say("starting etcd and a node" if nodes == 1 else f"starting etcd and {nodes} nodes")
    environ = os.environ | (SHORT_LEASES if chaos else {})
    up = start_up(root / "iscp", SystemClock(), environ, port=0, nodes=nodes)
    killer = Chaos(up.endpoints, random.Random())
    try:
        with Client(up.endpoints, timeout_s=CALL_TIMEOUT_S) as client:
            return play(root, client, view, _killing(killer if chaos else None)), killer.kills
    finally:
        up.stop()


def play(root: Path, client: Client, view: View, meanwhile: AbstractContextManager[object]) -> list[JobResult]:
    """Play on a cluster that is there, and reaches `root`, where all tables are made; return what became of the jobs.

    `meanwhile` is entered while the days are replayed.
    """
    year = lake.load(view.days)
    sources = Sources(root / "lake", year)
    derived = root / "lake" / "derived"
    derived.mkdir(exist_ok=True)
    jobs = demo_jobs(sources, str(derived))
    sources.schedule(year.days[0])
    since = [job.register(client) for job in jobs]
    _settle(jobs, client, view, "building what is derived")
    _search(jobs, view, "before the replay")
    with _following(jobs, root) as follower:
        with meanwhile:
            _replay(year.days, sources, jobs, client, view)
        _settle(jobs, client, view, "waiting for the jobs to be at the newest version")
        _search(jobs, view, "after it")
        view.say("comparing row by row")
        replayed = follower.finish()
    pairs = zip(jobs, since, strict=True)
    return [verify(job, client, at, replayed if job.is_feed else None) for job, at in pairs]


@contextmanager
def _following(jobs: Sequence[DemoJob], root: Path) -> Iterator[Follower]:
    """Yield the feed's reader, a process of its own."""
    follower = Follower(next(job.target for job in jobs if job.is_feed), root / "reader")
    try:
        yield follower
    finally:
        follower.stop()


@contextmanager
def _killing(killer: Chaos | None) -> Iterator[None]:
    if killer is None:
        yield
        return
    killer.start()
    try:
        yield
    finally:
        killer.stop()


def _settle(jobs: Sequence[DemoJob], client: Client, view: View, phase: str) -> None:
    view.say(phase)
    for job in jobs:
        client.wait(job.source, job.name, timeout_s=CATCH_UP_TIMEOUT_S)


def _search(jobs: Sequence[DemoJob], view: View, when: str) -> None:
    """Search the indexes as any program can, without the cluster, at the version that was just applied."""
    targets = {job.name: job.target for job in jobs}
    versions = {job.name: version(job.source) for job in jobs}
    for each in SEARCHES:
        answer = search(targets[each.job], each.text, k=HITS, min_version=versions[each.job])
        view.show_search(each, when, answer)


def _replay(days: Sequence[Day], sources: Sources, jobs: Sequence[DemoJob], client: Client, view: View) -> None:
    view.say("replaying")
    day_s = min(DAY_MAX_S, REPLAY_S / len(days))
    begin_s = time.monotonic()
    for number, (today, tomorrow) in enumerate(zip(days, [*days[1:], None], strict=True), start=1):
        sources.depart(today)
        sources.arrive(today)
        if tomorrow:
            sources.schedule(tomorrow)
        sources.revise(number)
        _tell(sources, client)
        view.day(number, f"2013-{today.month:02}-{today.day:02}", _views(jobs, client))
        time.sleep(max(0.0, begin_s + number * day_s - time.monotonic()))


def _tell(sources: Sources, client: Client) -> None:
    """Notify of the commit: a writer that notifies is probed at once; one that does not is found by the node's own
    probes.
    """
    with suppress(TemporaryError):
        client.notify(sources.flights)
        client.notify(sources.weather)
        client.notify(sources.manual)


def _views(jobs: Sequence[DemoJob], client: Client) -> list[JobView]:
    try:
        return [client.status(job.source, job.name) for job in jobs]
    except IscpError:
        # To show it is not worth a failure; the end is.
        return []
