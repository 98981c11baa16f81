"""The 49 views of the warehouse, each after what it reads."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.tpcdi.bronze import BRONZE
from benchmarks.tpcdi.gold import GOLD
from benchmarks.tpcdi.silver import SILVER

SOURCE = "raw_"
"""What the names of sources begin with."""

_WORD = re.compile(r"\w+")
_NULLS = re.compile(r"\((\w+)\) IGNORE NULLS")


@dataclass(frozen=True, slots=True)
class WarehouseView:
    """A view; `inputs` are the sources and views that it reads."""

    name: str
    layer: str
    sql: str
    inputs: tuple[str, ...]

    @property
    def duckdb_sql(self) -> str:
        """The query as DuckDB writes it, which is the same but for where IGNORE NULLS stands."""
        return _NULLS.sub(r"(\1 IGNORE NULLS)", self.sql)


def _views() -> tuple[WarehouseView, ...]:
    layers = {"bronze": BRONZE, "silver": SILVER, "gold": GOLD}
    names = {name for layer in layers.values() for name in layer}
    waiting = [
        WarehouseView(name, layer, sql.strip(), tuple(dict.fromkeys(_read(name, sql, names))))
        for layer, views in layers.items()
        for name, sql in views.items()
    ]
    found: dict[str, WarehouseView] = {}
    while waiting:
        ready = [each for each in waiting if all(name in found or name not in names for name in each.inputs)]
        found |= {each.name: each for each in ready}
        waiting = [each for each in waiting if each.name not in found]
    return tuple(found.values())


def _read(own: str, sql: str, names: set[str]) -> Iterable[str]:
    """The tables whose names stand after FROM and JOIN."""
    words = _WORD.findall(sql)
    after = [word for before, word in pairwise(words) if before in ("FROM", "JOIN")]
    return (word for word in after if word != own and (word in names or word.startswith(SOURCE)))


VIEWS = _views()


def below(changed: Iterable[str]) -> list[WarehouseView]:
    """Return what reads these tables, by whatever way, each after what it reads."""
    reached, found = set(changed), list[WarehouseView]()
    for each in VIEWS:
        if reached.intersection(each.inputs):
            reached.add(each.name)
            found.append(each)
    return found
