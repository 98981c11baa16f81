"""The plans of TPC's queries over tables of facts that change all at once, judged by DuckDB alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from iscp.algebra.algebra import Rel, Table, TableRows
from iscp.algebra.change_plan import ChangePlan
from iscp.algebra.duck_text import identifier, translate
from iscp.model.sql.sql_names import WEIGHT
from tests.fakes.tpc import Tpc

FACTS = {
    "tpch": {"lineitem": "l_quantity", "orders": "o_totalprice", "customer": "c_acctbal"},
    "tpcds": {
        "store_sales": "ss_quantity",
        "store_returns": "sr_return_quantity",
        "catalog_sales": "cs_quantity",
        "catalog_returns": "cr_return_quantity",
        "web_sales": "ws_quantity",
        "web_returns": "wr_return_quantity",
        "inventory": "inv_quantity_on_hand",
        "customer": "c_birth_year",
    },
}
"""The tables that change, with a column of each that does."""


class ChangedTpc:
    """A suite's tables before and after 3 % of the rows of each table of facts go, 4 % are updated and 3 % come."""

    def __init__(self, tpc: Tpc, suite: str) -> None:
        self.tpc, self.facts = tpc, FACTS[suite]
        self.database = tpc.database
        for name in tpc.tables:
            if name in self.facts:
                self._change(name, self.facts[name])
            else:
                self._show("new", name, f"FROM {name}")
                self._show("old", name, f"FROM {name}")

    def _show(self, at: str, name: str, text: str) -> None:
        self.database.execute(f"CREATE TABLE {identifier(f'{at}:{name}')} AS {text}")

    def _change(self, name: str, column: str) -> None:
        first, second = [row[0] for row in self.database.execute(f"DESCRIBE {name}").fetchall()][:2]
        key = f"concat({first}, '/', {second}, '/', rowid)"
        self.database.execute(f"CREATE TABLE drawn_{name} AS SELECT *, hash({key}) % 100 AS drawn FROM {name}")
        kept = f"SELECT * EXCLUDE (drawn) FROM drawn_{name} WHERE drawn >= 7"
        gone = f"SELECT * EXCLUDE (drawn) FROM drawn_{name} WHERE drawn < 7"
        changed = f"SELECT * EXCLUDE (drawn) REPLACE ({column} + 1 AS {column}) FROM drawn_{name}"
        came = f"{changed} WHERE drawn BETWEEN 3 AND 6 OR drawn BETWEEN 97 AND 99"
        self._show("old", name, f"SELECT * FROM {name}")
        self._show("new", name, f"{kept} UNION ALL {came}")
        weighted = f"SELECT *, -1::BIGINT AS {WEIGHT} FROM ({gone}) UNION ALL SELECT *, 1::BIGINT FROM ({came})"
        self._show("changes", name, weighted)

    def wrong_rows(self, root: Rel, changed: Iterable[str]) -> tuple[int, int]:
        """How many rows of the plan are not those of the difference of two recomputations, and how many it has."""
        plan = ChangePlan(root, changed)
        net = plan.net_rows()
        assert net is not None
        names = [f"r{place}" for place in range(len(root.columns))]
        new, old = (self._text(plan.rows(root, at), names) for at in (TableRows.NEW, TableRows.OLD))
        shown = ", ".join(names)
        both = f"SELECT *, 1 AS w FROM ({new}) UNION ALL SELECT *, -1 FROM ({old})"
        wanted = f"SELECT {shown}, sum(w)::BIGINT AS w FROM ({both}) GROUP BY {shown} HAVING sum(w) <> 0"
        for name, text in (("found", self._text(net, [*names, "w"])), ("wanted", wanted)):
            self.database.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {text}")
        less, more = (
            f"SELECT * FROM {a} EXCEPT ALL SELECT * FROM {b}" for a, b in (("found", "wanted"), ("wanted", "found"))
        )
        wrong = self.database.execute(f"SELECT count(*) FROM (({less}) UNION ALL ({more}))").fetchone()
        rows = self.database.execute("SELECT count(*) FROM found").fetchone()
        assert wrong
        assert rows
        return wrong[0], rows[0]

    def _text(self, relation: Rel, names: Collection[str]) -> str:
        translation = translate(relation, [*names])
        assert translation.text is not None, translation.gaps
        return translation.text


def tables_of(root: Rel) -> set[str]:
    return {each.name for each in root.walk() if isinstance(each, Table)}
