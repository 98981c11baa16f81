"""The explanation, as it is shown to users, of how a query's result follows changes, operator by operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from iscp.core.values.progress import TableSize

CHANGED_ROWS = 1_000
"""Changed rows of a table for which costs are estimated."""


class OperatorUpkeep(StrEnum):
    """The way in which an operator's output follows a change of its input, from the cheapest on."""

    LINEAR = "linear"
    """The changed rows alone go through the operator."""

    JOINED = "joined"
    """Changed rows of one side are joined with the other side's rows."""

    STATE = "state"
    """The operator's groups are stored, and changed by what the changed rows add and take away."""

    TOUCHED = "touched"
    """The operator is recomputed for the keys that changed rows have, and for no others."""

    WHOLE = "whole"
    """The operator is recomputed as a whole, from its input, whenever that changes."""


@dataclass(frozen=True, slots=True)
class ChangeCost:
    """An estimate: for CHANGED_ROWS changed rows of `table` about `changed` come to the operator.

    The rows that belong to them are found among `read` rows (all of these, where it is recomputed as a whole). -1: not
    known.
    """

    table: str
    changed: int
    read: int


@dataclass(frozen=True, slots=True)
class KeptTable:
    """A table in which rows of a query are stored; `holds` says which."""

    uri: str
    holds: str
    size: TableSize


@dataclass(frozen=True, slots=True)
class ExplainedOperator:
    """One operator; `depth` is its place in the tree (0: the result), parents come before their inputs.

    `reason` says why it does not follow changes in a cheaper way, and `remedy` what to change; both are empty where
    there is nothing to say. `state` is what is stored for it besides the view's own rows. `costs` are those of a change
    of each table that it reads.
    """

    depth: int
    operator: str
    upkeep: OperatorUpkeep
    state: str = ""
    reason: str = ""
    remedy: str = ""
    costs: tuple[ChangeCost, ...] = ()


@dataclass(frozen=True, slots=True)
class QueryExplanation:
    """A query's `operators` as a tree in prefix order, and the `columns` of its result, with their types.

    `tables` has the names in the query, with the URI that each stands for, and `sizes` what their logs say. `kept` are
    the tables in which rows of it are stored already. `notes` are what users should know of the result, each a
    sentence. `statements` are those of a refresh without Spark, for each table that may change.
    """

    operators: tuple[ExplainedOperator, ...]
    columns: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sizes: Mapping[str, TableSize] = field(default_factory=dict)
    kept: tuple[KeptTable, ...] = ()
    statements: tuple[str, ...] = ()
