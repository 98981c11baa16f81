"""What a registered job reads and writes is held to its account's roots when it is opened again, too."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from iscp.engine.account_turns import PlaceGuard
from iscp.model.access.authorization import AccountRoots
from iscp.model.job.iteration import Bounds
from iscp.model.values.errors import ErrorCode
from iscp.schedule.runner import Runner
from iscp.storage.locations import followed_places, followed_root

from .conftest import Pipeline

pytestmark = pytest.mark.spark


def test_a_source_or_target_that_became_a_link_to_elsewhere_is_neither_read_nor_written(
    pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere, root = tmp_path_factory.mktemp("elsewhere"), Path(pipeline.root).resolve()
    guard = PlaceGuard(AccountRoots({"default": (str(root),)}), followed_places, followed_root)
    runner = Runner(replace(pipeline.new_ports(pipeline.failpoints), require_places=guard.require_job), Bounds())
    job = pipeline.job("x", key=("id",))
    assert [outcome.error_msg for outcome in pipeline.run(job, runner=runner)] == [""]
    pipeline.assert_equal("x")
    pipeline.insert([100])
    for moved in (root / "x", root / "source", root / "source" / "_delta_log"):
        there = Path(shutil.move(moved, elsewhere / moved.name))
        before = DeltaTable(pipeline.target("x") if moved.name != "x" else str(there)).version()
        moved.symlink_to(there)
        (outcome,) = pipeline.run(job, runner=runner)
        assert outcome.error_code is ErrorCode.OUTSIDE_ROOTS
        assert "does not lie below a root of the account 'default'" in outcome.error_msg
        assert DeltaTable(pipeline.target("x")).version() == before
        moved.unlink()
        shutil.move(there, moved)
    assert [outcome.error_msg for outcome in pipeline.run(job, runner=runner)] == [""]
    pipeline.assert_equal("x")
