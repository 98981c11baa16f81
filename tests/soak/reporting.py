"""What a soak found, as JSON for programs, as Markdown for people, and as pictures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.soak.faults import Fault
from tests.soak.growth import MIB, Verdict
from tests.soak.lags import Arrival, FaultLag, bins, middle_and_most, through_faults
from tests.soak.plotting import Band, Chart, Line, draw
from tests.soak.sampling import ProcessSample, StoreSample

BINS = 120
"""Bins of the chart of lags."""

SHOWN_MAX = 20
"""Faults of targets that the page shows; the JSON has all of them."""


@dataclass(frozen=True, slots=True)
class Findings:
    """All of a soak. `wrong`: what is wrong with targets, by the jobs' names; `fault`: why it ended early, if so."""

    begin_at_s: float
    end_at_s: float
    size: Mapping[str, float]
    commits: int
    faults: Sequence[Fault]
    arrivals: Sequence[Arrival]
    processes: Sequence[ProcessSample]
    stores: Sequence[StoreSample]
    verdicts: Sequence[Verdict]
    wrong: Mapping[str, str]
    fault: str = ""

    @property
    def holds(self) -> bool:
        return not self.fault and not self.wrong and all(each.holds for each in self.verdicts)


def write_report(findings: Findings, folder: Path) -> None:
    """Write report.json, report.md, lag.svg and resources.svg into `folder`, which is there."""
    through = through_faults(findings.arrivals, findings.faults)
    (folder / "report.json").write_text(json.dumps(_figures(findings, through), indent=1) + "\n")
    (folder / "report.md").write_text(_page(findings, through))
    span_s = findings.end_at_s - findings.begin_at_s
    (folder / "lag.svg").write_text(draw([_lag_chart(findings)], span_s))
    (folder / "resources.svg").write_text(draw(_resource_charts(findings), span_s))


def _figures(findings: Findings, through: Sequence[FaultLag]) -> dict[str, Any]:
    p50_s, p95_s, max_s = middle_and_most([each.lag_s for each in findings.arrivals])
    return {
        "holds": findings.holds,
        "fault": findings.fault,
        "size": dict(findings.size),
        "seconds": round(findings.end_at_s - findings.begin_at_s, 1),
        "commits": findings.commits,
        "arrivals": len(findings.arrivals),
        "lag_p50_s": round(p50_s, 3),
        "lag_p95_s": round(p95_s, 3),
        "lag_max_s": round(max_s, 3),
        "faults": [asdict(each) for each in through],
        "verdicts": [asdict(each) | {"holds": each.holds} for each in findings.verdicts],
        "wrong": dict(findings.wrong),
        "processes": [asdict(each) for each in findings.processes],
        "stores": [asdict(each) for each in findings.stores],
    }


def _page(findings: Findings, through: Sequence[FaultLag]) -> str:
    figures = _figures(findings, through)
    size = ", ".join(f"{value:g} {name}" for name, value in findings.size.items())
    lines = [
        "# Soak",
        "",
        f"**{'All holds.' if findings.holds else 'It does not hold.'}** {size}; {figures['seconds']:g} s, "
        f"{figures['commits']} commits, {figures['arrivals']} arrivals of them in targets. "
        f"Lag: {figures['lag_p50_s']:g} s median, {figures['lag_p95_s']:g} s p95, {figures['lag_max_s']:g} s at most.",
        "",
        *([f"It ended early: {findings.fault}", ""] if findings.fault else []),
        "## Targets",
        "",
        f"{len(findings.wrong)} are wrong." if findings.wrong else "Each has what its source has, each row as often.",
        *(f"\n- `{name}`:\n```\n{why.strip()}\n```" for name, why in list(findings.wrong.items())[:SHOWN_MAX]),
        "",
        "## Faults",
        "",
        "![lag](lag.svg)",
        "",
        *_table(
            "at s|fault|whom|lasted s|commits|lag p50 s|p95 s|max s|recovered after s",
            (
                f"{each.fault.begin_at_s - findings.begin_at_s:.0f}|{each.fault.what}|{each.fault.whom}|"
                f"{each.fault.end_at_s - each.fault.begin_at_s:.1f}|{each.commits}|{each.p50_s:.2f}|{each.p95_s:.2f}|"
                f"{each.max_s:.2f}|{each.recovered_s:.1f}"
                for each in through
            ),
        ),
        "",
        "## Growth",
        "",
        "![resources](resources.svg)",
        "",
        *_table(
            "what|criterion|found|bound|holds",
            (
                f"{each.what}|{each.criterion}|{_amount(each.found, each.unit)}|{_amount(each.bound, each.unit)}|"
                f"{'yes' if each.holds else '**no**'}"
                for each in findings.verdicts
            ),
        ),
        "",
    ]
    return "\n".join(lines)


def _amount(value: float, unit: str) -> str:
    return f"{value / MIB:.1f} MiB" if unit == "bytes" else f"{value:.1f}"


def _table(head: str, rows: Iterable[str]) -> list[str]:
    return [f"|{head}|", "|" + "-|" * (head.count("|") + 1), *(f"|{row}|" for row in rows)]


def _bands(findings: Findings) -> list[Band]:
    begin_s = findings.begin_at_s
    return [
        Band(f"{each.what}: {each.whom}", each.begin_at_s - begin_s, each.end_at_s - begin_s)
        for each in findings.faults
    ]


def _lag_chart(findings: Findings) -> Chart:
    width_s = max(1.0, (findings.end_at_s - findings.begin_at_s) / BINS)
    found = [(each, each.at_s - findings.begin_at_s) for each in bins(findings.arrivals, width_s)]
    lines = [
        Line("p50", [(x, each.p50_s) for each, x in found]),
        Line("p95", [(x, each.p95_s) for each, x in found]),
        Line("max", [(x, each.max_s) for each, x in found]),
    ]
    return Chart("lag of commits by the time of the commit, s", [lines[2], lines[1], lines[0]], _bands(findings))


def _resource_charts(findings: Findings) -> list[Chart]:
    begin_s, bands = findings.begin_at_s, _bands(findings)

    def of_processes(role: str, quantity: Callable[[ProcessSample], int], unit: float = 1.0) -> list[Line]:
        names = sorted({each.whose for each in findings.processes if each.role == role})
        return [
            Line(
                name,
                [
                    (each.at_s - begin_s, quantity(each) / unit)
                    for each in findings.processes
                    if each.role == role and each.whose == name
                ],
            )
            for name in names
        ]

    def of_stores(name: str, quantity: Callable[[StoreSample], int], unit: float = 1.0) -> Line:
        known = [(each.at_s, float(quantity(each))) for each in findings.stores]
        return Line(name, [(at_s - begin_s, value / unit) for at_s, value in known if value >= 0])

    return [
        Chart("memory of the nodes' Python, MiB", of_processes("node", lambda each: each.memory_bytes, MIB), bands),
        Chart("memory of the nodes' JVMs, MiB", of_processes("jvm", lambda each: each.memory_bytes, MIB), bands),
        Chart("handles of the nodes' Python", of_processes("node", lambda each: each.handles), bands),
        Chart("threads of the nodes' Python", of_processes("node", lambda each: each.threads), bands),
        Chart("keys in etcd", [of_stores("keys", lambda each: each.etcd_keys)], bands),
        Chart("bytes of etcd on disk, MiB", [of_stores("etcd", lambda each: each.etcd_bytes, MIB)], bands),
        Chart(
            "files in use",
            [of_stores("job log", lambda each: each.log_files), of_stores("history", lambda each: each.history_files)],
            bands,
        ),
        Chart("bytes of the log on disk, MiB", [of_stores("log", lambda each: each.log_bytes, MIB)], bands),
        Chart("bytes of the history on disk, MiB", [of_stores("history", lambda each: each.history_bytes, MIB)], bands),
    ]
