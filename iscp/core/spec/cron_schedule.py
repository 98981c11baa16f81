"""Times by a cron expression as Quartz has it: seconds first, days of the week from 1 (Sunday), and `?`.

It becomes one of cronsim's, which differs in the numbers of days and has no year. For times at certain hours and at one
second cronsim is given the minutes, and treats a change of the clocks as Debian's cron does: a time that is skipped
comes right after the gap, one that is there twice comes once. Others go on as if there was none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NoReturn
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from iscp.core.values.errors import InvalidRequest

CRON_CHARACTERS_MAX = 200
"""Characters of a cron expression; a longer one is refused."""

DEFAULT_ZONE = "UTC"

_NAMES = ("seconds", "minutes", "hours", "day of month", "month", "day of week", "year")
_WHOLE = ("*", "?")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_SPANS = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (1, 7))
_EACH_HOUR = ("*", ",".join(map(str, range(24))))
_EXAMPLE = "Write it as Quartz does, as in '0 30 6 * * ?' for half past six each day"


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
    found = _QuartzFields(expression, field)
    parts = found.parts()
    second = int(parts[0]) if parts[0].isdigit() and parts[2] not in _EACH_HOUR else None
    schedule = CronSchedule(expression, zone, " ".join(parts if second is None else parts[1:]), second)
    try:
        schedule.next_after(0.0)
    except (CronSimError, StopIteration) as error:
        raise InvalidRequest(
            f"is {expression!r}, which never comes" + (f": {error}" if str(error) else ""),
            field=field,
            remedy=_EXAMPLE,
        ) from error
    return schedule


@dataclass(frozen=True, slots=True)
class _QuartzFields:
    expression: str
    field: str

    def parts(self) -> list[str]:
        """Return the fields as cronsim writes them, seconds included. Raises InvalidRequest."""
        if len(self.expression) > CRON_CHARACTERS_MAX:
            self._refuse(0, f"has more than {CRON_CHARACTERS_MAX} characters")
        found = list(re.finditer(r"\S+", self.expression))
        if len(found) not in (6, 7):
            self._refuse(0, f"has {len(found)} fields, and not six or seven: {', '.join(_NAMES)}")
        if len(found) == 7 and found[6][0] not in _WHOLE:
            self._refuse(found[6].start(), "names a year, and schedules have no end", "Write * for the year")
        days = [each[0] for each in (found[3], found[5])]
        if "?" not in days or days == ["?", "?"]:
            remedy = "Write ? for the one of both that does not count"
            self._refuse(found[3].start(), "needs ? as either the day of the month or the day of the week", remedy)
        return [self._part(place, each[0].upper(), each.start()) for place, each in enumerate(found[:6])]

    def _part(self, place: int, text: str, at: int) -> str:
        if text in _WHOLE and (text == "*" or place in (3, 5)):
            return "*"
        terms = []
        for term in text.split(","):
            terms.append(self._term(place, term, at))
            at += len(term) + 1
        return ",".join(terms)

    def _term(self, place: int, text: str, at: int) -> str:
        if place == 3 and text in ("L", "LW"):
            return text
        if place == 5 and text == "L":
            return "6"
        if place == 5 and (last := re.fullmatch(r"(\w+?)L", text)):
            return f"{self._number(place, last[1], at) - 1}L"
        if place == 5 and (nth := re.fullmatch(r"(\w+)#([1-5])", text)):
            return f"{self._number(place, nth[1], at) - 1}#{nth[2]}"
        found = re.fullmatch(r"(\*|\w+)(?:-(\w+))?(?:/(\d{1,2}))?", text)
        if not found:
            self._refuse(at, f"has {text!r} for its {_NAMES[place]}, which is not known here")
        least, most = _SPANS[place]
        if found[1] == "*":
            first, last_of = least, most
        else:
            first = self._number(place, found[1], at)
            last_of = self._number(place, found[2], at) if found[2] else most if found[3] else first
        step = int(found[3] or 1)
        if not step or (found[1] == "*" and found[2]):
            self._refuse(at, f"has {text!r} for its {_NAMES[place]}, which is not known here")
        return self._listed(place, first, last_of, step)

    def _listed(self, place: int, first: int, last: int, step: int) -> str:
        """Return each of the numbers from `first` to `last`, over the end of the span where that is below."""
        least, most = _SPANS[place]
        span = most - least + 1
        numbers: Sequence[int] = [
            least + (each - least) % span for each in range(first, last + 1 + (span if last < first else 0), step)
        ]
        return ",".join(str(each - 1 if place == 5 else each) for each in sorted({*numbers}))

    def _number(self, place: int, text: str, at: int) -> int:
        names = _DAYS if place == 5 else _MONTHS if place == 4 else ()
        if text in names:
            return names.index(text) + 1
        least, most = _SPANS[place]
        if not (text.isascii() and text.isdigit() and len(text) <= 2 and least <= int(text) <= most):
            self._refuse(at, f"has {text!r} for its {_NAMES[place]}, which is not {least} to {most}")
        return int(text)

    def _refuse(self, at: int, why: str, remedy: str = _EXAMPLE) -> NoReturn:
        message = f"{why} (at character {at + 1} of {self.expression[:80]!r})"
        raise InvalidRequest(message, field=self.field, remedy=remedy)
