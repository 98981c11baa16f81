"""An examination gives one verdict for each thing that a node needs, with the remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """WARNING: it runs, but look at it. FAULT: it will not run, or not safely."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Examined:
    """One thing that was looked at; `remedy` is empty where there is nothing to do."""

    subject: str
    verdict: Verdict
    found: str
    remedy: str = ""


def ok(subject: str, found: str) -> Examined:
    return Examined(subject, Verdict.OK, found)


def warning(subject: str, found: str, remedy: str) -> Examined:
    return Examined(subject, Verdict.WARNING, found, remedy)


def fault(subject: str, found: str, remedy: str) -> Examined:
    return Examined(subject, Verdict.FAULT, found, remedy)
