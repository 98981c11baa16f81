"""A table is split and merged while it changes and nodes die: its users see one job, and no row is wrong."""

from __future__ import annotations

import random
import sqlite3
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from iscp.app.registry import GROUP
from iscp.model.values.errors import InvalidRequest
from tests.e2e.harness import delete, upsert, wait_for
from tests.e2e.many_nodes import ManyNodes
from tests.fakes.packages import install

EXAMPLES = Path(__file__).parents[2] / "examples"


class Split(ABC):
    """A job on two nodes, of a consumer whose sinks are sharded."""

    consumer = ""
    environ: Mapping[str, str] = {}
    options: Mapping[str, int] = {}

    def __init__(self, nodes: ManyNodes, root: Path) -> None:
        self.nodes, self.target, self.draw = nodes, str(root / "target"), random.Random(5)
        nodes.start(**self.environ)
        self.source = nodes.table("orders", _rows(range(200), "first"))
        how = {"consumer": self.consumer, "target": self.target, "key": ["id"], "options": self.options}
        nodes.client.register(self.source, "mirror", **how)  # type: ignore[arg-type]

    @abstractmethod
    def rows(self) -> list[tuple[int, str]]:
        """What the target says that the source holds."""

    def change(self, times: int = 3) -> None:
        for _ in range(times):
            ids = sorted({self.draw.randrange(300) for _ in range(20)})
            upsert(self.source, _rows(ids, f"v{self.draw.random()}"), ["id"])
        delete(self.source, f"id % 50 = {self.draw.randrange(50)}")

    def holders(self) -> dict[int, str]:
        shards = self.nodes.client.operator.placement(self.source)
        return {each.range_id: each.node_id for each in shards if each.state == "running"}

    def wait_running(self, *ranges: int) -> None:
        wait_for("all ranges run, and no others", lambda: set(self.holders()) == set(ranges))

    def settle(self) -> None:
        view = self.nodes.client.wait(self.source, "mirror", timeout_s=120.0)
        assert view.applied_version == DeltaTable(self.source).version()
        source = DeltaTable(self.source).to_pyarrow_table().to_pylist()
        assert sorted(self.rows()) == sorted((row["id"], row["v"]) for row in source)

    def restart(self, node_id: str) -> None:
        self.nodes.members[node_id].kill()
        self.nodes.begin(node_id, **self.environ)


class SplitExample(Split):
    """The sharded example of docs/consumers.md."""

    consumer = "iscp_sqlite_sharded"

    def __init__(self, nodes: ManyNodes, root: Path) -> None:
        for name, kind in (("iscp_sqlite", "SqliteTable"), ("iscp_sqlite_sharded", "ShardedSqliteTable")):
            install(root / "site", name, (EXAMPLES / f"{name}.py").read_text(), GROUP, **{name: kind})
        self.environ = {"PYTHONPATH": str(root / "site"), "ISCP_CONSUMERS__ALLOW": "iscp_sqlite_sharded"}
        super().__init__(nodes, root)

    def rows(self) -> list[tuple[int, str]]:
        with closing(sqlite3.connect(self.target)) as db:
            return list(db.execute("SELECT id, v FROM rows"))


class SplitFeed(Split):
    """A changefeed; a replay of it takes away only what is there."""

    consumer, options = "changefeed", {"shards": 8}

    def rows(self) -> list[tuple[int, str]]:
        held: Counter[tuple[int, str]] = Counter()
        changes = DeltaTable(self.target).to_pyarrow_table().sort_by("ulid_text")
        ulids = changes["ulid_text"].to_pylist()
        assert len(ulids) == len(set(ulids))
        for operation, row in zip(changes["operation"].to_pylist(), changes["row"].to_pylist(), strict=True):
            held[row["id"], row["v"]] += 1 if operation in ("insert", "update_postimage") else -1
        return list(held.elements()) if min(held.values()) >= 0 else []


def _rows(ids: range | list[int], value: str) -> pa.Table:
    return pa.table({"id": pa.array(list(ids), pa.int64()), "v": [value] * len(ids)})


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.further  # each time: tests/integration/pipeline/test_ranges.py
@pytest.mark.parametrize("kind", [SplitFeed, SplitExample])
def test_a_table_is_split_and_merged_while_nodes_die(tmp_path: Path, kind: type[Split]) -> None:
    nodes = ManyNodes(tmp_path, count=2)
    try:
        split = kind(nodes, tmp_path)
        client, source = nodes.client, split.source
        split.settle()
        assert client.operator.split(source) == 2
        split.change()
        assert client.operator.split(source, range_id=3) == 3
        split.wait_running(2, 6, 7)
        split.settle()
        (view,) = client.jobs()
        assert (view.ranges, view.name) == (3, "mirror")
        with pytest.raises(InvalidRequest, match="no range 3"):
            client.operator.split(source, range_id=3)
        with pytest.raises(InvalidRequest, match="split into 3 ranges"):
            client.register(source, "copy", target=str(nodes.lake / "copy"), key=["id"])

        # Its ranges are on both nodes, if the ring says so or an operator; the owner dies, and who runs a range.
        client.operator.move(source, "iscp-0", range_id=2)
        client.operator.move(source, "iscp-1", range_id=6)
        wait_for("two nodes work on it", lambda: len(set(split.holders().values())) == 2)
        split.change()
        split.restart(nodes.owner())
        split.change()
        assert client.operator.merge(source) == 2
        split.settle()
        victim = split.nodes.owner()
        other = next(each for each in nodes.members if each != victim)
        nodes.members[other].freeze()
        assert client.operator.merge(source, range_id=2) == 1
        split.change()
        wait_for("one node runs the whole", lambda: split.holders() == {1: victim})
        split.settle()
        nodes.members[other].thaw()
        split.change()
        split.settle()
        (view,) = client.jobs()
        assert (view.ranges, view.job_id) == (1, client.history(source, "mirror")[0].job_id)
    finally:
        nodes.stop()
