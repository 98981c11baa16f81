"""A custom consumer whose store keeps all that it is given, also rows that share a key."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from iscp.consumers.custom import CustomConsumer, DataType, Position, Retriever, position_of
from iscp.ports.consumer import ConsumeContext


@dataclass
class Store:
    """`rows` have the job's columns by name; `snapshots` counts how often they were replaced as a whole."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    snapshots: int = 0

    def get(self, key: str) -> str | None:
        return self.texts.get(key)

    def put(self, key: str, value: str) -> None:
        self.texts[key] = value


class StoreConsumer(CustomConsumer):
    """`stores`, by target, live as long as the process; what is not committed is forgotten."""

    stores: ClassVar[dict[str, Store]] = {}

    def position(self) -> Position:
        return position_of(self._store.get(self.watermark_key))

    def consume(self, context: ConsumeContext, retriever: Retriever) -> None:
        store = deepcopy(self._store)
        whole = retriever.data_type is DataType.SNAPSHOT
        if whole:
            store.rows, store.snapshots = [], store.snapshots + 1
        while (pair := retriever.next()) is not None:
            inserts, deletes = pair
            changed = set() if whole else {*self._keys(inserts), *self._keys(deletes)}
            store.rows = [row for row in store.rows if self._key(row) not in changed]
            names = [name for name in inserts.column_names if not name.startswith("_")]
            store.rows += inserts.select(names).to_pylist()
        retriever.update_watermark(store)
        self.stores[self.spec.target] = store

    @property
    def _store(self) -> Store:
        return self.stores.setdefault(self.spec.target, Store())

    def _keys(self, table: pa.Table) -> list[tuple[Any, ...]]:
        return [self._key(row) for row in table.to_pylist()]

    def _key(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.spec.key)
