"""Show a run as it goes, a line for each job that has ended and a summary, for programs one JSON object a job; and set
up its process, which is left as it was: tests and programs may call the command within theirs.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from iscp.cli.shell.program_end import restore_answers
from iscp.cli.shell.terminal import json_text, say
from iscp.model.run.run_plan import Forecast, JobForecast, ResultState, RunResult
from iscp.model.settings.config import LogFormat
from iscp.model.values.untrusted_values import LogLevel, printable
from iscp.notices.log_ring import configure_logging
from iscp.standalone.local_run import RequestedJob, RunListener

NAME_WIDTH_MAX = 40
"""Characters of the column of names; a longer name pushes what follows to the right."""

_STATE_WIDTH = max(len(each) for each in (*ResultState, "running"))
_ACTION_WIDTH = max(len(each) for each in Forecast)


class RunLines(RunListener):
    """Lines for people, in the manner of dbt: which of how many, its name, and what came of it."""

    def __init__(self, jobs: Sequence[RequestedJob], chosen: Iterable[int]) -> None:
        self._places = {number: place for place, number in enumerate(sorted(chosen), 1)}
        self._jobs = jobs
        self._width = name_width([jobs[number].planned.name for number in self._places])
        self._live = sys.stdout.isatty()

    def begin(self, number: int) -> None:
        if self._live:
            self._show(number, "running", "")

    def end(self, number: int, result: RunResult) -> None:
        self._show(number, result.state.value, outcome_words(result))

    def _show(self, number: int, state: str, about: str) -> None:
        count, name = len(self._places), self._jobs[number].planned.name
        place = f"{self._places[number]:>{len(str(count))}} of {count}"
        show_line(f"{place}  {name:<{self._width}}", state, _STATE_WIDTH, about)


class WatchLines(RunListener):
    """A line for each commit and each fault, with the time of the day."""

    def __init__(self, jobs: Sequence[RequestedJob], chosen: Iterable[int]) -> None:
        self._width = name_width(jobs[number].planned.name for number in chosen)

    def end(self, number: int, result: RunResult) -> None:
        at = time.strftime("%H:%M:%S")
        show_line(f"{at}  {result.name:<{self._width}}", result.state.value, _STATE_WIDTH, outcome_words(result))
        show_spark([result])
        sys.stdout.flush()


class RunObjects(RunListener):
    """One JSON object for each job, in a line of its own, as it ends."""

    def end(self, number: int, result: RunResult) -> None:
        say(json_text(result.document()))


def name_width(names: Iterable[str]) -> int:
    return min(max(map(len, names), default=0), NAME_WIDTH_MAX)


def show_line(before: str, state: str, width: int, about: str) -> None:
    say(f"{before}  {state:<{width}}  {printable(about)}".rstrip())


def outcome_words(result: RunResult) -> str:
    """Return what is to be said of a job that has ended, besides its state."""
    if not result.ok:
        return result.error
    words = [f"version {result.to_version}"]
    if result.state is ResultState.UPDATED:
        came = f"{result.from_version} → {result.to_version}" if result.from_version >= 0 else f"→ {result.to_version}"
        words = [f"{result.strategy}, {result.rows:,} rows in {result.seconds:.2f} s, version {came}"]
        words += [f"({result.reason})"] if result.reason else []
    words += [f"{result.dead_letters:,} dead letters"] if result.dead_letters else []
    words += [f"warning: {result.warning}"] if result.warning else []
    return "; ".join(words).replace("; (", " (")


def show_spark(results: Iterable[RunResult]) -> None:
    """Say which job Spark was started for, if one of these is it, and why; those that share a read are it together."""
    if first := [each for each in results if each.started_spark]:
        names = ", ".join(f'{each.kind} "{each.name}"' for each in first)
        say(printable(f"Spark was started for {names}: {first[0].spark}"))


def show_summary(results: Sequence[RunResult], seconds: float) -> None:
    show_spark(results)
    counts = Counter(each.state for each in results)
    say(f"{', '.join(f'{counts[state]} {state}' for state in ResultState if counts[state])} in {seconds:.1f} s")


def show_forecasts(forecasts: Sequence[JobForecast], output: str) -> None:
    if output == "json":
        for each in forecasts:
            say(json_text(each.document()))
        return
    width = name_width(each.name for each in forecasts)
    for each in forecasts:
        needs = "; needs Spark" if each.spark else ""
        show_line(f"{each.name:<{width}}", each.action.value, _ACTION_WIDTH, each.why + needs)
    counts = Counter(each.action for each in forecasts)
    say(f"would be: {', '.join(f'{counts[action]} {action}' for action in Forecast if counts[action])}")


_WARNS = "iscp.spark.java"
"""The logger that is heard of warnings too: they say which Java of the user is passed over, and no result does."""


@contextmanager
def process_of_a_run() -> Iterator[None]:
    """Within, errors alone are logged, as what is less is in the jobs' results, but for a Java that is passed over;
    answers to signals are restored too.
    """
    root, warns = logging.getLogger(), logging.getLogger(_WARNS)
    handlers, level = list(root.handlers), root.level
    root.handlers.clear()  # so that they are not closed
    try:
        configure_logging(LogFormat.TEXT, LogLevel.ERROR, {})
        warns.setLevel(logging.WARNING)
        with restore_answers():
            yield
    finally:
        logging.captureWarnings(False)
        root.handlers[:] = handlers
        root.setLevel(level)
        warns.setLevel(logging.NOTSET)
