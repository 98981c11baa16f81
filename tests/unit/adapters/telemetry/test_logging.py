"""The format of a line of the log."""

from __future__ import annotations

import json
import logging
import sys

import pytest
from hypothesis import given

from iscp.adapters.telemetry.logging import JsonFormatter, TextFormatter
from tests.fakes.poison import ERRORS, POISON


def record(**extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "iscp.x", "msg": "iteration.done", "levelno": 20, "levelname": "INFO"})
    made.created, made.msecs = 1_000.25, 250.0
    vars(made).update(extra)
    return made


def test_an_event_is_one_line_of_json() -> None:
    line = JsonFormatter({"node": "n-1"}).format(record(job="a\nb", seq=3, node="other"))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-01T00:16:40.250Z",
        "level": "info",
        "event": "iteration.done",
        "logger": "iscp.x",
        "node": "n-1",
        "node_": "other",
        "job": "a\nb",
        "seq": 3,
    }


def test_values_json_does_not_know_are_written_as_text() -> None:
    assert json.loads(JsonFormatter({}).format(record(at=ValueError("x"))))["at"] == "x"


def test_a_traceback_stays_within_its_line() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        made = record(exc_info=sys.exc_info())
    line = JsonFormatter({}).format(made)
    assert "\n" not in line
    assert "ValueError: why" in json.loads(line)["exception"]


@pytest.mark.parametrize("formatter", [JsonFormatter({}), TextFormatter()])
def test_a_line_is_written_whatever_others_say(formatter: logging.Formatter) -> None:
    @given(POISON, ERRORS)
    def holds(value: object, error: BaseException) -> None:
        line = formatter.format(record(said=value, by={"a": value}, exc_info=(type(error), error, None)))
        line.encode()
        assert "\x00" not in line
        assert "\x1b" not in line
        assert len(line) < 1_000_000

    holds()


def test_a_number_of_too_many_digits_is_said_to_be_one() -> None:
    line = JsonFormatter({}).format(record(said=10**5000, job="a"))
    assert json.loads(line)["job"] == "a"
    assert json.loads(line)["said"]


def test_text_for_people() -> None:
    assert TextFormatter().format(record(seq=3)) == "1970-01-01T00:16:40.250Z info    iteration.done seq=3"
