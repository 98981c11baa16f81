"""What a soak is judged by: its plan, the lags, the criteria of growth, the links that are cut, the pictures."""

from __future__ import annotations

import json
import math
import random
import socket
import socketserver
import threading
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.soak.faults import FAULTS, Fault, order_of_faults
from tests.soak.growth import ALLOWANCES, JUDGED_MIN_S, MIB, Verdict, judge_processes, judge_slope, judge_stores, slope
from tests.soak.lags import Arrival, arrivals_of, bins, through_faults
from tests.soak.links import Links
from tests.soak.plotting import Band, Chart, Line, draw, nice_step
from tests.soak.reporting import Findings, write_report
from tests.soak.sampling import ProcessSample, StoreSample
from tests.soak.soak_plan import SHARES, Kind, make_plan
from tests.soak.writing import HOT_COMMITS, TableWriter

MINUTES_S = range(0, 600, 5)


# --- the plan --------------------------------------------------------------------------------------------------------


def test_a_soak_has_jobs_of_all_kinds_by_their_shares() -> None:
    plan = make_plan(2_000, 5_000)
    kinds = Counter(job.kind for job in plan.jobs)
    assert (len(plan.tables), len(plan.jobs)) == (2_000, 5_000)
    for kind, share in SHARES.items():
        assert kinds[kind] == pytest.approx(50 * share, abs=2)
    assert len({job.name for job in plan.jobs}) == 5_000
    assert all(job.table.keyed == (job.kind is not Kind.APPENDED) for job in plan.jobs)
    per_table = Counter(job.table.name for job in plan.jobs)
    assert max(per_table.values()) - min(per_table.values()) <= 4
    assert sum(SHARES.values()) == 100


def test_the_smallest_soak_has_each_kind_once() -> None:
    plan = make_plan(1, len(Kind))
    assert [job.kind for job in plan.jobs] == list(Kind)
    (join,) = (job for job in plan.jobs if job.kind is Kind.JOIN)
    assert join.tables[0] != join.tables[1]
    for job in plan.jobs:
        spec = json.loads(job.request("/lake", "/lake/derived").spec_json)
        assert spec["iteration"]["consumer"]["target"] == f"/lake/derived/{job.name}"


def test_each_round_of_faults_has_all_kinds() -> None:
    order = order_of_faults(1)
    rounds = [[next(order) for _ in FAULTS] for _ in range(3)]
    assert all(sorted(each) == sorted(FAULTS) for each in rounds)
    assert rounds[0] != rounds[1]


# --- lags ------------------------------------------------------------------------------------------------------------


def test_a_commit_has_arrived_with_the_first_iteration_that_goes_so_far() -> None:
    commits = [(1, 10.0), (2, 20.0), (3, 21.0), (4, 30.0)]
    applied = [(1, 15.0), (3, 25.0), (3, 26.0)]
    found = arrivals_of("copy", commits, applied)
    # The first is in the first snapshot, and the last has not arrived.
    assert [(each.at_s, each.lag_s) for each in found] == [(20.0, 5.0), (21.0, 4.0)]
    assert arrivals_of("copy", commits, []) == []


def test_lags_are_those_from_a_fault_to_the_next() -> None:
    faults = [Fault("a", "n", 100.0, 110.0), Fault("b", "n", 200.0, 205.0)]
    arrivals = [Arrival("j", at_s, lag_s) for at_s, lag_s in ((50.0, 9.0), (105.0, 20.0), (150.0, 1.0), (201.0, 2.0))]
    first, second = through_faults(arrivals, faults)
    assert (first.commits, first.max_s, first.recovered_s) == (2, 20.0, 15.0)
    assert (second.commits, second.max_s, second.recovered_s) == (1, 2.0, 0.0)
    assert [(each.at_s, each.commits, each.max_s) for each in bins(arrivals, 100.0)] == [
        (0.0, 1, 9.0),
        (100.0, 2, 20.0),
        (200.0, 1, 2.0),
    ]


# --- growth ----------------------------------------------------------------------------------------------------------


def noisy(level: float, per_s: float, noise: float) -> list[tuple[float, float]]:
    chance = random.Random(3)
    return [(float(at_s), level + per_s * at_s + chance.uniform(-noise, noise)) for at_s in MINUTES_S]


def test_a_slope_is_found_beneath_noise_and_outliers() -> None:
    points = noisy(100.0, 0.5, 20.0)
    points[7] = (points[7][0], 1e9)
    assert slope(points) == pytest.approx(0.5, rel=0.1)
    assert slope(points[:1]) == 0.0


@pytest.mark.parametrize(("per_s", "holds"), [(0.0, True), (-1.0, True), (0.05 * MIB, True), (0.2 * MIB, False)])
def test_memory_may_grow_by_a_tenth_and_an_allowance(per_s: float, holds: bool) -> None:
    verdict = judge_slope("memory", noisy(200.0 * MIB, per_s, 5.0 * MIB), ALLOWANCES["memory_bytes"], "bytes")
    assert verdict is not None
    assert verdict.holds is holds


def test_what_fills_while_it_warms_up_is_no_growth_and_a_short_life_is_not_judged() -> None:
    filled = [(float(at_s), min(100.0, at_s)) for at_s in MINUTES_S]
    verdict = judge_slope("handles", filled, 1.0, "")
    assert verdict is not None
    assert verdict.found == pytest.approx(0.0)
    assert judge_slope("handles", [each for each in filled if each[0] < JUDGED_MIN_S], 1.0, "") is None


def test_peaks_are_work_and_a_floor_that_rises_is_a_leak() -> None:
    peaks = [(float(at_s), 100.0 + (at_s if at_s % 30 else 0.0)) for at_s in MINUTES_S]
    verdict = judge_slope("threads", peaks, 8.0, "")
    assert verdict is not None
    assert verdict.found == pytest.approx(0.0)
    rising = judge_slope("threads", [(at_s, y + at_s / 10) for at_s, y in peaks], 8.0, "")
    assert rising is not None
    assert not rising.holds


def sample(at_s: float, role: str, pid: int, memory_bytes: int, handles: int) -> ProcessSample:
    return ProcessSample(at_s, role, "iscp-0", pid, memory_bytes, handles, 20)


def test_each_process_is_judged_by_itself() -> None:
    """A node that was started again begins from below: that is neither growth nor its end."""
    leaking = [sample(at_s, "node", 1, 200 << 20, 30 + at_s // 10) for at_s in MINUTES_S]
    sound = [sample(at_s, "node", 2, 200 << 20, 90) for at_s in MINUTES_S]
    heap = [sample(at_s, "jvm", 3, (900 + at_s) << 20, 90) for at_s in MINUTES_S]
    verdicts = judge_processes([*leaking, *sound, *heap], 512 * MIB)
    assert [each.what for each in verdicts if not each.holds] == [
        "memory of iscp-0 (jvm 3)",
        "handles of iscp-0 (node 1)",
    ]


def test_etcd_and_the_job_log_are_judged_by_what_is_live() -> None:
    stores = [StoreSample(at_s, 11, 0, files, 0, 0, 0) for at_s, files in ((0.0, 3), (5.0, 260), (10.0, 2))]
    keys, files = judge_stores(stores, 11, 12, 100)
    assert not keys.holds
    assert not files.holds
    assert all(each.holds for each in judge_stores([], 11, 11, 100))


# --- links -----------------------------------------------------------------------------------------------------------


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while received := self.request.recv(1_024):
            self.request.sendall(received)


@pytest.fixture
def echo() -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_a_link_that_is_cut_carries_nothing_and_refuses_nothing(echo: int) -> None:
    with Links() as links:
        port = links.relay("to echo", echo)
        with socket.create_connection(("127.0.0.1", port), timeout=10.0) as before:
            before.sendall(b"a")
            assert before.recv(1) == b"a"
            links.cut("to echo")
            before.settimeout(0.3)
            before.sendall(b"b")
            with pytest.raises(TimeoutError):
                before.recv(1)
            with socket.create_connection(("127.0.0.1", port), timeout=10.0) as after:
                after.sendall(b"c")
                after.settimeout(0.3)
                with pytest.raises(TimeoutError):
                    after.recv(1)
                links.heal("to echo")
                for connection, sent in ((before, b"b"), (after, b"c")):
                    connection.settimeout(10.0)
                    assert connection.recv(1) == sent


# --- what is written -------------------------------------------------------------------------------------------------


def test_a_writer_changes_a_few_tables_most_and_all_of_them_now_and_then(tmp_path: Path) -> None:
    plan = make_plan(50, 8)
    writer = TableWriter(str(tmp_path), list(plan.tables), random.Random(5))
    drawn = Counter(writer.draw().name for _ in range(5_000))
    assert len(drawn) == 50
    hot = sum(drawn[table.name] for table in plan.tables[:5])
    assert hot / 5_000 == pytest.approx(HOT_COMMITS + (1 - HOT_COMMITS) / 10, abs=0.03)


# --- the report ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("span", "step"), [(0.0, 1.0), (5.0, 1.0), (6.0, 2.0), (600.0, 200.0), (0.7, 0.2)])
def test_ticks_are_round_numbers(span: float, step: float) -> None:
    assert nice_step(span) == pytest.approx(step)


def test_a_chart_has_its_lines_and_bands_within_its_frame() -> None:
    chart = Chart("lag <s>", [Line("p50", [(0.0, 0.0), (60.0, 2.0)])], [Band("a & b", 10.0, 20.0)])
    picture = ET.fromstring(draw([chart, Chart("empty", [])], 60.0))
    names = Counter(each.tag.rpartition("}")[2] for each in picture.iter())
    assert names["polyline"] == 1
    (line,) = (each for each in picture.iter() if each.tag.endswith("polyline"))
    (x1, y1), (x2, y2) = (map(float, point.split(",")) for point in line.attrib["points"].split())
    assert x1 < x2
    assert y1 > y2, "more is further up"
    assert {"lag <s>", "a & b"} <= {each.text for each in picture.iter()}


@pytest.fixture
def findings() -> Findings:
    return Findings(
        begin_at_s=1_000.0,
        end_at_s=1_600.0,
        size={"minutes": 10.0},
        commits=7,
        faults=[Fault("a node is killed", "iscp-1", 1_010.0, 1_020.0)],
        arrivals=[Arrival("j", 1_012.0, 9.5)],
        processes=[sample(1_000.0, "node", 1, 1 << 20, 9)],
        stores=[StoreSample(1_000.0, 11, 0, 3, 0, 1, 0), StoreSample(1_005.0, -1, 0, -1, 0, 1, 0)],
        verdicts=[Verdict("memory", "slope", 1.0, 2.0, "bytes")],
        wrong={},
    )


def test_a_report_says_what_was_found(findings: Findings, tmp_path: Path) -> None:
    write_report(findings, tmp_path)
    figures = json.loads((tmp_path / "report.json").read_text())
    assert figures["holds"] is True
    assert figures["lag_max_s"] == 9.5
    page = (tmp_path / "report.md").read_text()
    assert "All holds." in page
    assert "|10|a node is killed|iscp-1|10.0|1|9.50|9.50|9.50|1.5|" in page
    for name in ("lag.svg", "resources.svg"):
        assert name in page
        points = [
            float(number)
            for each in ET.parse(tmp_path / name).iter()
            if each.tag.endswith("polyline")
            for number in each.attrib["points"].replace(",", " ").split()
        ]
        assert points
        assert all(math.isfinite(each) for each in points)


@pytest.mark.parametrize(
    "changed",
    [
        {"wrong": {"j00001_view": "2 rows differ"}},
        {"fault": "iscp-1 has ended by itself"},
        {"verdicts": [Verdict("memory", "slope", 3.0, 2.0, "bytes")]},
    ],
)
def test_a_report_says_what_does_not_hold(findings: Findings, tmp_path: Path, changed: dict[str, object]) -> None:
    write_report(replace(findings, **changed), tmp_path)  # type: ignore[arg-type]
    assert json.loads((tmp_path / "report.json").read_text())["holds"] is False
    page = (tmp_path / "report.md").read_text()
    assert "It does not hold." in page
    assert any(each in page for each in ("2 rows differ", "ended by itself", "**no**"))
