"""The demo's Delta tables: four sources that it writes (by delta-rs, no JVM), and the targets, which it only reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.table import TableMerger

from iscp.cli.demo.flights import ARRIVAL, DEPARTURE, KEY, Day, Year
from iscp.cli.demo.manual import Manual

_REOPENED_DAYS = 10
"""A handle becomes slower with each commit that it has made: a new one starts from the log's last checkpoint."""
_WITH_CDF = {"delta.enableChangeDataFeed": "true"}


class Sources:
    """`flights`, which changes in all ways, `weather`, which is only appended to, `airports`, and a `manual`."""

    def __init__(self, root: Path, year: Year) -> None:
        self.manual = str(root / "manual")
        self._manual = Manual()
        write_deltalake(self.manual, self._manual.rows(), configuration=_WITH_CDF)
        self.flights, self.weather, self.airports = (str(root / name) for name in ("flights", "weather", "airports"))
        self._flights = DeltaTable.create(self.flights, schema=year.flights, configuration=_WITH_CDF)
        self._weather = DeltaTable.create(self.weather, schema=year.weather, configuration=_WITH_CDF)
        write_deltalake(self.airports, year.airports, configuration=_WITH_CDF)

    def schedule(self, day: Day) -> None:
        """Schedule the day's flights, in the evening before."""
        if day.day % _REOPENED_DAYS == 1:
            self._flights = DeltaTable(self.flights)
        write_deltalake(self._flights, day.schedule, mode="append")

    def depart(self, day: Day) -> None:
        """Depart: flights that depart get their times, those that do not are gone; and the weather was read."""
        self._update(day, day.departed, DEPARTURE)
        if day.cancelled.num_rows:
            self._merge(day, day.cancelled).when_matched_delete().execute()
        if day.weather.num_rows:
            write_deltalake(self._weather, day.weather, mode="append")

    def arrive(self, day: Day) -> None:
        self._update(day, day.arrived, ARRIVAL)

    def revise(self, number: int) -> None:
        """Rewrite some paragraphs of the manual, delete one, and bring one back."""
        table = DeltaTable(self.manual)
        rows, gone = self._manual.revised(number)
        merge = table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        table.delete(f"id = {gone}")

    def _update(self, day: Day, rows: pa.Table, columns: Sequence[str]) -> None:
        self._merge(day, rows).when_matched_update({name: f"s.{name}" for name in columns}).execute()

    def _merge(self, day: Day, rows: pa.Table) -> TableMerger:
        # The day, as literals, lets the writer leave the other days' files alone.
        of_day = f"t.month = {day.month} AND t.day = {day.day}"
        same = " AND ".join((*(f"t.{name} = s.{name}" for name in KEY), of_day))
        return self._flights.merge(rows, same, source_alias="s", target_alias="t")


def read(table: str, at: int | None = None) -> pa.Table:
    """Return all rows of a Delta table at a version (None: as it is now), deletion vectors applied."""
    rows = pa.table(DeltaTable(table, version=at).scan())
    # The reader gives views of strings, for which Arrow lacks some functions.
    plain = (each.with_type(pa.string()) if each.type == pa.string_view() else each for each in rows.schema)
    return rows.cast(pa.schema(plain))


def version(table: str) -> int:
    return int(DeltaTable(table).version())


def commit_times_s(table: str) -> Mapping[int, float]:
    """Return when each version was committed, as its writer says (Unix seconds)."""
    return {int(each["version"]): float(each["timestamp"]) / 1000 for each in DeltaTable(table).history()}
