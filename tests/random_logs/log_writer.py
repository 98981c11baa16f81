"""Writes a case's log, version by version, and knows the rows that each of them has."""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.random_logs.cases import OPERATIONS, Checkpoint, Dress, Info, Metrics, Setup, Step, Version
from tests.random_logs.checkpoints import CheckpointWriter
from tests.random_logs.columns import Row
from tests.random_logs.data_files import Action, DataFiles, compact, unique_id
from tests.random_logs.table_state import LogState
from tests.random_logs.version_steps import VersionSteps

_AGE_MS = 3_600_000
"""The first commit's age: no later one is of the future."""


@dataclass
class LogWriter:
    """Of the table at `root`. `bags`: by version, the rows that the table has as of it."""

    root: Path
    setup: Setup
    bags: list[Counter[Row]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = Path(self.root, "_delta_log")
        self.log.mkdir(parents=True)
        table_id = str(uuid.uuid5(uuid.NAMESPACE_URL, str(self.root)))
        self.state = LogState.of(self.setup, table_id, int(time.time()) * 1_000 - _AGE_MS)
        setup = self.setup
        self.files = DataFiles(self.root, setup.placing, setup.bounds, setup.marked, setup.repeated)
        first = VersionSteps(self.state, self.files, Version((Step(rows=self.setup.rows),)))
        actions = first.actions()
        self._written: list[list[Action]] = []
        self._commit(
            [{"protocol": self.state.protocol()}, {"metaData": self.state.metadata()}, *actions], Dress(), first
        )

    def commit(self, plan: Version) -> None:
        steps = VersionSteps(self.state, self.files, plan)
        actions = steps.actions()
        self._commit(actions, plan.dress, steps)
        if plan.compacted and self.state.version > 1:
            self._compact(max(1, self.state.version - plan.compacted + 1))
        if plan.checkpoint is not None:
            self._checkpoint(plan.checkpoint)

    def _commit(self, actions: list[Action], dress: Dress, steps: VersionSteps) -> None:
        version, at_ms = self.state.version, self.state.at_ms(self.state.version)
        about = {"commitInfo": self._info(dress, steps)}
        if self.state.stamped or not actions or dress.info is Info.FIRST:
            lines = [about, *actions]
        else:
            lines = [*actions, *[about] * (dress.info is Info.LAST)]
        path = Path(self.log, f"{version:020}.json")
        path.write_text("".join(f"{compact(line)}\n" for line in lines), encoding="utf-8")
        os.utime(path, ns=(at_ms * 1_000_000, at_ms * 1_000_000))
        if dress.checksum:
            Path(self.log, f"{version:020}.crc").write_text(compact(self.state.checksum()), encoding="utf-8")
        self._written.append(actions)
        self.bags.append(self.state.bag)

    def _info(self, dress: Dress, steps: VersionSteps) -> dict[str, Any]:
        at_ms = self.state.at_ms(self.state.version)
        said: dict[str, Any] = {
            "timestamp": at_ms,
            "operation": OPERATIONS[dress.operation % len(OPERATIONS)],
            "operationParameters": {},
            "engineInfo": "delta-rs:1.0" if dress.delta_rs else "Somebody/1.0",
        }
        if self.state.stamped:
            said = {"inCommitTimestamp": at_ms} | said
        if dress.metrics is not Metrics.NONE:
            counts = steps.counts() if dress.metrics is Metrics.TRUE else Counter[str]()
            said["operationMetrics"] = {
                "numTargetRowsInserted": str(counts["insert"]),
                "numTargetRowsUpdated": str(counts["update_postimage"]),
                "numTargetRowsDeleted": str(counts["delete"]),
                "num_updated_rows": counts["update_postimage"],
            }
        return said

    def _compact(self, first: int) -> None:
        """The actions of the commits from `first` on, reconciled: of each thing the newest."""
        newest: dict[tuple[str, ...], Action] = {}
        last = self.state.version
        for actions in self._written[first:]:
            for action in actions:
                key = _reconciled_by(action)
                if key:
                    newest.pop(key, None)
                    newest[key] = action
        path = Path(self.log, f"{first:020}.{last:020}.compacted.json")
        if newest and Path(self.log, f"{first:020}.json").exists():
            path.write_text("".join(f"{compact(each)}\n" for each in newest.values()), encoding="utf-8")

    def _checkpoint(self, plan: Checkpoint) -> None:
        if CheckpointWriter(self.log, self.state).write(plan) and plan.cleaned:
            self._clean()

    def _clean(self) -> None:
        """All that is older than the newest checkpoint, but for sidecars, which are left to a later VACUUM."""
        kept = f"{self.state.version:020}"
        for path in sorted(self.log.iterdir()):
            if path.name[0].isdigit() and path.name[: len(kept)] < kept:
                path.unlink()


def _reconciled_by(action: Action) -> tuple[str, ...]:
    """By what an action replaces an earlier one; empty: it is not about the table's state."""
    ((kind, body),) = action.items()
    match kind:
        case "add" | "remove":
            return "file", body["path"], unique_id(body.get("deletionVector"))
        case "txn":
            return kind, body["appId"]
        case "domainMetadata":
            return kind, body["domain"]
        case "protocol" | "metaData":
            return (kind,)
        case _:
            return ()
