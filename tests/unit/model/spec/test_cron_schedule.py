"""Times by cron, as Quartz writes them, and by five fields as cron does."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import assume, given
from hypothesis import strategies as st

from iscp.model.spec.cron_schedule import CRON_CHARACTERS_MAX, CronSchedule, parse_cron
from iscp.model.values.errors import InvalidRequest


def times(schedule: CronSchedule, start: str, number: int) -> list[str]:
    """The next ones after a local time."""
    zone = ZoneInfo(schedule.time_zone)
    at_s, found = datetime.fromisoformat(start).replace(tzinfo=zone).timestamp(), []
    for _ in range(number):
        at_s = schedule.next_after(at_s)
        found.append(datetime.fromtimestamp(at_s, zone).strftime("%m-%dT%H:%M:%S"))
    return found


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 30 6 * * ?", ["03-10T06:30:00", "03-11T06:30:00"]),
        ("15 0/20 * * * ? *", ["03-10T00:00:15", "03-10T00:20:15", "03-10T00:40:15"]),
        ("*/30 * * * * ?", ["03-10T00:00:30", "03-10T00:01:00"]),
        ("0 0 12 ? * 2", ["03-16T12:00:00", "03-23T12:00:00"]),
        ("0 0 12 ? * MON-FRI", ["03-10T12:00:00", "03-11T12:00:00", "03-12T12:00:00", "03-13T12:00:00"]),
        ("0 0 12 ? * fri-mon", ["03-13T12:00:00", "03-14T12:00:00", "03-15T12:00:00", "03-16T12:00:00"]),
        ("0 0 22-2 * * ?", ["03-10T01:00:00", "03-10T02:00:00", "03-10T22:00:00", "03-10T23:00:00"]),
        ("0 0 0 L * ?", ["03-31T00:00:00", "04-30T00:00:00"]),
        ("0 0 0 LW FEB,MAY ?", ["05-29T00:00:00"]),
        ("0 0 0 ? * 6L", ["03-27T00:00:00", "04-24T00:00:00"]),
        ("0 0 0 ? * 6#2", ["03-13T00:00:00", "04-10T00:00:00"]),
        ("0 0 0 ? * L", ["03-14T00:00:00"]),
        ("0 0 8-18/4 1,15 * ?", ["03-15T08:00:00", "03-15T12:00:00", "03-15T16:00:00", "04-01T08:00:00"]),
    ],
)
def test_times_are_those_of_quartz(expression: str, expected: list[str]) -> None:
    assert times(parse_cron(expression, ""), "2026-03-10T00:00:00", len(expected)) == expected


# 2026-03-10 is a Tuesday.
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("30 6 * * *", ["03-10T06:30:00", "03-11T06:30:00"]),
        ("* * * * *", ["03-10T00:01:00", "03-10T00:02:00"]),
        ("*/20 * * * *", ["03-10T00:20:00", "03-10T00:40:00", "03-10T01:00:00"]),
        ("5/20 * * * *", ["03-10T00:05:00", "03-10T00:25:00", "03-10T00:45:00", "03-10T01:05:00"]),
        ("0 12 * * 0", ["03-15T12:00:00", "03-22T12:00:00"]),
        ("0 12 * * 7", ["03-15T12:00:00", "03-22T12:00:00"]),
        ("0 12 * * SUN", ["03-15T12:00:00", "03-22T12:00:00"]),
        ("0 12 * * 1", ["03-16T12:00:00", "03-23T12:00:00"]),
        ("0 12 * * 6", ["03-14T12:00:00", "03-21T12:00:00"]),
        ("0 12 * * 1-5", ["03-10T12:00:00", "03-11T12:00:00", "03-12T12:00:00", "03-13T12:00:00", "03-16T12:00:00"]),
        ("0 12 * * 5-7", ["03-13T12:00:00", "03-14T12:00:00", "03-15T12:00:00", "03-20T12:00:00"]),
        ("0 12 * * fri-mon", ["03-13T12:00:00", "03-14T12:00:00", "03-15T12:00:00", "03-16T12:00:00"]),
        ("0 12 * * 7-1", ["03-15T12:00:00", "03-16T12:00:00", "03-22T12:00:00"]),
        ("0 12 * * 0-7", ["03-10T12:00:00", "03-11T12:00:00", "03-12T12:00:00"]),
        ("0 12 * * */2", ["03-10T12:00:00", "03-12T12:00:00", "03-14T12:00:00", "03-15T12:00:00"]),
        ("0 12 * * 1/2", ["03-11T12:00:00", "03-13T12:00:00", "03-16T12:00:00", "03-18T12:00:00"]),
        ("0 0 L * *", ["03-31T00:00:00", "04-30T00:00:00"]),
        ("0 0 * * 5L", ["03-27T00:00:00", "04-24T00:00:00"]),
        ("0 0 * * 5#2", ["03-13T00:00:00", "04-10T00:00:00"]),
        ("0 0 * * 7#1", ["04-05T00:00:00", "05-03T00:00:00"]),
        ("0 0 1,15 JAN,APR *", ["04-01T00:00:00", "04-15T00:00:00"]),
        ("0 22-2 * * *", ["03-10T01:00:00", "03-10T02:00:00", "03-10T22:00:00"]),
        # Either day is enough where both are restricted, also by a step; a `*` in a list restricts nothing.
        ("0 0 13 * 5", ["03-13T00:00:00", "03-20T00:00:00", "03-27T00:00:00", "04-03T00:00:00", "04-10T00:00:00"]),
        ("0 0 */10 * 1", ["03-11T00:00:00", "03-16T00:00:00", "03-21T00:00:00", "03-23T00:00:00", "03-30T00:00:00"]),
        ("0 0 */1 * 1", ["03-16T00:00:00", "03-23T00:00:00"]),
        ("0 0 13 * *,5", ["03-13T00:00:00", "04-13T00:00:00"]),
    ],
)
def test_five_fields_are_those_of_cron(expression: str, expected: list[str]) -> None:
    assert times(parse_cron(expression, ""), "2026-03-10T00:00:00", len(expected)) == expected


QUARTZ_DAYS = {"*": "?", "0": "1", "1": "2", "6": "7", "7": "1", "1-5": "2-6", "5-7": "6-1", "0-3": "1-4"} | {
    "SAT": "SAT",
    "MON,WED": "2,4",
    "2-6/2": "3-7/2",
    "3#2": "4#2",
    "4L": "5L",
    "SUN#1": "1#1",
    "7L": "1L",
}
"""Days of the week as cron numbers them, and the same as Quartz does."""

FIVE = st.builds(
    "{} {} {} {} {}".format,
    st.sampled_from(["0", "59", "*/15", "5-10", "1,2,40", "*", "10-50/20"]),
    st.sampled_from(["0", "2", "3", "*/6", "8-18/4", "*", "22,23"]),
    st.sampled_from(["*", "1", "28", "1,15", "10-20/3", "L", "LW"]),
    st.sampled_from(["*", "2", "JAN-MAR", "*/5", "10"]),
    st.sampled_from([*QUARTZ_DAYS]),
)


@given(FIVE, st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]))
def test_five_fields_give_the_times_of_cronsim_itself(expression: str, zone: str) -> None:
    start = datetime(2026, 3, 7, tzinfo=ZoneInfo(zone))
    # Steps of `*` are written out: they are hours and days like any others, also for a change of the clocks.
    written_out = expression.replace("*/15", "0,15,30,45").replace("*/6", "0,6,12,18").replace("*/5", "1,6,11")
    itself = CronSim(written_out, start)
    schedule, at_s = parse_cron(expression, zone), start.timestamp()
    expected: list[float] = []
    while len(expected) < 40:
        if (found := next(itself).timestamp()) > (expected[-1] if expected else at_s):
            expected.append(found)
    for each in expected:
        at_s = schedule.next_after(at_s)
        assert at_s == each


@given(FIVE)
def test_quartz_says_the_same_with_seconds_and_days_from_one(expression: str) -> None:
    minutes, hours, day, month, day_of_week = expression.split()
    assume("*" in (day, day_of_week))  # Quartz cannot say both
    days = ("?" if day_of_week != "*" else day, QUARTZ_DAYS[day_of_week])
    quartz = parse_cron(f"0 {minutes} {hours} {days[0]} {month} {days[1]}", "Europe/Berlin")
    short = parse_cron(expression, "Europe/Berlin")
    at_s = datetime(2026, 3, 7).timestamp()
    for _ in range(20):
        following = short.next_after(at_s)
        assert quartz.next_after(at_s) == following
        at_s = following


def test_a_time_is_after_the_given_one_and_never_the_same() -> None:
    schedule = parse_cron("0 0 0 * * ?", "")
    assert schedule.next_after(86_400.0) == 2 * 86_400.0
    assert schedule.next_after(86_399.999) == 86_400.0


@pytest.mark.parametrize("second", [0, 20])
def test_a_time_that_a_change_of_clocks_skips_comes_right_after_the_gap(second: int) -> None:
    """In Berlin 2026-03-29 has no time from 02:00 to 03:00."""
    found = times(parse_cron(f"{second} 30 2 * * ?", "Europe/Berlin"), "2026-03-28T12:00:00", 2)
    assert found == [f"03-29T03:00:{second:02}", f"03-30T02:30:{second:02}"]


def test_a_time_that_is_there_twice_comes_once() -> None:
    """In Berlin 2026-10-25 has the hour from 02:00 to 03:00 twice."""
    schedule = parse_cron("0 30 2 * * ?", "Europe/Berlin")
    assert times(schedule, "2026-10-24T12:00:00", 2) == ["10-25T02:30:00", "10-26T02:30:00"]


def test_every_so_many_minutes_goes_on_through_a_change_of_clocks() -> None:
    for day in ("2026-03-29", "2026-10-25"):
        start = datetime.fromisoformat(f"{day}T00:00:00").replace(tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
        schedule, found = parse_cron("0 */30 * * * ?", "Europe/Berlin"), [start]
        for _ in range(12):
            found.append(schedule.next_after(found[-1]))
        apart = [later - earlier for earlier, later in zip(found, islice(found, 1, None), strict=False)]
        assert apart == [timedelta(minutes=30).total_seconds()] * 12


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 0 * * ?", "has 5 fields"),
        ("0 0 ? * 1", "has 5 fields, as cron has it, and a ?, which Quartz alone has (at character 5"),
        ("* * * *", "has 4 fields: neither five (minutes, hours, day of month, month, day of week) nor six or seven"),
        ("0 0 * * 8", "'8' for its day of week, which is not 0 to 7 (at character 9"),
        ("0 0 * * L", "'L' for its day of week, which is not 0 to 7"),
        ("60 0 * * *", "'60' for its minutes, which is not 0 to 59 (at character 1"),
        ("0 0 0 * *", "'0' for its day of month, which is not 1 to 31 (at character 5"),
        ("0 0 31 2 *", "never comes"),
        ("@daily", "has 1 fields"),
        ("0 0 0 * * *", "needs ? as either"),
        ("0 0 0 ? * ?", "needs ? as either"),
        ("0 0 0 1 1 ? 2030", "names a year, and schedules have no end (at character 13"),
        ("0 61 0 * * ?", "'61' for its minutes, which is not 0 to 59 (at character 3"),
        ("0 0 0 15W * ?", "'15W' for its day of month"),
        ("0 0 0 L-3 * ?", "for its day of month"),
        ("0 0 0 ? * 0", "'0' for its day of week, which is not 1 to 7"),
        ("0 0 0 ? FOO MON", "'FOO' for its month"),
        ("0 5,1x 0 * * ?", "at character 5 of"),
        ("0 0/0 0 * * ?", "'0/0' for its minutes"),
        ("0 0 0 31 2 ?", "never comes"),
        ("? 0 0 * * ?", "'?' for its seconds"),
        ("0 0 0 * * ?" + " " * CRON_CHARACTERS_MAX, "characters"),
    ],
)
def test_what_is_no_cron_expression_is_refused_with_its_place(expression: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_cron(expression, "", "spec.trigger.schedule.cron")
    assert words in refused.value.message
    assert refused.value.field == "spec.trigger.schedule.cron"
    assert refused.value.remedy


@pytest.mark.parametrize("zone", ["Mars/Base", "../etc/passwd", "/etc/passwd", "Europe", "x" * 5_000])
def test_a_zone_that_is_none_is_refused(zone: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_cron("0 0 0 * * ?", zone, "cron", "zone")
    assert refused.value.field == "zone"
