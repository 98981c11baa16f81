"""The tables of docs/propagation.md, made from the JSON of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.propagation.history import Step

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
"""Between these lines of the document its figures are."""


def render(found: Mapping[str, Any]) -> str:
    """Return the tables of a run in Markdown, a row a step and a column a driver."""
    drivers = list(found["drivers"])
    steps = [step.value for step in Step if any(step.value in found["drivers"][name]["steps"] for name in drivers)]

    def table(cell: Callable[[Mapping[str, Any]], str]) -> Iterable[str]:
        yield f"| | {' | '.join(drivers)} |"
        yield f"|-|{'-|' * len(drivers)}"
        for step in steps:
            cells = (found["drivers"][name]["steps"].get(step) for name in drivers)
            yield f"| {step} | {' | '.join('cannot' if each is None else cell(each) for each in cells)} |"

    parts: Sequence[tuple[str, Callable[[Mapping[str, Any]], str]]] = (
        ("End-to-end lag in seconds: median, and the value that 95 of 100 rounds do not exceed.", _lag),
        ("Seconds until the engine had nothing left to do (median).", lambda each: f"{each['settled_p50_s']:.2f}"),
        ("Processor seconds of all processes until then (mean).", lambda each: f"{each['cpu_s']:.1f}"),
        ("Megabytes written until then (mean).", lambda each: f"{each['bytes'] / 1e6:.2f}"),
        ("Right after each round.", _right),
    )
    lines = [f"### {_size(found)}", "", _machine(found), ""]
    for title, cell in parts:
        lines += [title, "", *table(cell), ""]
    lines += [line for name in drivers for line in _limits(name, found["drivers"][name])]
    return "\n".join(lines).rstrip() + "\n"


def place_into(document: Path, runs: Sequence[Mapping[str, Any]]) -> None:
    """Put the tables of runs between BEGIN and END. Raises ValueError if the document does not have these lines."""
    before, begin, rest = document.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{document} has no lines {BEGIN} and {END}")
    tables = "\n".join(map(render, runs))
    document.write_text(f"{before}{BEGIN}\n{tables}{END}{after}")


def _size(found: Mapping[str, Any]) -> str:
    return f"{found['size']['trips']:,} trips, {found['size']['days']} days of flights"


def _machine(found: Mapping[str, Any]) -> str:
    machine = found["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    size = found["size"]
    return (
        f"{found['at']}: {machine['cpus']} cores ({machine['cpu']}), {machine['memory_gib']} GiB, {machine['system']}, "
        f"Python {machine['python']}, {versions}. Load average before the run: {machine['load_before']}. "
        f"{found['views']} views, {found['derived']} derived tables, rounds: {size['rounds']}, batch interval "
        f"{size['batch_interval_s']:g} s, nodes of iscp: {size['nodes']}, idle for {size['idle_s']:g} s."
    )


def _lag(each: Mapping[str, Any]) -> str:
    return f"{each['lag_p50_s']:.2f}; {each['lag_p95_s']:.2f}" if "lag_p50_s" in each else "–"


def _right(each: Mapping[str, Any]) -> str:
    return f"no: {', '.join(each['wrong'])}" if each["wrong_rounds"] else "yes"


def _limits(name: str, driver: Mapping[str, Any]) -> Iterable[str]:
    for what, why in driver["cannot"].items():
        yield f"- `{name}` cannot do `{what}`: {why}. It has no part in the engine's figures."
