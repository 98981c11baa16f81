"""What a JVM prints becomes events of this process's log, whatever it is."""

from __future__ import annotations

import io
import json
import logging
import os
from pathlib import Path

import pytest

from iscp.adapters.delta.spark import jvm_launch
from iscp.adapters.delta.spark.jvm_log import LINE_LENGTH_MAX, relay_output
from iscp.adapters.telemetry.logging import JsonFormatter

EVENT = {"level": "ERROR", "class": "TaskSetManager", "said": 'Task "1" failed', "stack": "java.lang.X\n\tat y"}


def relayed(*lines: str) -> list[dict[str, str]]:
    """What is in a log of JSON lines after a JVM has printed these."""
    stream, logger = io.StringIO(), logging.getLogger("spark")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter({"node": "n-1"}))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        writer, thread = relay_output()
        os.write(writer, "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape"))
        os.close(writer)
        thread.join(10)
        assert not thread.is_alive()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_of_the_jvm_is_one_of_the_log() -> None:
    (line,) = relayed(json.dumps(EVENT))
    assert (line["event"], line["level"], line["node"]) == ("spark.said", "error", "n-1")
    assert (line["class"], line["said"], line["stack"]) == ("TaskSetManager", 'Task "1" failed', "java.lang.X\n\tat y")


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: Using incubator modules",
        "\tat java.base/x",
        "{",
        "[1]",
        "7",
        "null",
        '{"level":"WARN"}',
        "\udcff\udcfe",
        "[" * 5_000,
        "x" * 2 * LINE_LENGTH_MAX,
    ],
)
def test_whatever_else_it_prints_is_a_line_too(line: str) -> None:
    (found,) = relayed(line)
    assert (found["event"], found["level"]) == ("spark.said", "warning")
    assert 0 < len(found["said"]) <= LINE_LENGTH_MAX


def test_blank_lines_are_nothing() -> None:
    assert relayed("", "  ") == []


def test_the_jvm_has_the_option_to_print_what_is_read_here() -> None:
    text = Path(jvm_launch.__file__).with_name("log4j2.properties").read_text()
    (pattern,) = [line.partition(" = ")[2] for line in text.splitlines() if "layout.pattern" in line]
    for placed, value in (("%p", "ERROR"), ("%c{1}", "X"), ("%enc{%m}{JSON}", "m"), ("%enc{%ex{5}}{JSON}", "")):
        assert placed in pattern
        pattern = pattern.replace(placed, value)
    assert json.loads(pattern.removesuffix("%n")) == {"level": "ERROR", "class": "X", "said": "m", "stack": ""}
