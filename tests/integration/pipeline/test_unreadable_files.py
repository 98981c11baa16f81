"""A file of the source that is gone or damaged: one error, whatever comes upon it; the job goes on when it is back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from iscp.core.errors import ErrorCode
from tests.integration.pipeline.conftest import SPARK_IN_FULL, Pipeline
from tests.selection import in_full

pytestmark = pytest.mark.spark

MESSAGE_LENGTH_MAX = 1_500


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:200])


def only_file(pipeline: Pipeline, version: int) -> Path:
    lines = Path(pipeline.source, "_delta_log", f"{version:020d}.json").read_text().splitlines()
    (added,) = [action["add"]["path"] for action in map(json.loads, lines) if "add" in action]
    return Path(pipeline.source, added)


@SPARK_IN_FULL
@pytest.mark.parametrize("key", in_full([("id",), ()]), ids=["keyed", "without key"])
@pytest.mark.parametrize("version", [0, 1], ids=["snapshot", "tail"])
@pytest.mark.parametrize("damage", [Path.unlink, _cut], ids=["gone", "cut"])
def test_a_file_that_is_gone_or_damaged(
    pipeline: Pipeline, key: tuple[str, ...], version: int, damage: Callable[[Path], None]
) -> None:
    job = pipeline.job("j", key=key)
    if version:
        (built,) = pipeline.build(job)
        assert built.ok
        pipeline.insert([100])
    file = only_file(pipeline, version)
    content = file.read_bytes()
    damage(file)
    (outcome,) = pipeline.run(job)
    assert outcome.error_code == ErrorCode.FILE_LOST, outcome.error_msg
    assert outcome.error_msg.startswith((f"{file} is not there", f"{file} cannot be read"))
    assert len(outcome.error_msg) < MESSAGE_LENGTH_MAX
    assert "\n" not in outcome.error_msg
    file.write_bytes(content)
    (after,) = pipeline.run(job)
    assert after.ok, after.error_msg
    pipeline.assert_equal("j")
