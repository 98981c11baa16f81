"""Carries out the steps of one commit on a table's state, and gathers the actions that say so.

A path is added once and removed once in a commit at most, as the protocol wants it: a step that would do it again does
nothing. Nor does one for which there is no file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.random_logs.cases import Deed, Step, Vector, Version
from tests.random_logs.columns import COLUMNS, PARTITIONS, Row, partition_values, row_of
from tests.random_logs.data_files import Action, DataFiles, LogFile
from tests.random_logs.table_state import FEED, LogState

_NEVER = "never-there.parquet"


@dataclass
class VersionSteps:
    """Of the version after the state's; `changes`: the kind and row of each, in order, for change data."""

    state: LogState
    files: DataFiles
    plan: Version
    adds: list[Action] = field(default_factory=list)
    removes: list[Action] = field(default_factory=list)
    others: list[Action] = field(default_factory=list)
    changes: list[tuple[str, Row]] = field(default_factory=list)
    _touched: set[str] = field(default_factory=set)
    _reshaped: bool = False
    _rowwise: bool = False

    def actions(self) -> list[Action]:
        """All but commitInfo; the state is that of the version then."""
        fed = self.state.feed
        self.state.version += 1
        for step in self.plan.steps:
            self._deeds[step.deed](self, step)
        if self._reshaped:
            self.others.append({"metaData": self.state.metadata()})
        cdc = self._change_data() if fed and self.state.feed and self._rowwise else []
        return [*self.others, *self.removes, *self.adds, *cdc]

    # --- what there is --------------------------------------------------------------------------------------------

    @property
    def at_ms(self) -> int:
        return self.state.at_ms(self.state.version)

    def _untouched(self) -> list[LogFile]:
        return [file for file in self.state.live.values() if file.path not in self._touched]

    def _live(self, step: Step) -> LogFile | None:
        found = self._untouched()
        return found[step.file % len(found)] if found else None

    def _rows(self, step: Step) -> list[Row]:
        return [row_of(numbers, self.state.columns) for numbers in step.rows]

    # --- what is done to files ------------------------------------------------------------------------------------

    def _add(self, file: LogFile, *, data_change: bool = True) -> None:
        self._touched.add(file.path)
        self.adds.append(file.add(data_change=data_change))
        self.state.live[file.key] = file
        self.state.gone.pop(file.key, None)

    def _remove(self, file: LogFile, *, data_change: bool = True) -> None:
        self._touched.add(file.path)
        self.removes.append(file.remove(self.at_ms, data_change=data_change, bare=self.plan.dress.bare))
        self.state.live.pop(file.key, None)
        self.state.gone[file.key] = file

    def _write(self, rows: Iterable[Row], *, data_change: bool = True) -> None:
        by_partition: dict[tuple[str | None, ...], list[Row]] = {}
        for row in rows:
            by_partition.setdefault(tuple(partition_values(row, self.state.partitions).values()), []).append(row)
        for each in by_partition.values():
            file = self.files.write(each, self.state.partitions, self.state.columns, self.at_ms)
            self._add(file, data_change=data_change)

    def _note(self, kind: str, rows: Iterable[Row]) -> None:
        self.changes += [(kind, row) for row in rows]

    # --- deeds ----------------------------------------------------------------------------------------------------

    def _insert(self, step: Step) -> None:
        self._write(self._rows(step))
        self._note("insert", self._rows(step))

    def _chosen(self, file: LogFile, step: Step) -> list[int]:
        """The first row there is, where the mask has none of them."""
        found = [place for place in file.there if step.places >> place & 1]
        return found or file.there[:1]

    def _leave_out(self, file: LogFile, places: list[int], step: Step) -> None:
        self._remove(file)
        marked = None
        if step.vector is not Vector.COPY and self.state.featured:
            marked = self.files.mask(file, places, step.vector)
        # One that is there beside it already would take its rows in.
        if marked is None or marked.key in self.state.live:
            self._write([file.rows[place] for place in file.there if place not in places])
        else:
            self._add(marked)

    def _delete(self, step: Step) -> None:
        file = self._live(step)
        if file is not None and file.there:
            places = self._chosen(file, step)
            self._rowwise = True
            self._note("delete", [file.rows[place] for place in places])
            self._leave_out(file, places, step)

    def _update(self, step: Step) -> None:
        file = self._live(step)
        if file is None or not file.there or not step.rows:
            return
        places, rows = self._chosen(file, step), self._rows(step)
        self._rowwise = True
        fresh = [rows[number % len(rows)] for number, _ in enumerate(places)]
        for place, row in zip(places, fresh, strict=True):
            self._note("update_preimage", [file.rows[place]])
            self._note("update_postimage", [row])
        self._leave_out(file, places, step)
        self._write(fresh)

    def _drop(self, step: Step) -> None:
        if (file := self._live(step)) is not None:
            self._note("delete", file.alive)
            self._remove(file)

    def _rewrite(self, step: Step) -> None:
        chosen = self._live(step)
        if chosen is None:
            return
        together = [file for file in self._untouched() if file.partition == chosen.partition]
        for file in together:
            self._remove(file, data_change=False)
        self._write([row for file in together for row in file.alive], data_change=False)

    def _add_again(self, step: Step) -> None:
        if (file := self._live(step)) is not None:
            self._add(file, data_change=step.data_change)

    def _remove_gone(self, step: Step) -> None:
        found = [file for file in self.state.gone.values() if file.path not in self._touched]
        if found:
            self._remove(found[step.file % len(found)], data_change=step.data_change)
        elif _NEVER not in self._touched:
            self._touched.add(_NEVER)
            said = {"path": _NEVER, "deletionTimestamp": self.at_ms, "dataChange": step.data_change}
            self.removes.append({"remove": said})

    def _remove_other_vector(self, step: Step) -> None:
        if (file := self._live(step)) is not None and self.state.featured:
            self._touched.add(file.path)
            other = self.files.mask(file, [len(file.rows)], Vector.INLINE)
            self.removes.append(other.remove(self.at_ms, data_change=step.data_change, bare=self.plan.dress.bare))

    def _restore(self, step: Step) -> None:
        gone = (file for file in self.state.gone.values() if file.path not in self._touched and file.alive)
        found = [file for file in gone if file.partitions == self.state.partitions]
        if found:
            file = found[step.file % len(found)]
            self._add(file)
            self._note("insert", file.alive)

    def _beside(self, step: Step) -> None:
        file = self._live(step)
        if file is None or not file.there or not self.state.featured:
            return
        other = self.files.mask(file, self._chosen(file, step), step.vector)
        if other.key not in self.state.live and other.alive:
            self._add(other)
            self._note("insert", other.alive)

    def _overwrite(self, step: Step) -> None:
        self._replace(step, self._rows(step), data_change=True)

    def _repartition(self, step: Step) -> None:
        self._replace(step, [row for file in self.state.live.values() for row in file.alive], data_change=False)

    def _replace(self, step: Step, rows: list[Row], *, data_change: bool) -> None:
        files = list(self.state.live.values())
        if any(file.path in self._touched for file in files):
            return
        if data_change:
            self._note("delete", [row for file in files for row in file.alive])
            self._note("insert", rows)
        for file in files:
            self._remove(file, data_change=data_change)
        partitions = PARTITIONS[step.file % len(PARTITIONS)]
        self._reshaped |= partitions != self.state.partitions
        self.state.partitions = partitions
        self._write(rows, data_change=data_change)

    def _column(self, step: Step) -> None:
        self._reshaped |= self.state.columns < len(COLUMNS)
        self.state.columns = len(COLUMNS)

    def _feed(self, step: Step) -> None:
        self._reshaped = True
        self.state.configuration[FEED] = "false" if self.state.feed else "true"

    def _property(self, step: Step) -> None:
        self._reshaped = True
        self.state.configuration["touched"] = str(step.file)

    def _upgrade(self, step: Step) -> None:
        if not self.state.featured and not self.others:
            self.state.featured = True
            self.others.append({"protocol": self.state.protocol()})

    def _downgrade(self, step: Step) -> None:
        """Nothing may be left that needs them: Spark reads no checkpoint of version 2 where that feature is gone."""
        state = self.state
        used = state.stamped or state.domains or state.in_v2 or any(file.vector for file in state.live.values())
        if state.featured and not used and not self.others:
            state.featured = False
            self.others.append({"protocol": self.state.protocol()})

    def _transaction(self, step: Step) -> None:
        name = f"app{step.file % 2}"
        if not any(each.get("txn", {}).get("appId") == name for each in self.others):
            self.state.transactions[name] = self.state.version
            self.others.append({"txn": {"appId": name, "version": self.state.version}})

    def _domain(self, step: Step) -> None:
        if not self.state.featured or any("domainMetadata" in each for each in self.others):
            return
        said = {"domain": f"d{step.file % 2}", "configuration": f"{step.file}", "removed": not step.data_change}
        self.others.append({"domainMetadata": said})
        if step.data_change:
            self.state.domains[str(said["domain"])] = str(said["configuration"])
        else:
            self.state.domains.pop(str(said["domain"]), None)

    def _change_data(self) -> list[Action]:
        by_partition: dict[tuple[str | None, ...], list[tuple[str, Row]]] = {}
        for kind, row in self.changes:
            values = tuple(partition_values(row, self.state.partitions).values())
            by_partition.setdefault(values, []).append((kind, row))
        state = self.state
        return [self.files.write_changes(each, state.partitions, state.columns) for each in by_partition.values()]

    def counts(self) -> Counter[str]:
        return Counter(kind for kind, _ in self.changes)

    _deeds: dict[Deed, Callable[[VersionSteps, Step], None]] = field(
        init=False,
        repr=False,
        default_factory=lambda: {
            Deed.INSERT: VersionSteps._insert,
            Deed.DELETE: VersionSteps._delete,
            Deed.UPDATE: VersionSteps._update,
            Deed.DROP: VersionSteps._drop,
            Deed.REWRITE: VersionSteps._rewrite,
            Deed.ADD_AGAIN: VersionSteps._add_again,
            Deed.REMOVE_GONE: VersionSteps._remove_gone,
            Deed.REMOVE_OTHER_VECTOR: VersionSteps._remove_other_vector,
            Deed.RESTORE: VersionSteps._restore,
            Deed.BESIDE: VersionSteps._beside,
            Deed.OVERWRITE: VersionSteps._overwrite,
            Deed.REPARTITION: VersionSteps._repartition,
            Deed.COLUMN: VersionSteps._column,
            Deed.FEED: VersionSteps._feed,
            Deed.PROPERTY: VersionSteps._property,
            Deed.UPGRADE: VersionSteps._upgrade,
            Deed.DOWNGRADE: VersionSteps._downgrade,
            Deed.TRANSACTION: VersionSteps._transaction,
            Deed.DOMAIN: VersionSteps._domain,
        },
    )
