from __future__ import annotations

from dataclasses import replace

from iscp.coordination.protocol.events import Reports
from iscp.core.job.usage import Usage
from iscp.core.metrics.iteration_metrics import RETRIES, WAIT
from iscp.runtime.metrics.history_meter import HistoryMeter
from tests.fakes.meter import FakeMeter
from tests.fakes.owned_jobs import SHARD, entry


def test_waits_and_retries_are_read_from_what_is_reported() -> None:
    meter = FakeMeter()
    first, again = (replace(entry("j"), usage=Usage(wait_s=wait_s, retries=n)) for wait_s, n in ((0.5, 0), (3.0, 4)))
    HistoryMeter(meter).take(Reports(SHARD, history=(first, again, entry("of-a-former-release"))))
    assert meter.of(WAIT) == [(0.5, {}), (3.0, {})]
    assert meter.of(RETRIES) == [(0, {}), (1, {})]
