"""Proves what is said of a job that would be run, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from iscp.core.run.run_forecast import Forecast, forecast_action
from iscp.core.run.target_standing import TargetStanding


def forecast(
    standing: TargetStanding = TargetStanding.SAME,
    versions: Mapping[str, tuple[int, int]] | None = None,
    *,
    full: bool = False,
    void: str = "",
    upstream: Sequence[str] = (),
    replaced: Sequence[str] = (),
) -> tuple[Forecast, str]:
    return forecast_action(
        standing, versions or {"/t": (3, 3)}, full=full, void=void, upstream=upstream, replaced=replaced
    )


def test_a_target_whose_tables_have_not_changed_is_current() -> None:
    assert forecast() == (Forecast.CURRENT, "no table has changed")


@pytest.mark.parametrize("newest", [2, 4])
def test_another_version_is_a_change_also_if_it_is_a_lower_one(newest: int) -> None:
    assert forecast(versions={"/t": (3, newest), "/u": (1, 1)}) == (Forecast.UPDATE, f"/t: 3 → {newest}")


def test_a_table_that_was_replaced_is_named_though_its_version_is_the_same() -> None:
    assert forecast(replaced=["/t"]) == (Forecast.UPDATE, "/t was replaced")


def test_a_target_that_cannot_be_trusted_is_updated_for_that_reason() -> None:
    assert forecast(void="the target is not there", replaced=["/t"]) == (Forecast.UPDATE, "the target is not there")


def test_targets_that_would_be_written_are_named() -> None:
    assert forecast(upstream=["a", "b"]) == (Forecast.UPDATE, "reads 'a', 'b'")


def test_who_keeps_the_target_goes_before_what_has_changed() -> None:
    changed = {"/t": (3, 4)}
    assert forecast(TargetStanding.NEW, changed, full=True)[0] is Forecast.CREATE
    assert forecast(TargetStanding.KEPT_BY_CLUSTER, changed)[0] is Forecast.TAKE_OVER
    assert forecast(TargetStanding.OTHER_SPEC, changed, full=True) == (Forecast.REBUILD, "so requested")
