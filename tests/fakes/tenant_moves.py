"""What a hostile account may do to a node: SQL, specs, names, and commits of its own tables, at random.

Each is a strategy for a function that takes the account's client and directory, does it, and returns the error that it
ended with. What is drawn is valid often enough to reach what lies behind the first check.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, write_deltalake
from hypothesis import strategies as st

from iscp.client.admin_client import Client
from iscp.model.api.api_requests import JobName, RegisterRequest
from iscp.model.values.errors import IscpError
from tests.e2e.tenants import row
from tests.fakes.wire_faults import JSON_WRONG, TEXTS_ODD

Move = Callable[[Client, Path], IscpError | None]

TIMEOUT_S = 20.0
"""A node that needs longer for one call is held up by it."""

QUERIES = (
    "SELECT id, text FROM t",
    "SELECT text, count(*) AS n, sum(id) AS s FROM t GROUP BY text",
    "WITH w AS (SELECT * FROM t) SELECT a.id FROM w a JOIN t b ON a.id = b.id",
    "SELECT id, row_number() OVER (ORDER BY id) AS n FROM t QUALIFY n < 3",
    "INSERT OVERWRITE DIRECTORY '{elsewhere}' USING text SELECT text AS value FROM t",
    "INSERT OVERWRITE LOCAL DIRECTORY '{elsewhere}' USING parquet SELECT * FROM t",
    "FROM t INSERT OVERWRITE DIRECTORY '{elsewhere}' USING text SELECT text",
    "CREATE TABLE x USING delta LOCATION '{elsewhere}' AS SELECT * FROM t",
    "CACHE TABLE c AS SELECT * FROM t",
    "SELECT * FROM text.`{elsewhere}/kept.txt`",
    "SELECT * FROM delta.`{neighbour}`",
    "SELECT id, length(repeat('a', 2000000000)) AS n FROM t",
    "SELECT id, rpad('a', 2000000000, 'b') AS n FROM t",
    "SELECT id, size(sequence(1, 2000000000)) AS n FROM t",
    "SELECT id, size(array_repeat(id, 2000000000)) AS n FROM t",
    "SELECT id, length(space(2000000000)) AS n FROM t",
    "SELECT reflect('java.lang.System', 'exit', 1) FROM t",
    "SELECT java_method('java.lang.Runtime', 'getRuntime') FROM t",
    "SELECT TRANSFORM (id) USING 'touch {elsewhere}/run' AS (x) FROM t",
    "SELECT id FROM t WHERE text LIKE '%' /* '",
    "SELECT " + "(" * 200 + "id" + ")" * 200 + " FROM t",
)
CONDITIONS = (
    "id > 0",
    "text = 'x' AND id IN (1, 2)",
    "id > 0 -- \\",
    "id > 0 /*",
    "t GLOB 'a'",
    "length(repeat(text, 2000000000)) > 0",
    "reflect('java.lang.System', 'exit', 1) = 'x'",
    "(" * 300 + "id > 0" + ")" * 300,
    "id > 0) OR (1 = 1",
)
SPLICES = ("(", ")", "'", '"', "`", "--", "/*", "*/", ";", "\\", "\0", "\u2028", ", ", " UNION ALL ", " NOT ", "1e400")
ACTIONS: tuple[Mapping[str, Any], ...] = (
    {"add": {"path": "../../acme/orders/x.parquet", "partitionValues": {}, "size": 1, "dataChange": True}},
    {"add": {"path": "..%2F..%2Facme%2Forders%2Fx.parquet", "partitionValues": {}, "size": 1, "dataChange": True}},
    {"add": {"path": "/dev/zero", "partitionValues": {}, "size": 1, "dataChange": True, "modificationTime": 0}},
    {"remove": {"path": "x.parquet", "dataChange": True, "deletionTimestamp": 2**62}},
    {"metaData": {"id": "a/b", "format": {"provider": "parquet"}, "schemaString": "{}", "partitionColumns": []}},
    {"protocol": {"minReaderVersion": 99, "minWriterVersion": -1}},
    {"txn": {"appId": "\ud800", "version": 2**63 - 1}},
    {"commitInfo": {"timestamp": 2**62, "operation": "x" * 1_000}},
    {"cdc": {"path": "_change_data/../../../acme/orders/x.parquet", "partitionValues": {}, "size": 2**62}},
    {"nobody": {"knows": []}},
)


@st.composite
def spliced(draw: st.DrawFn, texts: tuple[str, ...]) -> str:
    """One of these, as it is or with something put in, left out, or said twice."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(text)))
        upto = draw(st.integers(at, min(len(text), at + 12)))
        text = text[:at] + draw(st.sampled_from([*SPLICES, "", text[at:upto] * 2])) + text[upto:]
    return text


def _ended(call: Callable[[], object]) -> IscpError | None:
    try:
        call()
    except IscpError as error:
        return error
    return None


def _table(root: Path) -> str:
    """A table of the account's, in order as yet."""
    path = str(root / uuid.uuid4().hex)
    write_deltalake(
        path, row(0).set_column(1, "text", [["mine"]]), configuration={"delta.enableChangeDataFeed": "true"}
    )
    return path


@st.composite
def queries(draw: st.DrawFn) -> Move:
    """A query that is explained, checked or registered."""
    sql, how = draw(spliced(QUERIES)), draw(st.sampled_from(("explain", "check", "register")))

    def move(client: Client, root: Path) -> IscpError | None:
        places = {"elsewhere": root.parents[1] / "elsewhere", "neighbour": root.parent / "acme" / "orders"}
        text = sql
        for name, place in places.items():
            text = text.replace(f"{{{name}}}", str(place))
        tables, name = {"t": _table(root)}, uuid.uuid4().hex
        target = str(root / f"{name}_view")
        match how:
            case "explain":
                return _ended(lambda: client.explain_view(text, tables, timeout_s=TIMEOUT_S))
            case "check":
                options = {"sql": text, "tables": tables}
                spec = {"iteration": {"consumer": {"kind": "view", "target": target, "options": options}}}
                job = RegisterRequest(JobName(tables["t"], name), json.dumps(spec))
                return _ended(lambda: client.check_many([job], timeout_s=TIMEOUT_S))
            case _:
                return _ended(lambda: client.create_view(name, text, target=target, tables=tables))

    return move


@st.composite
def specs(draw: st.DrawFn) -> Move:
    """A registration in which one thing is odd: the name, the condition, the key, the target, or all of its spec."""
    name, where = draw(st.sampled_from([*TEXTS_ODD, "copy"])), draw(st.just("") | spliced(CONDITIONS))
    consumer = draw(st.sampled_from(("replica", "changefeed", "view", "nope")))
    target = draw(st.sampled_from(("{root}/out", "{root}/../acme/copy", "{root}/../acme/x", "/dev/null", "\x1b", "")))
    spec = draw(st.none() | st.sampled_from(JSON_WRONG))

    def move(client: Client, root: Path) -> IscpError | None:
        table, at = _table(root), target.replace("{root}", str(root)) + (uuid.uuid4().hex if "out" in target else "")
        if spec is not None:
            return _ended(lambda: client.register_many([RegisterRequest(JobName(table, name), spec)]))
        return _ended(lambda: client.register(table, name, consumer, target=at, key=["id"], where=where))

    return move


@st.composite
def commits(draw: st.DrawFn) -> Move:
    """A table with a job, and then a commit that no writer of Delta tables makes."""
    actions = draw(st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=3))
    text = "".join(f"{json.dumps(each)}\n" for each in actions)
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(("{", "}", "[" * 5_000, '"', "\0", "9" * 5_000, "\\ud800"))) + text[at:]

    def move(client: Client, root: Path) -> IscpError | None:
        table = _table(root)
        error = _ended(lambda: client.register(table, "copy", target=f"{table}_copy", key=["id"]))
        version = DeltaTable(table).version() + 1
        Path(table, "_delta_log", f"{version:020}.json").write_text(text, encoding="utf-8", errors="surrogateescape")
        return error or _ended(lambda: client.notify(table))

    return move


def moves() -> st.SearchStrategy[Move]:
    return st.one_of(queries(), specs(), commits())
