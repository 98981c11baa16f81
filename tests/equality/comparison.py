"""Judge cases of the table of equality, and find for each guard a row that would be wrong without it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException

from iscp.algebra.algebra import Rel
from iscp.algebra.duck_aggregates import Entry, Refusal, RowGuard
from iscp.algebra.duck_text import ALLOW_LIST
from tests.equality import samples
from tests.equality.cases import Case, Shape, rows_of
from tests.equality.engines import ID, RAISED, Ducks, Row, Sparks, Written, by_rows, kinds_of, rows_by_id
from tests.fakes.written_algebra import algebra_from_json, algebra_to_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITNESSES = Path(__file__).parent / "witnesses.json"
TRIES_MAX = 16
"""Rows of a case, of different values, by which a guard is tried."""

FAULTS_MAX = 2
"""Faults of a case that are named."""

Guard = tuple[str, str]
"""An entry's name, and the reason of one of its guards."""


UNSHOWN: frozenset[Guard] = frozenset(
    {
        ("Round of decimals", "negative places"),
        ("ShiftRight of whole numbers", "another number of bits"),
        ("Substring of texts", "a negative length"),
        ("Like of texts", "a pattern that is no constant"),
        ("Like of texts", "a pattern of several parts"),  # which takes years, and is right
        ("Like of texts", "another escape"),
        ("ArrayDistinct", "many elements"),  # which take long, and are right
        ("TextInOrder", "a delimiter that is no short constant"),
        ("ArrayJoin", "a delimiter that is no short constant"),  # which may fill the memory, and is right
        ("ConcatWs of texts and arrays", "a delimiter that is no short constant"),
        ("TruncDate of dates", "another unit"),
        ("TruncTimestamp of times of day", "another unit"),
        ("DateFormatClass of times of day", "another pattern"),
        ("Cast of decimals as doubles", "more than 15 digits"),
        ("Cast of texts as decimals", "a text of other than plain digits"),
        ("StddevSamp of floats", "values that are not finite"),
        ("VarianceSamp of floats", "values that are not finite"),
    }
)
"""Guards of which no row that would be wrong without them is kept yet: `--write` finds them, and they get fewer."""


def guards() -> dict[Guard, tuple[Entry, ...]]:
    """Each guard of the allow-list, with the list without it."""
    found: dict[Guard, tuple[Entry, ...]] = {}
    for place, entry in enumerate(ALLOW_LIST):
        own: list[Refusal | RowGuard] = [*entry.refusals, *entry.guards]
        for each in own:
            less = replace(
                entry,
                refusals=tuple(one for one in entry.refusals if one is not each),
                guards=tuple(one for one in entry.guards if one is not each),
            )
            found[entry.name, each.reason] = (*ALLOW_LIST[:place], less, *ALLOW_LIST[place + 1 :])
    return found


@dataclass
class Verdict:
    """The judgement of a case: `faults` in words, and how many rows are `handed` over."""

    case: Case
    faults: list[str] = field(default_factory=list)
    handed: int = 0


@dataclass(frozen=True, slots=True)
class Witness:
    """A row (or group) that is wrong without a guard: the algebra of its case, and what Spark gives."""

    guard: Guard
    case: Case
    relation: Rel
    number: int
    spark: str

    def document(self) -> dict[str, Any]:
        content = algebra_to_json(self.relation)
        assert content is not None
        return {
            "entry": self.guard[0],
            "guard": self.guard[1],
            "sql": self.case.sql,
            "types": [*self.case.types],
            "shape": self.case.shape.name,
            "number": self.number,
            "spark": self.spark,
            "algebra": json.loads(content),
        }

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Witness:
        first, second = found["types"]
        shape = Shape[found["shape"]]
        case = Case(found["entry"], found["sql"], (first, second), shape, exact=shape is Shape.QUERY)
        relation = algebra_from_json(json.dumps(found["algebra"]).encode())
        return cls((found["entry"], found["guard"]), case, relation, found["number"], found["spark"])


def witnesses() -> list[Witness]:
    """Those that are kept."""
    return [Witness.read(each) for each in json.loads(WITNESSES.read_text())]


def key_of(case: Case) -> str:
    return "g" if case.shape is Shape.GROUPS or case.exact else ID


def computed(ducks: Ducks, case: Case, text: str) -> tuple[dict[int, Row], list[str]]:
    """The values of a case by ids or groups, and their types."""
    if case.shape is Shape.WINDOWS:
        return ducks.partitions(text, "g" if "PARTITION BY g" in case.sql else "", case.loose)
    return ducks.values(text, key_of(case), case.loose)


@dataclass
class Table:
    """The cases over the same rows, in both engines."""

    session: SparkSession
    shape: Shape
    rows: pa.Table
    cases: Sequence[Case]
    verdicts: dict[Case, Verdict] = field(default_factory=dict)
    duck: dict[Case, dict[int, Row]] = field(default_factory=dict)
    kinds: dict[Case, list[str]] = field(default_factory=dict)
    written: dict[Case, Written] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sparks, self.ducks = Sparks(self.session, self.rows), Ducks(self.rows)
        self.written = {each.case: each for each in self.sparks.read(self.cases)}
        self.verdicts = {each: Verdict(each) for each in self.cases}

    def judge(self) -> list[Verdict]:
        for case, written in self.written.items():
            self._run_duck(case, written)
        if self.shape is Shape.QUERY:
            for case in self.duck:
                self._compare_query(case)
        elif self.duck:
            self._compare({case: self._wanted(case) for case in self.duck})
        return [*self.verdicts.values()]

    def _wanted(self, case: Case) -> list[int]:
        # The spread of the last group is lost in the size of its values: it is the order's, which Spark does not keep.
        ordered = case.loose and case.shape is Shape.GROUPS
        return [
            number
            for number, row in self.duck[case].items()
            if row != RAISED and not (ordered and number == samples.GROUPS)
        ]

    def _run_duck(self, case: Case, written: Written) -> None:
        verdict = self.verdicts[case]
        translation = written.translated()
        if case.refused:
            if not any(each.endswith(f": {case.refused}") for each in translation.gaps):
                verdict.faults.append(f"is not refused, but for {translation.gaps}")
            return
        if translation.text is None:
            verdict.faults.append(f"is left to Spark: {translation.gaps}")
            return
        if case.entry not in translation.entries:
            verdict.faults.append(f"shows {sorted(translation.entries)}")
        if case.shape is Shape.QUERY and not case.exact:
            found = self.ducks.database.execute(translation.text).to_arrow_table()
            self.duck[case], self.kinds[case] = dict(enumerate(bag(found))), kinds_of(found)
            return
        self.duck[case], self.kinds[case] = computed(self.ducks, case, translation.text)
        verdict.handed = sum(row == RAISED for row in self.duck[case].values())
        if verdict.handed == len(self.duck[case]) and self.shape is not Shape.WINDOWS:
            verdict.faults.append("always raises")

    def _compare_query(self, case: Case) -> None:
        theirs = self.sparks.exact(case)
        if case.exact:
            self._judge(case, theirs)
        elif Counter(self.duck[case].values()) != Counter(bag(theirs)):
            self.verdicts[case].faults.append(f"has other rows than {bag(theirs)[:3]}")

    def _compare(self, wanted: Mapping[Case, Collection[int]]) -> None:
        """Compare with Spark's values; where Spark raises, case by case, and then half by half."""
        try:
            tables = self.sparks.all_values(wanted)
        except PySparkException:
            if len(wanted) > 1:
                for case, numbers in wanted.items():
                    self._compare({case: numbers})
                return
            ((case, numbers),) = wanted.items()
            self._find_raised(case, numbers)
            return
        for case, table in tables.items():
            self._judge(case, table, wanted[case])

    def _find_raised(self, case: Case, numbers: Collection[int]) -> None:
        few = [*numbers]
        if len(self.verdicts[case].faults) >= FAULTS_MAX:
            return
        if len(few) == 1:
            # Spark adds in the order of rows, and may leave the range on the way to a sum that is in it.
            if not case.entry.startswith(("Sum", "Average")):
                self.verdicts[case].faults.append(f"has {self.duck[case][few[0]]} in {few[0]}, and Spark raises")
            return
        for part in (few[: len(few) // 2], few[len(few) // 2 :]):
            self._compare({case: part})

    def _judge(self, case: Case, table: pa.Table, numbers: Collection[int] | None = None) -> None:
        theirs = rows_by_id(table, case.loose)
        faults = self.verdicts[case].faults
        mine = {
            key: row for key, row in self.duck[case].items() if row != RAISED and (numbers is None or key in numbers)
        }
        wrong = [(key, row, theirs.get(key)) for key, row in mine.items() if theirs.get(key) != row]
        if wrong:
            faults.append(f"differs in {len(wrong)} of {len(mine)} rows, as {wrong[:2]}: {self._inputs(wrong[0][0])}")
        if mine and (kinds := kinds_of(table)) != self.kinds[case]:
            faults.append(f"has the types {self.kinds[case]}, and Spark has {kinds}")

    def _inputs(self, number: int) -> object:
        place = self.rows.column(ID).to_pylist().index(number) if self.shape is not Shape.GROUPS else 0
        return self.rows.slice(place, 1).to_pydict() if self.shape is not Shape.WINDOWS else number

    # --- guards -------------------------------------------------------------------------------------------------------

    def witnesses(self, wanted: Mapping[Guard, tuple[Entry, ...]]) -> Iterator[Witness]:
        """Yield a witness for each guard of these that one of the cases shows."""
        for (entry, reason), allowed in wanted.items():
            for case in self.cases:
                if case.entry == entry and case.refused in ("", reason):
                    found = self._witness(case, (entry, reason), allowed)
                    if found is not None:
                        yield found
                        break

    def _witness(self, case: Case, guard: Guard, allowed: tuple[Entry, ...]) -> Witness | None:
        before = self.duck.get(case)
        if before is not None and RAISED not in before.values():
            return None
        written = self.written[case]
        text = written.translated(allowed).text
        if text is None:
            return None
        found, _ = computed(self.ducks, case, text)
        values = {row: key for key, row in found.items() if row != RAISED and (before is None or before[key] == RAISED)}
        for number in [key for row, key in values.items() if {*row} != {None}][:TRIES_MAX]:
            theirs = self.spark_value(case, number)
            if theirs != found[number]:
                return Witness(guard, case, written.relation, number, repr(theirs))
        return None

    def spark_value(self, case: Case, number: int) -> Row:
        if case.exact:
            return rows_by_id(self.sparks.exact(case), case.loose).get(number, ())
        if self.shape is Shape.WINDOWS:
            return rows_by_id(self.sparks.all_values({case: []})[case], case.loose)[number]
        return self.sparks.value(case, number)


def bag(table: pa.Table) -> list[Row]:
    """The rows as they are counted."""
    numbered = pa.table([pa.array(range(len(table)), pa.int64()), *table.columns], names=["", *table.schema.names])
    return [*rows_by_id(numbered, loose=False).values()]


def tables(session: SparkSession, cases: Iterable[Case]) -> Iterator[Table]:
    """The tables of cases, each with a clean session's view."""
    for shape, types, few in by_rows(cases):
        yield Table(session, shape, rows_of(shape, types), few)
