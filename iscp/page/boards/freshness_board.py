"""The board of all targets: how far each lags behind its source, against its target lag, the worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from iscp.core.job.job_row import JobCondition
from iscp.page.boards.job_facts import JobFacts, distinct
from iscp.page.boards.shown_values import short

ROWS_PER_PAGE = 50
"""Rows of one page of the board; further ones are on the next."""

FILTER_CHARS_MAX = 200
"""Characters of each filter in an address; the rest is not read."""

CHOICES_MAX = 200
"""Accounts and kinds that the board's filters offer; a further one can be written into the address."""


@dataclass(frozen=True, slots=True)
class FreshnessFilter:
    """The filters in the address; empty ones do not filter. `words` have to be in the target's, table's or job's name,
    whatever their case. `page` counts from 1.
    """

    account: str = ""
    kind: str = ""
    condition: str = ""
    words: str = ""
    page: int = 1

    def query(self, page: int | None = None) -> dict[str, str]:
        """Return the parameters of an address with these filters, of this page or another one."""
        number = self.page if page is None else page
        fields = {"account": self.account, "kind": self.kind, "condition": self.condition, "words": self.words}
        return {
            **{name: value for name, value in fields.items() if value},
            **({"page": str(number)} if number > 1 else {}),
        }


@dataclass(frozen=True, slots=True)
class FreshnessBoard:
    """A page of the board: `rows` in their order, `found` jobs in all that match, and what the filters offer."""

    chosen: FreshnessFilter
    rows: Sequence[JobFacts]
    found: int
    pages: int
    total: int
    counts: Mapping[str, int]
    accounts: Sequence[str]
    kinds: Sequence[str]


def read_filter(query: Mapping[str, str]) -> FreshnessFilter:
    """Return the filters of an address, cut to what is bearable; a page that is no number is the first."""

    def text(name: str) -> str:
        return short(query.get(name, "").strip(), FILTER_CHARS_MAX)

    return FreshnessFilter(
        account=text("account"),
        kind=text("kind"),
        condition=text("condition") if query.get("condition") in {*JobCondition} else "",
        words=text("words"),
        page=page_of(query),
    )


def page_of(query: Mapping[str, str]) -> int:
    """Return the number of the page in an address; 1 where there is none, or nonsense."""
    given = query.get("page", "")
    return max(1, int(given)) if given.isascii() and given.isdecimal() and len(given) <= 9 else 1


def freshness_board(
    jobs: Sequence[JobFacts], chosen: FreshnessFilter, rows_per_page: int = ROWS_PER_PAGE
) -> FreshnessBoard:
    """Return a page of the board; one beyond the last is the last."""
    matching = [job for job in jobs if _matches(job, chosen)]
    matching.sort(key=badness, reverse=True)
    pages = max(1, -(-len(matching) // rows_per_page))
    number = min(chosen.page, pages)
    begin = (number - 1) * rows_per_page
    counts = Counter(job.condition for job in jobs)
    return FreshnessBoard(
        chosen=replace(chosen, page=number),
        rows=matching[begin : begin + rows_per_page],
        found=len(matching),
        pages=pages,
        total=len(jobs),
        counts={name: counts[name] for name in JobCondition if counts[name]},
        accounts=distinct((job.account for job in jobs), CHOICES_MAX),
        kinds=distinct((job.kind for job in jobs), CHOICES_MAX),
    )


def badness(job: JobFacts) -> tuple[int, float, float]:
    """Return what orders the board, greater for what is worse: the condition, the lag in target lags, the lag."""
    rank = len(JobCondition) - list(JobCondition).index(JobCondition(job.condition))
    return rank, job.lag_s / job.target_lag_s if job.target_lag_s > 0 else 0.0, job.lag_s


def _matches(job: JobFacts, chosen: FreshnessFilter) -> bool:
    if chosen.account and job.account != chosen.account:
        return False
    if chosen.kind and job.kind != chosen.kind:
        return False
    if chosen.condition and job.condition != chosen.condition:
        return False
    words = chosen.words.casefold().split()
    return not words or all(word in f"{job.target} {job.table} {job.name}".casefold() for word in words)
