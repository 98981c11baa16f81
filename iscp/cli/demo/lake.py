"""The demo's Delta tables: two sources that it writes (by delta-rs, no JVM), and the targets, which it only reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from iscp.cli.demo.flights import ARRIVAL, DEPARTURE, KEY, Day, Year

_WITH_FEED = {"delta.enableChangeDataFeed": "true"}


class Sources:
    """`flights`, which changes in all ways, and `weather`, which is only appended to."""

    def __init__(self, root: Path, year: Year) -> None:
        self.flights, self.weather = str(root / "flights"), str(root / "weather")
        DeltaTable.create(self.flights, schema=year.flights, configuration=_WITH_FEED)
        DeltaTable.create(self.weather, schema=year.weather, configuration=_WITH_FEED)

    def schedule(self, day: Day) -> None:
        """In the evening before."""
        write_deltalake(self.flights, day.schedule, mode="append")

    def depart(self, day: Day) -> None:
        """Those that depart get their times, those that do not are gone; and the weather was read."""
        _update(self.flights, day, day.departed, DEPARTURE)
        if day.cancelled.num_rows:
            _delete(self.flights, day)
        if day.weather.num_rows:
            write_deltalake(self.weather, day.weather, mode="append")

    def arrive(self, day: Day) -> None:
        _update(self.flights, day, day.arrived, ARRIVAL)


def _same(day: Day) -> str:
    # The day, as literals, lets the writer leave the other days' files alone.
    return " AND ".join((*(f"t.{name} = s.{name}" for name in KEY), f"t.month = {day.month}", f"t.day = {day.day}"))


def _update(table: str, day: Day, rows: pa.Table, columns: Sequence[str]) -> None:
    merge = DeltaTable(table).merge(rows, _same(day), source_alias="s", target_alias="t")
    merge.when_matched_update({name: f"s.{name}" for name in columns}).execute()


def _delete(table: str, day: Day) -> None:
    merge = DeltaTable(table).merge(day.cancelled, _same(day), source_alias="s", target_alias="t")
    merge.when_matched_delete().execute()


def read(table: str) -> pa.Table:
    """All rows of a Delta table as it is now, deletion vectors applied."""
    rows = pa.table(DeltaTable(table).scan())
    # The reader gives views of strings, for which Arrow lacks some functions.
    plain = (each.with_type(pa.string()) if each.type == pa.string_view() else each for each in rows.schema)
    return rows.cast(pa.schema(plain))


def types(table: str) -> dict[str, str]:
    """The columns' types as Delta names them."""
    return {field.name: str(field.type) for field in DeltaTable(table).schema().fields}


def version(table: str) -> int:
    return int(DeltaTable(table).version())


def commit_times_s(table: str) -> Mapping[int, float]:
    """When each version was committed, as its writer says (Unix seconds)."""
    return {int(each["version"]): float(each["timestamp"]) / 1000 for each in DeltaTable(table).history()}
