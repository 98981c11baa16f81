"""What a list of jobs takes is counted with all of its texts, and at least as much as it really takes."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import dataclass, replace

from iscp.page.boards.job_facts import JobFacts, facts_of
from iscp.page.serving.value_size import bytes_of
from tests.fakes.viewed_cluster import job_view


@dataclass(frozen=True, slots=True)
class Single:
    text: str


def listed(jobs: int) -> tuple[JobFacts, ...]:
    return tuple(
        facts_of(replace(job_view(number), spec_json=json.dumps({"iteration": {"consumer": {"kind": f"k{number}"}}})))
        for number in range(jobs)
    )


def test_a_list_of_jobs_is_counted_at_least_as_large_as_it_is() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        jobs = listed(500)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.7 * (after - before) < bytes_of(jobs) < 4 * (after - before)


def test_no_part_is_large_and_not_counted() -> None:
    long = "x" * 1_000_000
    for value in (long, [long], ({"a": (1, [long])},), {long: 1}, Single(long), frozenset({long}), [[Single(long)]]):
        assert 1_000_000 < bytes_of(value) < 1_010_000
