"""Jobs of each kind, and processes that run them: unhurt, and killed at failpoints that the unhurt one has passed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from iscp.index.lance.index_columns import HEAD_KEY, KEY
from iscp.index.lance.index_store import open_index
from iscp.system.failpoints import NOTE
from tests.e2e.harness import append, delete, read, upsert

CDF: dict[str, str | None] = {"delta.enableChangeDataFeed": "true"}

NO_JAVA = {"JAVA_TOOL_OPTIONS": "-XX:+NoJavaHere"}
"""Variables with which no Java runs, wherever it is installed."""

Bag = Counter[tuple[Any, ...]]


def rows(first: int, count: int, more: int = 0) -> pa.Table:
    ids = range(first, first + count)
    columns = {"id": list(ids), "customer": [f"c{i % 3}" for i in ids], "total": [i + more for i in ids]}
    return pa.table({**columns, "body": [f"word{i % 4} of {more}" for i in ids]})


def bag(table: pa.Table, *columns: str) -> Bag:
    return Counter(tuple(row[name] for name in columns or table.column_names) for row in table.to_pylist())


class Programs:
    """Starts runs, in forks of one program, or, with Java, in processes from nothing."""

    def __init__(self) -> None:
        self._forker: subprocess.Popen[str] | None = None

    def run(
        self, directory: Path, arguments: list[str], environ: Mapping[str, str], *, java: bool
    ) -> tuple[int, str, str]:
        """Return the status of a run, and what it has said on stdout and on stderr."""
        if java:
            command = [sys.executable, "-m", "iscp.cli.iscp", *arguments]
            ended = subprocess.run(
                command, cwd=directory, env=_environ(environ), capture_output=True, text=True, check=False
            )
            return ended.returncode, ended.stdout, ended.stderr
        out, err = directory / "out", directory / "err"
        order = {"arguments": arguments, "directory": str(directory), "environ": {**environ, **NO_JAVA}}
        answer = self._ask({**order, "out": str(out), "err": str(err)})
        return int(answer), out.read_text(), err.read_text()

    def close(self) -> None:
        if self._forker is not None:
            self._forker.communicate()

    def _ask(self, order: Mapping[str, Any]) -> str:
        if self._forker is None:
            command = [sys.executable, "-m", "tests.fakes.run_program"]
            self._forker = subprocess.Popen(
                command, env=_environ({}), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self._forker.stdin is not None
        assert self._forker.stdout is not None
        self._forker.stdin.write(json.dumps(order) + "\n")
        self._forker.stdin.flush()
        return self._forker.stdout.readline()


def _environ(more: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ISCP_")}
    return {**kept, "PYTHONPATH": str(Path(__file__).parents[2]), **more}


@dataclass(frozen=True)
class Kind:
    """A kind of job: what a file says of it, and what its target has to hold.

    `held` returns the rows of the targets below a root, and `model` those that they are to hold by their sources.
    `change` commits to the source, and not twice the same if its number is another. `needs_spark` says that Spark
    builds it.
    """

    name: str
    file: str
    held: Callable[[Path], Bag]
    model: Callable[[Path], Bag]
    change: Callable[[str, int], object]
    needs_spark: bool = False


def _upsert_and_delete(orders: str, number: int) -> None:
    upsert(orders, rows(5 + number, 10, 100 + number), ["id"])
    delete(orders, f"id = {2 + number}")


def _replayed(root: Path) -> Bag:
    """Return the rows that a replay of the feed comes to; each change is there once, and takes away what is there."""
    held: Bag = Counter()
    changes = sorted(read(f"{root}/feed").to_pylist(), key=lambda change: change["ulid"])
    assert len({change["ulid"] for change in changes}) == len(changes)
    for change in changes:
        row = tuple(change["row"][name] for name in ("id", "customer", "total", "body"))
        held[row] += 1 if change["operation"] in ("insert", "update_postimage") else -1
        assert held[row] in (0, 1), change
    return +held


def _indexed(root: Path) -> Bag:
    found = open_index(f"{root}/index").dataset.to_table().to_pylist()
    indexed = [row for row in found if row[KEY] != HEAD_KEY]
    return Counter((row["id"], row["total"], row["_words_0"].strip()) for row in indexed)


def _viewed(root: Path) -> Bag:
    groups, joins = read(f"{root}/groups"), read(f"{root}/joins")
    return bag(groups, "customer", "n", "s") + bag(joins, "id", "region", "total")


def _views(root: Path) -> Bag:
    regions = {row["customer"]: row["region"] for row in read(f"{root}/customers").to_pylist()}
    count, total, joined = Counter[str](), Counter[str](), Bag()
    for row in read(f"{root}/orders").to_pylist():
        customer = row["customer"]
        count[customer] += 1
        total[customer] += row["total"]
        if customer in regions:
            joined[row["id"], regions[customer], row["total"]] += 1
    return joined + Counter((customer, count[customer], total[customer]) for customer in count)


KINDS = (
    Kind(
        "keyed",
        "- {table: ROOT/orders, name: copy, target: ROOT/copy, key: [id]}",
        lambda root: bag(read(f"{root}/copy")),
        lambda root: bag(read(f"{root}/orders")),
        _upsert_and_delete,
    ),
    Kind(
        "appended",
        "- {table: ROOT/orders, name: log, target: ROOT/log}",
        lambda root: bag(read(f"{root}/log")),
        lambda root: bag(read(f"{root}/orders")),
        lambda orders, number: append(orders, rows(3, 10, 200 + number)),
    ),
    Kind(
        "index",
        """
- table: ROOT/orders
  name: index
  consumer: fulltext
  target: ROOT/index
  key: [id]
  options: {columns: body, stored: total}
""",
        _indexed,
        lambda root: bag(read(f"{root}/orders"), "id", "total", "body"),
        _upsert_and_delete,
    ),
    Kind(
        "feed and views",
        """
- {table: ROOT/orders, name: feed, consumer: changefeed, target: ROOT/feed, key: [id]}
- table: ROOT/orders
  name: groups
  consumer: view
  target: ROOT/groups
  options:
    sql: SELECT customer, count(*) AS n, sum(total) AS s FROM orders GROUP BY customer
    tables: {orders: ROOT/orders}
- table: ROOT/orders
  name: joins
  consumer: view
  target: ROOT/joins
  options:
    sql: SELECT o.id, c.region, o.total FROM orders o JOIN customers c ON o.customer = c.customer
    tables: {orders: ROOT/orders, customers: ROOT/customers}
""",
        lambda root: _replayed(root) + _viewed(root),
        lambda root: bag(read(f"{root}/orders"), "id", "customer", "total", "body") + _views(root),
        _upsert_and_delete,
        needs_spark=True,
    ),
)


class World:
    """The jobs of one kind in a directory, which can be put back as it was."""

    def __init__(self, kind: Kind, root: Path, programs: Programs) -> None:
        self.kind, self.root, self.orders = kind, root, f"{root}/orders"
        self._saved, self._programs = root.with_name(f"{root.name}-saved"), programs
        root.mkdir(parents=True)
        write_deltalake(self.orders, rows(0, 10), configuration=CDF)
        customers = pa.table({"customer": ["c0", "c1", "c9"], "region": ["north", "south", "west"]})
        write_deltalake(f"{root}/customers", customers, configuration=CDF)
        (root / "jobs.yaml").write_text(kind.file.replace("ROOT", str(root)))

    def save(self) -> None:
        shutil.copytree(self.root, self._saved)

    def restore(self) -> None:
        shutil.rmtree(self.root)
        shutil.copytree(self._saved, self.root)

    def change(self, number: int = 0) -> None:
        self.kind.change(self.orders, number)

    def run(self, failpoints: str = "", *, java: bool = False, status: int = 0) -> tuple[set[str], str]:
        """Run the jobs; return the states that they are said to have ended with, and what there was on stderr."""
        arguments, environ = ["run", "jobs.yaml", "-o", "json"], {"ISCP_FAILPOINTS": failpoints}
        found, out, err = self._programs.run(self.root, arguments, environ, java=java)
        assert found == status, (self.kind.name, failpoints, found, out[-2000:], err[-4000:])
        return {json.loads(line)["state"] for line in out.splitlines()}, err

    def run_again(self, *, java: bool) -> None:
        """Run the jobs after a kill: without Java, unless what a view has stored beside it is not that of its rows."""
        if not java and self.kind.needs_spark:
            arguments = ["run", "jobs.yaml", "-o", "json"]
            status, out, _ = self._programs.run(self.root, arguments, {}, java=False)
            failed = [each["error"] for each in map(json.loads, out.splitlines()) if each["state"] == "failed"]
            java = bool(failed) and all(error.startswith("no Java for Spark") for error in failed)
            assert java == (status == 1), out[-2000:]
            if not java:
                return
        self.run(java=java)

    def passed(self, *, java: bool = False) -> list[str]:
        """Run unhurt, put back what was there, and return the failpoints that were passed, in their order."""
        states, said = self.run("*=note", java=java)
        assert states == {"updated"}
        self.assert_right()
        self.restore()
        return [line.removeprefix(NOTE) for line in said.splitlines() if line.startswith(NOTE)]

    def assert_right(self) -> None:
        assert self.kind.held(self.root) == self.kind.model(self.root)

    def assert_gone_on_with(self, place: str, *, java: bool = False) -> None:
        """Kill a run at `place`, NAME:NTH; the next one ends with targets that are right, and one more does nothing."""
        name, nth = place.rsplit(":", 1)
        self.run(f"{name}=kill:{nth}", java=java, status=-signal.SIGKILL)
        self.run_again(java=java)
        self.assert_right()
        files = self.files()
        assert self.run()[0] == {"current"}, place
        assert self.files() == files, place

    def files(self) -> set[Path]:
        return {path for path in self.root.rglob("*") if path.name not in ("out", "err")}


def nth_of_each(passed: list[str]) -> Iterator[str]:
    """Yield NAME:NTH of each failpoint that was passed, each time that it was."""
    count = Counter[str]()
    for name in passed:
        count[name] += 1
        yield f"{name}:{count[name]}"


@contextmanager
def programs() -> Iterator[Programs]:
    made = Programs()
    try:
        yield made
    finally:
        made.close()
