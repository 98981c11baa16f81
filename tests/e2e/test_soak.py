"""scripts/soak at its smallest each time, and for ten minutes with the long tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.soak.playing import Size, play
from tests.soak.reporting import Findings, write_report
from tests.soak.soak_plan import Kind


def suffered(tmp_path: Path, size: Size, seed: int) -> Findings:
    """What a soak found; its report lies in `report`."""
    out = tmp_path / "report"
    out.mkdir()
    findings = play(tmp_path / "soak", size, seed, lambda line: print(line, file=sys.stderr), out)  # noqa: T201
    write_report(findings, out)
    assert findings.holds, (out / "report.md").read_text()
    return findings


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_short_soak_of_all_kinds_of_jobs_holds(tmp_path: Path) -> None:
    size = Size(0.4, 6, 10, pace_per_s=3.0, fault_every_s=8.0, sample_every_s=1.0, nodes=2)
    findings = suffered(tmp_path, size, seed=13)
    assert [each.what for each in findings.faults] == ["a node is cut off", "the owner is struck"]
    assert findings.commits > 10
    kinds = {each.job.partition("_")[2] for each in findings.arrivals}
    assert kinds == {kind.value for kind in Kind}


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.timeout(3_600)
def test_ten_minutes_with_a_fault_in_each_hold_and_nothing_grows(tmp_path: Path) -> None:
    findings = suffered(tmp_path, Size(10.2, 100, 250, pace_per_s=1.5), seed=1)
    assert len(findings.faults) == 10
    assert any(each.criterion == "slope" for each in findings.verdicts)
