"""The figures of a job on a split table: of all its ranges, and the worst of their faults."""

from __future__ import annotations

from iscp.core.job.maintenance_figures import MaintenanceFigures, summed


def test_counts_are_added_and_the_fault_is_one_that_there_is() -> None:
    good = MaintenanceFigures(submitted=2, completed=2, next_at_s=50.0)
    bad = MaintenanceFigures(submitted=3, failed=1, completed=1, running=1, error_code=9, error_msg="away")
    told = summed([good, bad])
    assert told == MaintenanceFigures(
        submitted=5, running=1, completed=3, failed=1, error_code=9, error_msg="away", next_at_s=50.0
    )
    assert summed([]) is None
    assert summed([good]) == good
