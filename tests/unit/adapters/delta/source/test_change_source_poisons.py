"""What a hostile account leaves in its tables: refused by name, in bounded memory and time, in a process that lives."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.fakes.poisoned_tables import NESTED, NO_FILES, PATHS, POISONS, SECRET, VECTORS, Poison

GROWN_MIB_MAX, TOOK_S_MAX, TIMEOUT_S = 256, 20, 120
NAMED = {
    **{poison: "where a regular file belongs" for poison in NO_FILES if not poison.__name__.startswith("sparse")},
    **{poison: "bytes, more than the" for poison in NO_FILES if poison.__name__.startswith("sparse")},
    **dict.fromkeys(NESTED, "nested"),
    **dict.fromkeys(PATHS, "leads out of the table"),
    **dict.fromkeys(VECTORS, "the deletion vector of"),
}
"""What one of the errors says, of those poisons that are met without Spark."""
BY_SPARK_ALONE = ("change_data_by_dots", "vector_by_dots", "device_as_vector")
OTHERWISE = {
    "nested_checkpoint": "nests columns more than 100 levels deep",
    "nested_sidecar": "nests columns more than 100 levels deep",
    "nested_commit": "is not JSON",
    "link_as_data_file": "is a link",
    "sidecar_by_dots": "names a sidecar that is no file of its directory",
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Of all poisons, read by one process."""
    command = [sys.executable, "-m", "tests.fakes.poison_program", str(tmp_path_factory.mktemp("lake"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"ended at {lines[-1:]}: {done.stderr[-2_000:]}"
    return {line["name"]: line for line in lines if "name" in line}


@pytest.mark.parametrize("poison", POISONS, ids=lambda poison: poison.__name__)
def test_a_poison_is_refused_by_name(outcomes: dict[str, dict[str, Any]], poison: Poison) -> None:
    said = outcomes[poison.__name__]
    assert SECRET not in json.dumps([each.get("found") for each in said["outcomes"]])
    assert said["grown_kib"] < GROWN_MIB_MAX * 1024
    assert said["took_s"] < TOOK_S_MAX
    errors = [each["error"] for each in said["outcomes"] if "error" in each]
    if poison.__name__ in BY_SPARK_ALONE:
        assert not any("other" in error for error in errors), "nothing is said of what there is elsewhere"
    else:
        wanted = OTHERWISE.get(poison.__name__, NAMED[poison])
        assert any(wanted in error and poison.__name__ in error for error in errors) or any(
            wanted in error and "in the table's log" in error for error in errors
        ), errors
