"""A query of which a part is stored beside the target, and what is above it, such as a LIMIT, is computed of that part.

The part is stored as groups' sums (`stored_sums.py`) or as its rows, whose columns are `c0`, `c1`, … there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from iscp.core.algebra.algebra import Group, Join, JoinKind, Project, Rel, Table, TableRows, TypedColumn, Union
from iscp.core.algebra.change_plan import ChangePlan, largest_id
from iscp.core.algebra.key_reduction import all_of, named, over_rows, same_values
from iscp.core.algebra.stored_sums import GroupTotals


@dataclass(frozen=True, slots=True)
class KeptInput:
    """The part of the query `root` that lies `depth` operators below it, each of which has one input. `summed`: it is
    stored as sums.
    """

    root: Rel
    depth: int
    summed: bool

    @property
    def is_sound(self) -> bool:
        """Return whether there is such a part."""
        return 0 < self.depth == len(self._above) and (isinstance(self.part, Group) or not self.summed)

    @property
    def _above(self) -> list[Rel]:
        """Return the operators above the part, the highest first; fewer than `depth` if one has not one input."""
        found: list[Rel] = []
        each = self.root
        while len(found) < self.depth and len(each.inputs) == 1:
            found.append(each)
            (each,) = each.inputs
        return found

    @property
    def part(self) -> Rel:
        return self._above[-1].inputs[0]

    def result(self, rows: Rel) -> Rel:
        """Return the query over other rows in the place of the part."""
        return over_rows(self._above, rows)


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The changes of a stored part, the leaf `stored`: relations that are computed one after the other, each with the
    leaf of its rows.

    `moved` is what changed rows add to groups, or the keys that changed rows have; `now` has the changed groups as they
    are stored from now on, and `result` all rows of the query. The first `keys` columns of `stored` are keys.
    """

    stored: Table
    keys: tuple[str, ...]
    moved: tuple[Rel, Table]
    now: tuple[Rel, Table]
    result: Rel


def plan_kept_rows(kept: KeptInput, changed: Iterable[str]) -> tuple[ChangePlan, KeptRows] | None:
    """Return how the stored part follows changes of tables, and the plan with more ids, or None if Spark has to do it.

    Raises UnplannedError.
    """
    part = kept.part
    if kept.summed:
        assert isinstance(part, Group)
        plan = ChangePlan(part.inputs[0], changed, largest_id(kept.root))
        return _by_sums(kept, part, plan)
    plan = ChangePlan(part, changed, largest_id(kept.root))
    return _by_rows(kept, plan)


def _by_sums(kept: KeptInput, group: Group, plan: ChangePlan) -> tuple[ChangePlan, KeptRows] | None:
    changes = plan.changes(group.inputs[0])
    sums = GroupTotals.of(group, Table((), (), "kept", TableRows.STATE), plan.ids)
    if changes is None or sums is None:
        return None
    moved, now = (replace(sums.rows, name=name, at=TableRows.GIVEN) for name in ("moved", "now"))
    result = kept.result(sums.result(sums.all_now(moved)))
    keys = tuple(each.name for each in sums.keys)
    return plan, KeptRows(sums.rows, keys, (sums.moved(changes, plan.weight), moved), (sums.now(moved), now), result)


def _by_rows(kept: KeptInput, plan: ChangePlan) -> tuple[ChangePlan, KeptRows] | None:
    touched = plan.keyed_rows()
    if touched is None or not touched.unique:
        return None
    fields = tuple(replace(each, name=f"c{place}") for place, each in enumerate(kept.part.columns))
    stored = Table((), fields, "kept", TableRows.STATE)
    names = {each.id: each.name for each in fields}
    keys = tuple(replace(each, name=names[each.id]) for each in touched.keys.columns)
    wanted = tuple(TypedColumn(next(plan.ids), each.name, each.type) for each in keys)
    moved = Table((), wanted, "moved", TableRows.GIVEN)
    now = Table((), fields, "now", TableRows.GIVEN)
    gone = all_of(same_values([each.value for each in keys], wanted))
    others = Join((stored, moved), JoinKind.LEFT_ANTI, gone)
    items = tuple(named(each.value, column) for each, column in zip(touched.keys.columns, wanted, strict=True))
    result = kept.result(Union((others, now), fields))
    names_of_keys = tuple(each.name for each in keys)
    return plan, KeptRows(stored, names_of_keys, (Project((touched.keys,), items), moved), (touched.rows, now), result)
