"""Checks numbers in requests, and says what is wrong with one that is out of bounds."""

from __future__ import annotations

from iscp.core.values.errors import InvalidRequest
from iscp.core.values.untrusted_values import shown


def refuse_beyond(name: str, value: float, least: float, most: float, further: str = "") -> None:
    """Raise InvalidRequest for a number beyond its bounds, and for NaN; `further` ends the remedy."""
    # NaN is between no two numbers.
    if not least <= value <= most:
        raise InvalidRequest(
            f"is {shown(value)}, and not between {least:g} and {most:g}",
            field=name,
            remedy=f"Choose a number between {least:g} and {most:g}{further}",
        )
