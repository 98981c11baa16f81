"""Turn numbers and times into the short texts that the page shows."""

from __future__ import annotations

import math
from datetime import UTC, datetime

UNKNOWN_TEXT = "—"
"""The text of a value that is not known."""

CUT = "…"

_STEPS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def span(seconds: float) -> str:
    """Return a span of seconds with its unit, as `3 min`; UNKNOWN_TEXT below 0, and for what is no number."""
    if not math.isfinite(seconds) or seconds < 0:
        return UNKNOWN_TEXT
    for size, unit in _STEPS:
        if seconds >= size * 2 or (size == 60.0 and seconds >= 120):
            return f"{seconds / size:.0f} {unit}"
    if seconds >= 10 or seconds == 0:
        return f"{seconds:.0f} s"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{max(1, round(seconds * 1000))} ms"


def lag(most_s: float, least_s: float) -> str:
    """Return a lag as `3 min`, and as `≤ 3 min` where only the most that it can be is known."""
    return f"≤ {span(most_s)}" if most_s >= 0.0 and least_s < most_s else span(most_s)


def age(at_s: float, now_s: float) -> str:
    """Return how long ago a Unix time is; UNKNOWN_TEXT where it is 0. A time ahead is `now`, as clocks differ."""
    if at_s <= 0:
        return UNKNOWN_TEXT
    return "now" if now_s - at_s < 1 else f"{span(now_s - at_s)} ago"


def until(at_s: float, now_s: float) -> str:
    """Return in how long a Unix time is; `now` where it has passed."""
    return "now" if at_s <= now_s else f"in {span(at_s - now_s)}"


def moment(at_s: float) -> str:
    """Return a Unix time as UTC to the second; UNKNOWN_TEXT where it is 0 or beyond what a calendar has."""
    if at_s <= 0:
        return UNKNOWN_TEXT
    try:
        return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return UNKNOWN_TEXT


def count(number: float) -> str:
    """Return a number with commas between thousands; UNKNOWN_TEXT below 0."""
    return f"{number:,.0f}" if math.isfinite(number) and number >= 0 else UNKNOWN_TEXT


def some(number: int, what: str) -> str:
    """Return a number of things with their name, as `1 row` or `2,000 rows`."""
    return f"{count(number)} {what}" if number == 1 else f"{count(number)} {what}s"


def size(number: float) -> str:
    """Return bytes in the unit that has few digits; UNKNOWN_TEXT below 0."""
    if not math.isfinite(number) or number < 0:
        return UNKNOWN_TEXT
    step = 0
    while number >= 1024 and step < len(_BYTES) - 1:
        number, step = number / 1024, step + 1
    return f"{number:.0f} {_BYTES[step]}" if step == 0 or number >= 100 else f"{number:.1f} {_BYTES[step]}"


def version(number: int) -> str:
    """Return a version of a table; UNKNOWN_TEXT for -1, which is none."""
    return str(number) if number >= 0 else UNKNOWN_TEXT


def share(part: float, whole: float) -> float:
    """Return `part` of `whole` from 0 to 1; 0 where there is no whole."""
    return min(1.0, max(0.0, part / whole)) if whole > 0 and math.isfinite(part) else 0.0


def short(text: str, chars_max: int) -> str:
    """Return a text of at most so many characters, its end cut where it is longer."""
    return text if len(text) <= chars_max else text[: chars_max - 1] + CUT


def last_part(place: str, chars_max: int = 60) -> str:
    """Return the last part of a path or URI, by which people know it; its beginning is cut where that is long."""
    name = place.rstrip("/").rpartition("/")[2] or place
    return name if len(name) <= chars_max else CUT + name[1 - chars_max :]
