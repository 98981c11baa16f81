"""The facts that a trigger of the user's own is handed, and the answers that it may give.

It decides from the facts alone, so that the same facts always lead to the same answer. Its answer is checked: it must
not be a time in the past, nor nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from iscp.core.values.errors import ErrorCode, TemporaryError
from iscp.core.values.untrusted_values import exact_float, shown

ASK_AGAIN_S = 0.1
"""Least time until a trigger is called again, whatever time it answers, unless something happens."""


@dataclass(frozen=True, slots=True)
class TriggerFacts:
    """A job whose source is ahead of it. Times are Unix seconds, 0 where there is none yet.

    `applied_at_s`: when the version was committed that is applied; `last_start_at_s` and `last_end_at_s` are those of
    the job's last iteration, failed ones included. `options` are those of the job's spec.
    """

    account: str
    table: str
    job: str
    applied_version: int
    applied_at_s: float
    source_version: int
    now_s: float
    last_start_at_s: float
    last_end_at_s: float
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StartNow:
    """Start an iteration to the newest version."""


@dataclass(frozen=True, slots=True)
class NotBefore:
    """Evaluate again at this time (Unix seconds, later than `now_s`), or earlier if something happens."""

    at_s: float


def wait_of(answer: object, facts: TriggerFacts) -> float:
    """Return the seconds that a job has to wait by its trigger's answer (0: none).

    Raises TemporaryError for anything that is no answer.
    """
    match answer:
        case StartNow():
            return 0.0
        case NotBefore(at_s):
            try:
                exact_s = exact_float(at_s, "at_s", -inf, inf)
            except ValueError as error:
                raise _wrong(f"NotBefore({shown(at_s)}), which is no time") from error
            if exact_s <= facts.now_s:
                raise _wrong(f"NotBefore({exact_s!r}), which is not later than now ({facts.now_s!r})")
            return max(ASK_AGAIN_S, exact_s - facts.now_s)
        case _:
            raise _wrong(f"{shown(answer)}, and neither StartNow() nor NotBefore(at_s)")


def _wrong(answer: str) -> TemporaryError:
    return TemporaryError(f"answered {answer}", code=ErrorCode.TRIGGER_FAILED)
