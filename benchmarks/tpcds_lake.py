"""TPC-DS's tables in Delta, at any scale, and commits that change a share of the facts' rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tests.fakes.tpc import Tpc

FEED = {"delta.enableChangeDataFeed": "true"}

FACTS = {
    "store_sales": (("ss_item_sk", "ss_ticket_number"), "ss_quantity"),
    "store_returns": (("sr_item_sk", "sr_ticket_number"), "sr_return_quantity"),
    "catalog_sales": (("cs_item_sk", "cs_order_number"), "cs_quantity"),
    "catalog_returns": (("cr_item_sk", "cr_order_number"), "cr_return_quantity"),
    "web_sales": (("ws_item_sk", "ws_order_number"), "ws_quantity"),
    "web_returns": (("wr_item_sk", "wr_order_number"), "wr_return_quantity"),
    "inventory": (("inv_item_sk", "inv_date_sk", "inv_warehouse_sk"), "inv_quantity_on_hand"),
}
"""Their keys, and the column that updates change."""

FRESH_APART, FRESH_APART_DEFAULT = {"inv_warehouse_sk": 100}, 10_000_000
"""By how much the last part of the key of a row that is inserted differs from that of the row whose copy it is."""


class TpcdsLake:
    """Every table under `root`, by its URI."""

    def __init__(self, root: Path, tpc: Tpc) -> None:
        self.uris = {name: str(root / name) for name in tpc.tables}
        for name, uri in self.uris.items():
            write_deltalake(uri, tpc.rows(name), configuration=FEED)

    def change_facts(self, share: float, number: int) -> None:
        """One commit to each: half of the rows are updates, a quarter deletes, a quarter inserts."""
        for place, name in enumerate(FACTS):
            _change(self.uris[name], *FACTS[name], share, (number, place))


def _change(uri: str, key: tuple[str, ...], column: str, share: float, seed: tuple[int, int]) -> None:
    table, draw = DeltaTable(uri), np.random.default_rng(seed)
    there = table.to_pyarrow_table()
    size = max(4, round(len(there) * share))
    rows = there.take(pa.array(np.sort(draw.choice(len(there), size, replace=False))))
    fourth = size // 4
    changed = _replaced(rows, column, draw.integers(1, 100, size))
    apart = FRESH_APART.get(key[-1], FRESH_APART_DEFAULT) * (seed[0] + 1)
    fresh = _replaced(rows.slice(0, fourth), key[-1], rows[key[-1]].to_numpy()[:fourth] + apart)
    ops = pa.array(["d"] * fourth + ["u"] * (size - fourth) + ["i"] * fourth)
    changes = pa.concat_tables([changed, fresh]).append_column("op", ops)
    columns = {name: f"s.{name}" for name in rows.schema.names}
    (
        table.merge(changes, " AND ".join(f"t.{each} = s.{each}" for each in key), source_alias="s", target_alias="t")
        .when_matched_delete("s.op = 'd'")
        .when_matched_update(columns)
        .when_not_matched_insert(columns, predicate="s.op = 'i'")
        .execute()
    )


def _replaced(rows: pa.Table, column: str, values: np.ndarray) -> pa.Table:
    field = rows.schema.field(column)
    return rows.set_column(rows.schema.get_field_index(column), field, pa.array(values).cast(field.type))
