"""Show the demo while it runs and at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table

from iscp.cli.demo.jobs import JobResult
from iscp.cli.demo.manual import Search
from iscp.cli.shell import render
from iscp.cli.shell.drawing import grid, plain, print_on
from iscp.core.api.api_views import JobView
from iscp.core.api.search_views import SearchAnswer

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
