"""Refuse places that jobs occupy: no target may be another's, lie within another's table, or around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from iscp.coordination.jobs.book_index import target_of
from iscp.coordination.jobs.job_requests import Registration
from iscp.coordination.jobs.table_paths import Places, with_letters
from iscp.core.job.job_row import JobRow
from iscp.core.spec.spec_parsing import parse_spec
from iscp.core.sql.sql_names import DEAD_LETTER_SUFFIX
from iscp.core.values.errors import InvalidRequest

TARGET_FIELD, SOURCE_FIELD = "spec.iteration.consumer.target", "table"


@dataclass(frozen=True, slots=True)
class OccupiedPlaces:
    """The places that jobs occupy: their `targets` and `sources`; `current` gives the jobs of ids that are still there,
    as they are now.
    """

    targets: tuple[Places, ...]
    sources: tuple[Places, ...]
    current: Callable[[Iterable[Sequence[str]]], Iterator[JobRow]]

    def check(self, item: Registration) -> None:
        """Raises InvalidRequest where the job's target or source would be in the way of another job's."""
        target, account = target_of(item.row.spec_json), item.row.key.account
        for other in self.current(places.at(target) for places in self.targets):
            if item.shared_target and other.spec.consumer.kind == parse_spec(item.row.spec_json).consumer.kind:
                continue
            if other.deletion:
                raise InvalidRequest(
                    f"{target} is being deleted, with {named_to(account, other)}",
                    about=TARGET_FIELD,
                    remedy="Wait until it is gone, or choose another target",
                )
            raise InvalidRequest(
                f"{target} is the target of {named_to(account, other)}",
                about=TARGET_FIELD,
                remedy="Choose another target, or unregister that job first",
            )
        self._check_around(target, item.row.table_uri, account)

    def _check_around(self, target: str, source: str, account: str) -> None:
        """Check that a target neither holds nor lies within what another job writes or reads, nor its own source."""
        targets, sources = self.targets, self.sources
        mine = with_letters(target) if target else ()
        checks = [(targets, path, "target", TARGET_FIELD) for path in mine]
        checks += [(sources, path, "source", TARGET_FIELD) for path in mine]
        for there, path, what, field in (*checks, (targets, source, "target", SOURCE_FIELD)):
            for other in self.current(each.at(place) for each in there for place in each.around(path)):
                raise InvalidRequest(
                    f"{path} lies within the {what} of {named_to(account, other)}, or around it: cleaning the one "
                    "table would delete files of the other",
                    about=field,
                    remedy="Choose a path beside it, or unregister that job first",
                )
        letters = target + DEAD_LETTER_SUFFIX, target.removesuffix(DEAD_LETTER_SUFFIX)
        for other in self.current(each.at(place) for each in targets for place in letters if place != target):
            raise InvalidRequest(
                f"{target} and the target of {named_to(account, other)} are in the way of one another's dead letters",
                about=TARGET_FIELD,
                remedy=f"Choose another target, without {DEAD_LETTER_SUFFIX}",
            )


def named_to(account: str, job: JobRow) -> str:
    """Return how to name the job: another account's job is not named to this one."""
    return f"job {job.key.job_name!r}" if job.key.account == account else "another job"
