"""The fences of the job log and its writer, each dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from iscp.cluster.owner.job_log_writer import LogWriter
from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobReport
from iscp.model.values.errors import IscpError
from tests.simulation.joblog import Log


class UnfencedLog(Log):
    def admits(self, term: int) -> bool:
        return True


class ClaimedAtOnce(Log):
    """Two claims that read the same last term both succeed."""

    def claims(self, seen: int) -> bool:
        return True


class BelievesTimeouts(Log):
    """A put that was not answered in time counts as one that was not made."""

    @property
    def may_land(self) -> bool:
        return False


class TakesLateStatuses(LogWriter):
    """A status counts for whatever registration has its name now."""

    def report(
        self,
        reports: Iterable[JobReport],
        history: Sequence[HistoryEntry] = (),
        on_written: Callable[[], None] = lambda: None,
    ) -> None:
        super().report([self._renamed(report) for report in reports], history, on_written)

    def _renamed(self, report: JobReport) -> JobReport:
        row = self.read(lambda book: book.get(report.key))
        return replace(report, job_id=row.job_id) if row is not None else report


class ForgetsWhatIsInDoubt(LogWriter):
    """What may have been written is drafted again, as if it surely was not."""

    def _back_off(self, now_s: float, error: IscpError) -> None:
        self._unconfirmed = None
        super()._back_off(now_s, error)


class StaysDueAtItsEnd(LogWriter):
    """The flush that is due while the writer closes stays due."""

    def _look_after_book(self, now_s: float) -> None:
        due_s = self._flush.due_s
        super()._look_after_book(now_s)
        if self._closing:
            self._flush.due_s = due_s


def by_the_clock_alone(now_s: float, _last: str) -> str:
    """Job ids that go back with the clock."""
    return f"{max(0, int(now_s * 1000)):012x}"
