"""The figures of an index are those of its dataset, through changes and upkeep."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from iscp.index.maintenance.index_shape import figures_of
from tests.integration.index.search.small_index import SmallIndex

NAMES = ["key", "text.title", "vector"]


def figures(index: SmallIndex) -> dict[str, float]:
    return figures_of(index.store.open(), now_s=2_000.0)


def test_figures_follow_rows_and_segments(tmp_path: Path) -> None:
    options = {"columns": "title", "column": "embedding"}
    index = SmallIndex(tmp_path / "index", "search", options, [pa.field("title", pa.string())], dimension=8)
    assert figures(index)["rows"] == 0

    rows = [{"id": each, "title": f"title {each}", "embedding": [each + 1.0] * 8} for each in range(300)]
    rows[0]["embedding"] = None
    rows[1]["embedding"] = [1.0]
    index.commit(rows)
    found = figures(index)
    wanted = {"rows": 300, "faults": 1, "vectors": 298, "without_vector": 1, "dead_rows": 0, "fragments": 1}
    wanted |= {f"{name}.segments": 0 for name in NAMES} | {f"{name}.fresh_rows": 300 for name in NAMES}
    assert {name: found[name] for name in wanted} == wanted
    assert found["versions"] == index.store.open().version

    index.cover()
    covered = figures(index)
    assert {name: covered[f"{name}.segments"] for name in NAMES} == dict.fromkeys(NAMES, 1)
    assert {name: covered[f"{name}.fresh_rows"] for name in NAMES} == dict.fromkeys(NAMES, 0)
    assert covered["bytes"] > found["bytes"]

    index.commit([{"id": 5, "title": "another", "embedding": [2.0] * 8}], removed=[7])
    changed = figures(index)
    wanted = {"rows": 299, "dead_rows": 2, "fragments": 2, "key.segments": 1, "key.fresh_rows": 1}
    assert {name: changed[name] for name in wanted} == wanted
