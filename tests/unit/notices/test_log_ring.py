"""A node keeps the newest lines of its log in bounded memory, and answers queries for them.

The format of a line of the log.
"""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given

from iscp.model.api.api_requests import LINES_MAX, JobOfLines, LogPage, LogPlace, LogQuery
from iscp.model.settings.config import LogFormat
from iscp.model.values.untrusted_values import LogLevel
from iscp.notices.log_ring import JsonFormatter, LogRing, TextFormatter, configure_logging
from tests.fakes.poison import ERRORS, POISON

NOW_S = 1_000.0


def a_ring(bytes_max: int = 1024**2, life: int = 7) -> LogRing:
    ring = LogRing("n-1", life, lambda: NOW_S, bytes_max)
    ring.setFormatter(JsonFormatter({"node": "n-1"}))
    return ring


def put(ring: LogRing, *events: str, level: int = logging.INFO, at_s: float = NOW_S, **fields: object) -> None:
    for event in events:
        record = logging.makeLogRecord(
            {"msg": event, "levelno": level, "levelname": logging.getLevelName(level)} | fields
        )
        record.created = at_s
        ring.handle(record)


def events(page: LogPage) -> list[str]:
    return [json.loads(line.text)["event"] for line in page.lines]


def test_the_newest_lines_come_with_the_place_up_to_where_they_go() -> None:
    ring = a_ring()
    put(ring, "a", "b", "c")
    page = ring.read(LogQuery(tail=2))
    assert (page.node_id, events(page), page.place) == ("n-1", ["b", "c"], LogPlace(7, 3))
    assert [(line.number, line.at_s) for line in page.lines] == [(2, NOW_S), (3, NOW_S)]
    assert ring.read(LogQuery(page.place)) == LogPage("n-1", LogPlace(7, 3))
    put(ring, "d")
    assert events(ring.read(LogQuery(page.place))) == ["d"]


def test_bytes_are_bounded_and_what_is_missing_is_counted() -> None:
    ring = a_ring(bytes_max=2_000)
    put(ring, *(f"e{number}" for number in range(100)))
    kept = events(ring.read(LogQuery()))
    assert 5 < len(kept) < 20
    assert kept[-1] == "e99"
    page = ring.read(LogQuery(LogPlace(7, 50)))
    assert (page.lost, events(page)) == (50 - len(kept), kept)
    put(ring, "x" * 3_000)
    page = ring.read(LogQuery(LogPlace(7, 100)))
    assert (page.lost, page.lines, page.place) == (1, (), LogPlace(7, 101)), "a line that is too large is not kept"


def test_after_a_restart_the_log_starts_over() -> None:
    ring = a_ring(life=8)
    put(ring, "a", "b")
    page = ring.read(LogQuery(LogPlace(7, 500), tail=1))
    assert (page.restarted, page.lost, events(page), page.place) == (True, 0, ["a", "b"], LogPlace(8, 2))


def test_an_answer_has_so_many_lines_at_most_and_the_next_goes_on_where_it_ended() -> None:
    ring = a_ring(bytes_max=1024**3)
    put(ring, *(str(number) for number in range(LINES_MAX + 5)))
    assert events(ring.read(LogQuery()))[0] == "5"
    first = ring.read(LogQuery(LogPlace(7, 1)))
    assert (len(first.lines), first.place) == (LINES_MAX, LogPlace(7, LINES_MAX + 1))
    assert events(ring.read(LogQuery(first.place))) == [str(number) for number in range(LINES_MAX + 1, LINES_MAX + 5)]


def test_lines_are_chosen_by_level_and_by_age() -> None:
    ring = a_ring()
    put(ring, "old", level=logging.ERROR, at_s=NOW_S - 60)
    put(ring, "debug", level=logging.DEBUG)
    put(ring, "warning", level=logging.WARNING)
    put(ring, "error", level=logging.CRITICAL)
    assert events(ring.read(LogQuery(level=LogLevel.WARNING, since_s=59))) == ["warning", "error"]
    assert events(ring.read(LogQuery(level=LogLevel.INFO))) == ["old", "warning", "error"]


def test_lines_are_chosen_by_job() -> None:
    ring, job = a_ring(), JobOfLines("000000000001", "copy", "default", ("t-1", 'a "table"\\', "/lake/ordérs"))
    put(ring, "by id", job_id="000000000001")
    put(ring, "by name", table='a "table"\\')
    put(ring, "by path", table="/lake/ordérs")
    put(ring, "by shard", shard="t-1/2")
    put(ring, "only mentioned", error="000000000001 failed")
    put(ring, "another", job_id="000000000002", table="/lake/ordérs")
    assert events(ring.read(LogQuery(job=job))) == ["by id", "by name", "by path", "by shard"]


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("logging_as_before")
def test_it_has_the_lines_of_the_log_and_no_other() -> None:
    written, ring = io.StringIO(), LogRing("n-1", 1, lambda: NOW_S)
    configure_logging(LogFormat.JSON, LogLevel.INFO, {"node": "n-1"}, written, ring)
    logging.getLogger("iscp.x").debug("not logged")
    logging.getLogger("py4j").info("not logged")
    logging.getLogger("iscp.x").info("logged", extra={"job": "j\x1b[31m", "table": "\ud800"})
    assert [line.text for line in ring.read(LogQuery()).lines] == written.getvalue().splitlines()
    assert events(ring.read(LogQuery())) == ["logged"]


def test_a_line_that_cannot_be_formatted_is_left_out_as_by_every_handler(capsys: pytest.CaptureFixture[str]) -> None:
    ring = a_ring()
    put(ring, "%d", args=("no number",))
    put(ring, "well")
    assert events(ring.read(LogQuery())) == ["well"]
    assert "Logging error" in capsys.readouterr().err


def test_what_follows_is_given_however_late_it_is_fetched() -> None:
    ring = a_ring()
    put(ring, "old", at_s=NOW_S - 20)
    put(ring, "recent", at_s=NOW_S - 5)
    assert events(ring.read(LogQuery(since_s=10))) == ["recent"]
    place = LogPlace(7, 1)
    put(ring, "new", at_s=NOW_S - 15)
    assert events(ring.read(LogQuery(after=place, since_s=10))) == ["recent", "new"]


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
