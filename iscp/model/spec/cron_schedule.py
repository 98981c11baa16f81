"""Times by a cron expression: of five fields as cron and Kubernetes have it, or of six or seven as Quartz has it.

The number of fields says which it is. Quartz has seconds first, days of the week from 1 (Sunday), and `?` for the day
that does not count. Five fields begin with the minutes, and Sunday is 0 or 7; if both days are restricted, either is
enough, as for Airflow, Dagster and Kubernetes. Debian's cron has it otherwise for a day like `*/2` alone.

Both become an expression of cronsim's, which counts days as the shorter form and has no year. For times at certain
hours and at one second cronsim is given the minutes, and treats a change of the clocks as Debian's cron does: a time
that is skipped comes right after the gap, one that is there twice comes once. Others go on as if there was none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import ClassVar, NoReturn
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from iscp.model.values.errors import InvalidRequest

CRON_CHARACTERS_MAX = 200
"""Characters of a cron expression; a longer one is refused."""

DEFAULT_ZONE = "UTC"

_NAMES = ("seconds", "minutes", "hours", "day of month", "month", "day of week", "year")
_WHOLE = ("*", "?")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_SPANS = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12))
_EACH_HOUR = ("*", ",".join(map(str, range(24))))
_DAY_OF_MONTH, _MONTH, _DAY_OF_WEEK = 3, 4, 5
_WEEK = 7
_EXAMPLE = "Write it as Quartz does, as in '0 30 6 * * ?' for half past six each day"
_SHORT_EXAMPLE = "Write it as cron does, as in '30 6 * * *' for half past six each day"


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """A parsed expression. `second` is the one at which all of its times lie; None: `fields` has the seconds too."""

    expression: str
    time_zone: str
    fields: str
    second: int | None

    def next_after(self, at_s: float) -> float:
        """Return the first of its times after `at_s`, both Unix seconds."""
        shift = timedelta(seconds=self.second or 0)
        start = (datetime.fromtimestamp(at_s, UTC) - shift).astimezone(ZoneInfo(self.time_zone))
        # Within an hour that is there twice the one that is named next may be the earlier of both.
        found = (each.timestamp() + shift.total_seconds() for each in CronSim(self.fields, start))
        return next(each for each in found if each > at_s)


@lru_cache(maxsize=1024)
def parse_cron(expression: str, time_zone: str, field: str = "", zone_field: str = "") -> CronSchedule:
    """Parse an expression; raise InvalidRequest of `field` or `zone_field`. Places in the expression count from 1."""
    zone = time_zone or DEFAULT_ZONE
    try:
        ZoneInfo(zone)
    except (ValueError, OSError, KeyError) as error:
        raise InvalidRequest(
            f"is {zone[:60]!r}, which is no time zone that is known here",
            field=zone_field,
            remedy="Name one as the time zone database does, as Europe/Berlin",
        ) from error
    form = _form_of(expression, field)
    parts = form.parts()
    second = int(parts[0]) if parts[0].isdigit() and parts[2] not in _EACH_HOUR else None
    schedule = CronSchedule(expression, zone, " ".join(parts if second is None else parts[1:]), second)
    try:
        schedule.next_after(0.0)
    except (CronSimError, StopIteration) as error:
        raise InvalidRequest(
            f"is {expression!r}, which never comes" + (f": {error}" if str(error) else ""),
            field=field,
            remedy=form.example,
        ) from error
    return schedule


def _form_of(expression: str, field: str) -> _QuartzFields | _ShortFields:
    """Return the form that an expression has by its number of fields. Raises InvalidRequest."""
    quartz = _QuartzFields(expression, field)
    if len(expression) > CRON_CHARACTERS_MAX:
        quartz.refuse(0, f"has more than {CRON_CHARACTERS_MAX} characters")
    number = len(quartz.texts())
    if number == 5:
        return _ShortFields(expression, field)
    if number not in (6, 7):
        forms = f"neither five ({', '.join(_NAMES[1:6])}) nor six or seven, as Quartz has ({', '.join(_NAMES)})"
        quartz.refuse(0, f"has {number} fields: {forms}", f"{_SHORT_EXAMPLE}, or as Quartz does: '0 30 6 * * ?'")
    return quartz


@dataclass(frozen=True, slots=True)
class _Fields:
    """The fields of an expression, term by term. The days of the week are numbered from `first_day`, Sunday."""

    expression: str
    field: str
    first_day: ClassVar[int]
    last_day: ClassVar[int]
    example: ClassVar[str]

    def texts(self) -> list[re.Match[str]]:
        return list(re.finditer(r"\S+", self.expression))

    def part(self, place: int, text: str, at: int) -> str:
        """Return a field as cronsim writes it. Raises InvalidRequest."""
        terms = []
        for term in text.split(","):
            terms.append(self._term(place, term, at))
            at += len(term) + 1
        return "*" if "*" in terms else ",".join(terms)

    def refuse(self, at: int, why: str, remedy: str = "") -> NoReturn:
        message = f"{why} (at character {at + 1} of {self.expression[:80]!r})"
        raise InvalidRequest(message, field=self.field, remedy=remedy or self.example)

    def _term(self, place: int, text: str, at: int) -> str:
        if text == "*":
            return text
        if place == _DAY_OF_MONTH and text in ("L", "LW"):
            return text
        if place == _DAY_OF_WEEK and (last := re.fullmatch(r"(\w+?)L", text)):
            return f"{self._day(self._number(place, last[1], at))}L"
        if place == _DAY_OF_WEEK and (nth := re.fullmatch(r"(\w+)#([1-5])", text)):
            return f"{self._day(self._number(place, nth[1], at))}#{nth[2]}"
        found = re.fullmatch(r"(\*|\w+)(?:-(\w+))?(?:/(\d{1,2}))?", text)
        if not found:
            self.refuse(at, f"has {text!r} for its {_NAMES[place]}, which is not known here")
        least, most = self._span(place)
        if found[1] == "*":
            first, last_of = least, most
        else:
            first = self._number(place, found[1], at)
            last_of = self._number(place, found[2], at) if found[2] else most if found[3] else first
        step = int(found[3] or 1)
        if not step or (found[1] == "*" and found[2]):
            self.refuse(at, f"has {text!r} for its {_NAMES[place]}, which is not known here")
        if found[1] == "*" and step == 1:
            return "*"
        return self._listed(place, first, last_of, step)

    def _span(self, place: int) -> tuple[int, int]:
        """Return the least number, and the greatest that `*` stands for; days of the week go on beyond that."""
        return (self.first_day, self.first_day + _WEEK - 1) if place == _DAY_OF_WEEK else _SPANS[place]

    def _listed(self, place: int, first: int, last: int, step: int) -> str:
        """Return each of the numbers from `first` to `last`, over the end of the span where that is below."""
        least, most = self._span(place)
        span = most - least + 1
        numbers: Sequence[int] = [
            least + (each - least) % span for each in range(first, last + 1 + (span if last < first else 0), step)
        ]
        return ",".join(str(self._day(each) if place == _DAY_OF_WEEK else each) for each in sorted({*numbers}))

    def _number(self, place: int, text: str, at: int) -> int:
        if place == _DAY_OF_WEEK and text in _DAYS:
            return self.first_day + _DAYS.index(text)
        if place == _MONTH and text in _MONTHS:
            return _MONTHS.index(text) + 1
        least, most = (self.first_day, self.last_day) if place == _DAY_OF_WEEK else _SPANS[place]
        if not (text.isascii() and text.isdigit() and len(text) <= 2 and least <= int(text) <= most):
            self.refuse(at, f"has {text!r} for its {_NAMES[place]}, which is not {least} to {most}")
        return int(text)

    def _day(self, number: int) -> int:
        """Return a day of the week as cronsim numbers it, from 0."""
        return (number - self.first_day) % _WEEK


class _QuartzFields(_Fields):
    """An expression of six or seven fields."""

    first_day, last_day, example = 1, 7, _EXAMPLE

    def parts(self) -> list[str]:
        """Return the fields as cronsim writes them, seconds included. Raises InvalidRequest."""
        found = self.texts()
        if len(found) == 7 and found[6][0] not in _WHOLE:
            self.refuse(found[6].start(), "names a year, and schedules have no end", "Write * for the year")
        days = [found[place][0] for place in (_DAY_OF_MONTH, _DAY_OF_WEEK)]
        if "?" not in days or days == ["?", "?"]:
            self.refuse(
                found[_DAY_OF_MONTH].start(),
                "needs ? as either the day of the month or the day of the week",
                "Write ? for the one of both that does not count; five fields, without seconds, have none",
            )
        return [self.part(place, each[0].upper(), each.start()) for place, each in enumerate(found[:6])]

    def part(self, place: int, text: str, at: int) -> str:
        if place in (_DAY_OF_MONTH, _DAY_OF_WEEK) and text == "?":
            return "*"
        return super().part(place, text, at)

    def _term(self, place: int, text: str, at: int) -> str:
        return "6" if place == _DAY_OF_WEEK and text == "L" else super()._term(place, text, at)


class _ShortFields(_Fields):
    """An expression of five fields, of times at second 0."""

    first_day, last_day, example = 0, 7, _SHORT_EXAMPLE

    def parts(self) -> list[str]:
        """Return the fields as cronsim writes them, seconds included. Raises InvalidRequest."""
        found = self.texts()
        for each in found:
            if "?" in each[0]:
                self.refuse(
                    each.start(),
                    "has 5 fields, as cron has it, and a ?, which Quartz alone has",
                    "Write * instead, or put the seconds before it, as in '0 30 6 * * ?'",
                )
        return ["0", *(self.part(place, each[0].upper(), each.start()) for place, each in enumerate(found, 1))]
