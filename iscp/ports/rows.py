"""Rows on their way from a source to a sink: what Spark evaluates, and the same in this process where they are few."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class LateFrame:
    """The stand-in of a frame whose columns are known: Spark makes it when anything else of it is read."""

    def __init__(self, schema: StructType, make_late: Callable[[], DataFrame]) -> None:
        self.schema = schema
        self._make_late = make_late

    @property
    def columns(self) -> list[str]:
        return [field.name for field in self.schema.fields]

    def as_frame(self) -> DataFrame:
        """Return this, which is used as a frame is."""
        return cast("DataFrame", self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # who only looks what this is needs no frame
            raise AttributeError(name)
        return getattr(self._late, name)

    @cached_property
    def _late(self) -> DataFrame:
        return self._make_late()


class Rows:
    """The same rows twice, each made once and only when somebody wants it; whoever writes them chooses the way.

    `make_table` returns None where only Spark can have the rows, or where they are many. With `reread` nothing is
    cached of the frame: it is read from files whenever it is evaluated, and always the same.
    """

    def __init__(
        self,
        make_frame: Callable[[], DataFrame],
        make_table: Callable[[], pa.Table | None] = lambda: None,
        *,
        reread: bool = False,
    ) -> None:
        self._make_frame = make_frame
        self._make_table = make_table
        self.reread = reread

    @cached_property
    def frame(self) -> DataFrame:
        return self._make_frame()

    @cached_property
    def table(self) -> pa.Table | None:
        return self._make_table()

    def transformed(
        self, of_frame: Callable[[DataFrame], DataFrame], of_table: Callable[[pa.Table], pa.Table | None] | None
    ) -> Rows:
        """Return what two functions that do the same make of these rows.

        `of_table` is None, or returns None, where only Spark can do it.
        """

        def make_table() -> pa.Table | None:
            return None if of_table is None or self.table is None else of_table(self.table)

        return Rows(lambda: of_frame(self.frame), make_table, reread=self.reread)

    def for_spark(self) -> Rows:
        """Return the same rows without a table, so that Spark writes them."""
        return Rows(lambda: self.frame, reread=self.reread)
