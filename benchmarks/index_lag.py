"""How long until a search shows what was committed to a table: `python -m benchmarks.index_lag [--json]`.

A node as `iscp up` starts it keeps ten indexes of ten tables: five of the kind `fulltext`, three of `vector` and two of
`search`, whose vectors the tables have. Each round upserts 100 rows of each table, one table after the other, and
notifies the node. This process searches all the time, without the node.

- `lag_ms`: from the table's commit, as its log has it, until a search has found a row of it first; `kinds` has it for
  each kind. `together_ms` is the same where all ten tables are committed to at once, until the last search has found.
- `reembedded`: texts that the embedder was given when a table was overwritten with the rows that it had. The job is of
  the kind `search`, and its embedder is an endpoint in this process which answers what the embedder `hashed` does, and
  counts. The node's cache of vectors is switched off, so those of the index have to be found.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks import zipf_texts
from benchmarks.fed_index import judged, percentile, spread
from benchmarks.progress import report_progress
from iscp.cli.node.up import start_up
from iscp.client.admin_client import Client
from iscp.delta.log.commits import newest_version, read_commit
from iscp.index.embedding.local_models import HashedEmbedder
from iscp.index.search.search_library import search
from iscp.model.api.api_requests import SearchWeights
from iscp.model.settings.embedder_config import EmbedderConfig
from iscp.system.threads import SystemClock

AIMS = {"lag_p95_ms": ("<=", 300.0), "reembedded": ("<=", 0)}
CHANGED, DIMENSION, EMBEDDED_DIMENSION = 100, 64, 256
WAIT_S, POLL_S = 300.0, 0.005
OPTIONS: dict[str, dict[str, str]] = {
    "fulltext": {"columns": "body"},
    "vector": {"column": "embedding"},
    "search": {"columns": "body", "column": "embedding"},
}
KINDS = ("fulltext",) * 5 + ("vector",) * 3 + ("search",) * 2
EMBEDDER = "counted"
WORDS_ALONE = SearchWeights(vector=0.0)
"""So this process needs no embedder."""


@dataclass
class Indexed:
    """A table, and the index of it."""

    kind: str
    source: str
    target: str
    rows: int
    needle: str = ""
    sought: list[float] = field(default_factory=list)
    key: int = -1

    def create(self, client: Client, options: dict[str, str]) -> None:
        feed: dict[str, str | None] = {"delta.enableChangeDataFeed": "true"}
        write_deltalake(self.source, self.draw(range(self.rows), 0), configuration=feed)
        client.register(self.source, self.name, self.kind, target=self.target, key=("id",), options=options)

    @property
    def name(self) -> str:
        return Path(self.target).name

    def draw(self, keys: range | list[int], turn: int) -> pa.Table:
        """Rows of these keys, the first of which is sought for afterwards."""
        seed = turn * len(KINDS) + hash_of(self.name)
        bodies = zipf_texts.texts(seed, len(keys))
        self.needle, self.key = f"needle{turn}", keys[0]
        bodies[0] += f" {self.needle}"
        matrix = np.random.default_rng(seed).standard_normal((len(keys), DIMENSION), np.float32)
        self.sought = matrix[0].tolist()
        vectors = pa.array(list(matrix), pa.list_(pa.float32()))
        return pa.table({"id": pa.array(list(keys), pa.int64()), "body": bodies, "embedding": vectors})

    def upsert(self, turn: int) -> int:
        """Commit changed rows, and return the version."""
        keys = sorted(np.random.default_rng(turn).choice(self.rows, min(CHANGED, self.rows), replace=False).tolist())
        merge = DeltaTable(self.source).merge(self.draw(keys, turn), "t.id = s.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        return newest_version(self.source)

    def shows(self, version: int) -> bool:
        if self.kind == "vector":
            answer = search(self.target, vector=self.sought, k=1)
        else:
            answer = search(self.target, self.needle, k=1, weights=WORDS_ALONE)
        return answer.version >= version and bool(answer.hits) and answer.hits[0].key["id"] == self.key

    def lag_ms(self, version: int) -> float:
        """Wait until a search shows the row; how long that was from the commit on."""
        until_s = time.monotonic() + WAIT_S
        while not self.shows(version):
            if time.monotonic() > until_s:
                raise TimeoutError(f"{self.target} does not show version {version} after {WAIT_S:g} s")
            time.sleep(POLL_S)
        found_s = time.time()
        commit = read_commit(self.source, version)
        assert commit is not None
        return 1000 * (found_s - commit.committed_at_s)


def hash_of(name: str) -> int:
    """A number that is the same in each process, by which tables have other rows."""
    return int.from_bytes(name.encode()[-4:], "big") % 1_000_003


class Counted:
    """An endpoint with OpenAI's API, which answers the vectors of the embedder `hashed` and counts texts."""

    def __init__(self) -> None:
        self.texts = 0
        embedder, counted = HashedEmbedder(EmbedderConfig(kind="hashed", dimension=EMBEDDED_DIMENSION)), self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                counted.texts += len(body["input"])
                vectors = embedder.embed(body["input"]).astype(float).tolist()
                answer = {"data": [{"index": place, "embedding": each} for place, each in enumerate(vectors)]}
                content = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/embeddings"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def reembedded(client: Client, counted: Counted, folder: Path, rows: int) -> dict[str, int]:
    """How many texts were embedded at first, after a change, and after an overwrite with the same rows."""
    table = Indexed("search", str(folder / "embedded"), str(folder / "index-embedded"), rows)
    table.create(client, {"columns": "body", "text": "body", "embed": EMBEDDER})
    client.wait(table.source, table.name, timeout_s=WAIT_S)
    first = counted.texts
    table.lag_ms(table.upsert(1))
    changed = counted.texts - first
    there = DeltaTable(table.source).to_pyarrow_table()
    write_deltalake(table.source, there, mode="overwrite")
    table.lag_ms(newest_version(table.source))
    return {"embedded": first, "embedded_changed": changed, "reembedded": counted.texts - first - changed}


def rounds_of(client: Client, tables: list[Indexed], rounds: int) -> tuple[dict[str, list[float]], list[float]]:
    """The lags of each kind where tables change one after the other, and of the last one where all do at once."""
    alone, together = defaultdict[str, list[float]](list), list[float]()
    for number in range(rounds):
        for table in tables:
            version = table.upsert(2 * number + 1)
            client.notify(table.source)
            alone[table.kind].append(table.lag_ms(version))
        versions = []
        for table in tables:
            versions.append(table.upsert(2 * number + 2))
            client.notify(table.source)
        together.append(max(table.lag_ms(version) for table, version in zip(tables, versions, strict=True)))
        lags = {kind: round(max(each[-KINDS.count(kind) :])) for kind, each in alone.items()}
        report_progress("changes", round=number, **lags, together_ms=round(together[-1]))
    return alone, together


@contextmanager
def running(folder: Path, counted: Counted) -> Iterator[Client]:
    embedder = {"kind": "openai", "url": counted.url, "model": "hashed", "dimension": EMBEDDED_DIMENSION}
    settings = {"ISCP_EMBEDDERS": json.dumps({EMBEDDER: embedder}), "ISCP_EMBEDDING__CACHE_MB": "0"}
    up = start_up(folder / "iscp", SystemClock(), {**os.environ, **settings}, port=0)
    try:
        with Client(up.endpoint) as client:
            yield client
    finally:
        up.stop()


def measure(folder: Path, rows: int, rounds: int) -> dict[str, Any]:
    counted = Counted()
    tables = [
        Indexed(kind, str(folder / f"table-{number}"), str(folder / f"index-{number}"), rows)
        for number, kind in enumerate(KINDS)
    ]
    try:
        with running(folder, counted) as client:
            for table in tables:
                table.create(client, OPTIONS[table.kind])
            for table in tables:
                client.wait(table.source, table.name, timeout_s=WAIT_S)
            report_progress("the indexes were built", indexes=len(tables))
            rounds_of(client, tables, 1)  # all that is loaded at the first change is there then
            alone, together = rounds_of(client, tables, rounds)
            texts = reembedded(client, counted, folder, rows)
    finally:
        counted.close()
    lags = [each for some in alone.values() for each in some]
    return {
        "indexes": len(tables),
        "rows": rows,
        "lag_p95_ms": round(percentile(lags, 95)),
        "lag_ms": spread(lags, 0),
        "kinds": {kind: spread(each, 0) for kind, each in alone.items()},
        "together_ms": spread(together, 0),
        **texts,
    }


@click.command()
@click.option("--rows", type=click.IntRange(min=10), default=10_000, show_default=True, help="Of each table.")
@click.option("--rounds", type=click.IntRange(min=1), default=10, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def main(rows: int, rounds: int, as_json: bool) -> None:
    """Measure how far indexes are behind their tables."""
    with tempfile.TemporaryDirectory(prefix="iscp-index-lag-") as folder:
        figures = measure(Path(folder), rows, rounds)
    result = {"benchmark": "index_lag", "cpus": os.cpu_count(), **figures, "aims": judged(AIMS, figures)}
    click.echo(json.dumps(result) if as_json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
