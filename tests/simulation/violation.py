"""What the simulator looks for."""

from __future__ import annotations


class ViolationError(BaseException):
    """A promise was broken: of safety at once, of liveness after the time that it may take.

    No error that a loop of the product could take for one of its own.
    """


def expect(holds: bool, what: str, *of: object) -> None:
    """`what` is formatted with `of` only where it does not hold: most always does."""
    if not holds:
        raise ViolationError(what.format(*of))
