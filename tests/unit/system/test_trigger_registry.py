"""Custom triggers are found by entry point, run only if they are allowed, and cannot end the node."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from iscp.model.job.start_rule import NotBefore, StartNow, TriggerFacts
from iscp.model.spec.spec import TriggerSpec, TriggerType
from iscp.model.values.errors import ErrorCode, InvalidRequest, IscpError
from iscp.system.trigger_registry import GROUP, TriggerRegistry

FACTS = TriggerFacts("a", "t", "x", 3, 30.0, 5, 1_000.0, 900.0, 910.0, {"hour": 3})


class AtHour:
    """Starts once the clock has reached an hour of the first day."""

    def validate(self, options: Mapping[str, Any]) -> None:
        if not 0 <= options["hour"] < 24:
            raise ValueError("hour must be 0 to 23")

    def decide(self, facts: TriggerFacts) -> StartNow | NotBefore:
        at_s = facts.options["hour"] * 3_600.0
        return StartNow() if facts.now_s >= at_s else NotBefore(at_s)


class Leaving(AtHour):
    def decide(self, facts: TriggerFacts) -> StartNow | NotBefore:
        sys.exit("enough")


class Unmade(AtHour):
    def __init__(self) -> None:
        raise RuntimeError("no licence")


ENTRIES = [EntryPoint(kind.__name__, f"{__name__}:{kind.__name__}", GROUP) for kind in (AtHour, Leaving, Unmade)]
ENTRIES.append(EntryPoint("Gone", "no.such.module:Gone", GROUP))


def custom(name: str, **options: Any) -> TriggerSpec:
    return TriggerSpec(TriggerType.CUSTOM, name=name, options=options)


@pytest.fixture
def registry() -> TriggerRegistry:
    return TriggerRegistry(["AtHour", "Leaving", "Unmade", "Gone", "absent"], ENTRIES)


def test_a_trigger_is_evaluated_with_the_facts(registry: TriggerRegistry) -> None:
    registry.check(custom("AtHour", hour=3))
    assert registry.evaluate("AtHour", FACTS) == NotBefore(10_800.0)


@pytest.mark.parametrize(
    ("allow", "trigger", "field", "words"),
    [
        ([], custom("AtHour", hour=3), "spec.trigger.name", "triggers.allow"),
        (["AtHour"], custom("Leaving"), "spec.trigger.name", "use one of AtHour"),
        (["absent"], custom("absent"), "spec.trigger.name", "there are AtHour, Gone"),
        (["Gone"], custom("Gone"), "spec.trigger.name", "ModuleNotFoundError"),
        (["Unmade"], custom("Unmade"), "spec.trigger.name", "no licence"),
        (["AtHour"], custom("AtHour", hour=30), "spec.trigger.options", "hour must be 0 to 23"),
        (["AtHour"], custom("AtHour"), "spec.trigger.options", "hour"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_at_registration(
    allow: list[str], trigger: TriggerSpec, field: str, words: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        TriggerRegistry(allow, ENTRIES).check(trigger)
    assert refused.value.field == field
    assert words in str(refused.value)


def test_iscps_own_triggers_need_no_allowance() -> None:
    for job_type in (TriggerType.DEFAULT, TriggerType.GREEDY, TriggerType.PERIODIC):
        TriggerRegistry([], []).check(TriggerSpec(job_type))


def test_a_trigger_that_fails_or_leaves_does_so_alone(registry: TriggerRegistry) -> None:
    with pytest.raises(IscpError, match="SystemExit: enough") as failed:
        registry.evaluate("Leaving", FACTS)
    assert failed.value.code is ErrorCode.TRIGGER_FAILED
    with pytest.raises(IscpError, match="KeyError"):
        registry.evaluate("AtHour", TriggerFacts("a", "t", "x", 3, 30.0, 5, 1_000.0, 0.0, 0.0, {}))
    with pytest.raises(IscpError, match="is not allowed"):
        registry.evaluate("forbidden since", FACTS)


def test_installed_packages_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nightly_trigger.py").write_text(
        "from iscp.model.job.start_rule import StartNow\n"
        "class Nightly:\n"
        "    def validate(self, options): pass\n"
        "    def decide(self, facts): return StartNow()\n"
    )
    package = tmp_path / "nightly_trigger-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: nightly-trigger\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[{GROUP}]\nnightly = nightly_trigger:Nightly\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = TriggerRegistry(["nightly"])
    registry.check(custom("nightly"))
    assert registry.evaluate("nightly", FACTS) == StartNow()
