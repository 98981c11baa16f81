"""README's tour, the notebook and the pages of docs as they are written: all succeeds, and what is derived follows."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from iscp.cli.node.up import RunningUp, start_up
from iscp.client.admin_client import Client
from iscp.system.threads import SystemClock
from tests import quick_spark
from tests.e2e.harness import MARK, QUICK, read
from tests.notebook import run_notebook
from tests.page_blocks import Block, blocks_of
from tests.page_run import PageRun

ROOT = Path(__file__).parents[2]
FEED_ON = {"delta.enableChangeDataFeed": "true"}


@dataclass(frozen=True, slots=True)
class Node:
    """A node of `iscp up`, with its gateway and the directory that it has."""

    up: RunningUp
    data: Path
    gateway: str

    def reader(self, folder: Path, lake: str = "/tmp/lake") -> PageRun:
        """Return who runs a page with `folder` as its lake, and another one as the user's home."""
        (folder / "home").mkdir(parents=True, exist_ok=True)
        ports = {"127.0.0.1:7430": self.up.endpoint, "127.0.0.1:7431": self.gateway}
        home = {"ISCP_ENDPOINT": self.up.endpoint, "XDG_CONFIG_HOME": str(folder / "home")}
        places = {lake: str(folder / "lake"), "/tmp/iscp": str(self.data), **ports}
        return PageRun(places, os.environ | home, folder)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    data = tmp_path_factory.mktemp("up") / "iscp"
    with socket.create_server(("127.0.0.1", 0)) as free:
        gateway = f"127.0.0.1:{free.getsockname()[1]}"
    environ = os.environ | QUICK | {MARK: uuid4().hex, "ISCP_GATEWAY__LISTEN": gateway}
    up = start_up(data, SystemClock(), environ, port=0)
    try:
        yield Node(up, data, gateway)
    finally:
        up.stop()


@pytest.fixture(autouse=True)
def _quick_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what pages do without the node: `iscp run` and `iscp.local()` start a Spark of their own."""
    for name, value in quick_spark.VARIABLES.items():
        monkeypatch.setenv(name, value)


def page(name: str, *headings: str) -> list[Block]:
    """Return the blocks of a page, all or those below some headings."""
    return [each for each in blocks_of(ROOT / name) if not headings or each.heading in headings]


def without_seconds(line: str) -> str:
    """Return a line of a run's output without how long it took, and without its place."""
    return re.sub(r"\d+\.\d+ s", "… s", re.sub(r"^\d of", "… of", line))


def make_quickstart(endpoint: str, lake: Path) -> None:
    """Runs the notebook's cells against the node; what it made is gone at its end."""
    lake.mkdir()
    made = run_notebook(ROOT / "examples/quickstart.ipynb", {"ENDPOINT": endpoint, "LAKE": str(lake)})
    assert made["copy_rows"] == [
        {"id": 1, "state": "paid", "total": 10.0},
        {"id": 2, "state": "open", "total": 20.0},
        {"id": 4, "state": "open", "total": 40.0},
    ]
    assert made["open_rows"] == [{"id": 2, "total": 20.0}, {"id": 4, "total": 40.0}]
    assert made["first"].rows["operation"].to_pylist() == ["insert"] * 3
    assert made["second"].rows["operation"].to_pylist() == ["update_preimage", "update_postimage"]
    assert [job.applied_version for job in made["jobs"]] == [made["newest"]] * 3
    assert "number" in str(made["refused"])
    assert made["missing"].code.name == "JOB_NOT_FOUND"
    assert made["dropped"] == [True] * 3
    assert not lake.exists()


@pytest.mark.spark
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.slow
def test_the_tour_and_the_notebook_can_be_made_as_they_are_written(node: Node, tmp_path: Path, times: int) -> None:
    lake = tmp_path / "lake"
    blocks = page("README.md", "Five minutes")
    printed = node.reader(tmp_path).run(blocks)["Five minutes"]
    (shown,) = (block.body for block in blocks if block.language == "text")
    assert set(map(without_seconds, shown.splitlines())) <= set(map(without_seconds, printed.splitlines()))
    assert sorted(read(str(lake / "orders_copy"))["id"].to_pylist()) == [1, 2, 3, 4]
    assert len(read(str(lake / "totals"))) == 2
    for _ in range(times):
        node.reader(tmp_path).run(page("README.md", "When one machine is not enough"))
        assert sorted(read(str(lake / "orders_copy"))["id"].to_pylist()) == [1, 2, 3, 4]
        assert sorted(read(str(lake / "open_orders"))["id"].to_pylist()) == [1, 2, 4]
        make_quickstart(node.up.endpoint, tmp_path / "quickstart")


@pytest.mark.spark
@pytest.mark.slow
def test_the_tutorial_and_each_task_can_be_made_as_they_are_written(node: Node, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    run = node.reader(tmp_path)
    printed = run.run(page("docs/tutorial.md"))
    assert run.session["fares"] == [
        {"borough": "Bronx", "trips": 1, "fares": 18},
        {"borough": "Queens", "trips": 3, "fares": 75},
    ]
    assert "counts and sums stored" in printed["5. Keep the result of a query"]
    assert printed["6. Follow every change"].count("insert") == 4
    found = printed["7. Search it"]
    assert 0 < found.index("four bags") < found.index("two bags")
    assert "airport, two bags" in printed["8. See all of it follow"]
    assert sorted(read(str(lake / "trips_copy"))["trip"].to_pylist()) == [1, 2, 3, 5]
    printed = run.run(page("docs/howto.md"))
    assert printed["Read what I have just written"].strip() == "3"
    assert printed["Take over a table that another tool has maintained"].startswith("1\n")
    assert "'total': 30.0" in printed["Search from a program without a node"]
    assert sorted(read(str(lake / "open_sales"))["id"].to_pylist()) == [1, 2, 4]
    with Client(node.up.endpoint) as client:
        assert client.jobs(table_pattern=f"{lake}/*") == []


def write_documents(lake: Path) -> None:
    """Write the table of docs/indexes.md, in as many commits as its version 12 takes."""
    for number in range(13):
        rows = pa.table(
            {
                "id": pa.array([number], pa.int64()),
                "title": [f"The fox, part {number}"],
                "body": ["a fox jumps over a lazy dog" if number % 2 else "cats sleep all day"],
                "year": pa.array([1990 + number], pa.int64()),
                "author": ["Ana"],
                "lang": ["en"],
                "embedding": pa.array([[0.1 * number, -0.5, 0.8]], pa.list_(pa.float32())),
            }
        )
        write_deltalake(str(lake / "docs"), rows, mode="append", configuration=FEED_ON)


@pytest.mark.spark
@pytest.mark.slow
def test_the_page_of_indexes_can_be_made_as_it_is_written(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISCP_ENDPOINT", node.up.endpoint)
    lake = tmp_path / "lake"
    write_documents(lake)
    run = node.reader(tmp_path, "/lake")
    run.run(page("docs/indexes.md", "Make one"))
    with Client(node.up.endpoint) as client:
        for name in ("words", "near", "both"):
            client.wait(str(lake / "docs"), name, timeout_s=120)
    headings = "Search it", "Rows that cannot be indexed", "See what an index is"
    printed = run.run(page("docs/indexes.md", *headings))
    assert "The fox, part" in printed["Search it"]
    with Client(node.up.endpoint) as client:
        for name in ("words", "near", "both"):
            client.unregister(str(lake / "docs"), name)
    (statements,) = (each.body for each in page("docs/indexes.md", "SQL files") if each.language == "sql")
    (tmp_path / "indexes.sql").write_text(run.here(statements))
    (lake / "derived").mkdir()
    assert "recent" in run.run(page("docs/indexes.md", "SQL files"))["SQL files"]


def write_sales(lake: Path) -> None:
    """Write the tables of docs/views.md, in as many commits as its versions 7 and 3 take."""
    for number in range(8):
        order = {"id": [number], "customer": [number % 4], "total": [1000.0 * number], "at": [datetime(2026, 5, 1)]}
        write_deltalake(str(lake / "orders"), pa.table(order), mode="append", configuration=FEED_ON)
    for number in range(4):
        customer = pa.table({"id": [number], "customer": [number], "name": [f"customer {number}"]})
        write_deltalake(str(lake / "customers"), customer, mode="append", configuration=FEED_ON)


@pytest.mark.spark
@pytest.mark.slow
def test_the_page_of_views_can_be_made_as_it_is_written(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISCP_ENDPOINT", node.up.endpoint)
    lake = tmp_path / "lake"
    write_sales(lake)
    run = node.reader(tmp_path, "/lake")
    run.places = {**run.places, "sales.customers": str(lake / "customers")}  # a node of `iscp up` has no catalog
    first, views, *_ = (each.body for each in blocks_of(ROOT / "docs/views.md") if each.language == "sql")
    (tmp_path / "totals.sql").write_text(first)
    (tmp_path / "views.sql").write_text(views)
    (lake / "views").mkdir()
    project = tmp_path / "pipeline"
    project.mkdir()
    (project / "spark-pipeline.yml").write_text("name: sales\nlibraries:\n  - glob: {include: '*.sql'}\n")
    (project / "views.sql").write_text("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM orders;\n")
    run.run(page("docs/views.md"))
    assert read(str(lake / "totals")).num_rows == 4


@pytest.mark.spark
def test_the_page_of_python_can_be_made_as_it_is_written(node: Node, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    write_sales(lake)
    run = node.reader(tmp_path, "/data")
    table = str(lake / "orders")
    with Client(node.up.endpoint) as client:
        for name in ("open", "again"):
            client.register(table, name, target=str(lake / name), key=["id"])
        examples = [each for each in page("docs/python.md") if not each.body.startswith("class ")]
        printed = run.run(examples[:1])  # closes its client, which the others go on with
        run.session["client"] = client
        printed |= run.run(examples[1:])
        assert run.session["outcomes"] == [True, True]
        assert client.status(table, "copy").reason == "paused"
    assert printed["Errors"].startswith("JOB_NOT_FOUND")


def test_contexts_and_certificates_can_be_made_as_they_are_written(tmp_path: Path) -> None:
    run = PageRun({}, os.environ | {"XDG_CONFIG_HOME": str(tmp_path)}, tmp_path)
    assert "10.0.0.1:7430" in run.run(page("docs/cli.md", "Endpoints and contexts"))["Endpoints and contexts"]
    run.run(page("docs/security.md", "For development", "Certificates"))
    assert len(list(tmp_path.rglob("*.pem"))) >= 4
