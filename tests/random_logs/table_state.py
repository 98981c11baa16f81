"""What a table is after some versions, as the protocol has it: its files, tombstones, metadata and protocol."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.random_logs.cases import Setup
from tests.random_logs.columns import FIRST_COLUMNS, Row, schema_json
from tests.random_logs.data_files import Action, LogFile

Key = tuple[str, str]
"""Of a logical file: path, and id of its vector."""

FEED = "delta.enableChangeDataFeed"
_STAMPS = "delta.enableInCommitTimestamps"
_READER_FEATURES = ("deletionVectors", "v2Checkpoint")
_WRITER_FEATURES = (*_READER_FEATURES, "appendOnly", "changeDataFeed", "domainMetadata", "invariants")


@dataclass
class LogState:
    """`live` and `gone`: by key, what is in the table and what its tombstones say; no key is in both.

    `in_v2`: the newest checkpoint that readers may use is of version 2.
    """

    table_id: str
    base_ms: int
    partitions: tuple[str, ...] = ()
    columns: int = FIRST_COLUMNS
    configuration: dict[str, str] = field(default_factory=dict)
    featured: bool = False
    stamped: bool = False
    live: dict[Key, LogFile] = field(default_factory=dict)
    gone: dict[Key, LogFile] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    domains: dict[str, str] = field(default_factory=dict)
    version: int = -1
    in_v2: bool = False

    @classmethod
    def of(cls, setup: Setup, table_id: str, base_ms: int) -> LogState:
        state = cls(table_id, base_ms, setup.partitions, featured=setup.featured or setup.stamps, stamped=setup.stamps)
        state.configuration = {FEED: "true"} if setup.feed else {}
        if setup.stamps:
            state.configuration[_STAMPS] = "true"
        return state

    @property
    def feed(self) -> bool:
        return self.configuration.get(FEED) == "true"

    @property
    def bag(self) -> Counter[Row]:
        return Counter(row for file in self.live.values() for row in file.alive)

    def at_ms(self, version: int) -> int:
        return self.base_ms + 1_000 * version

    def metadata(self) -> dict[str, Any]:
        return {
            "id": self.table_id,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema_json(self.columns),
            "partitionColumns": list(self.partitions),
            "configuration": dict(self.configuration),
            "createdTime": self.base_ms,
        }

    def protocol(self) -> dict[str, Any]:
        if not self.featured:
            return {"minReaderVersion": 1, "minWriterVersion": 4}
        writers = [*_WRITER_FEATURES, *["inCommitTimestamp"] * self.stamped]
        features = {"readerFeatures": [*_READER_FEATURES], "writerFeatures": writers}
        return {"minReaderVersion": 3, "minWriterVersion": 7, **features}

    def others(self) -> list[Action]:
        """All that is not about files."""
        found: list[Action] = [{"protocol": self.protocol()}, {"metaData": self.metadata()}]
        found += [{"txn": {"appId": name, "version": version}} for name, version in self.transactions.items()]
        return found + [
            {"domainMetadata": {"domain": name, "configuration": text, "removed": False}}
            for name, text in self.domains.items()
        ]

    def file_actions(self) -> list[Action]:
        """As checkpoints have them: what is there, and tombstones."""
        at_ms = self.at_ms(self.version)
        removes = [file.remove(at_ms, data_change=False, bare=False) for file in self.gone.values()]
        return [file.add(data_change=False) for file in self.live.values()] + removes

    def checksum(self) -> Mapping[str, Any]:
        said: dict[str, Any] = {
            "tableSizeBytes": sum(file.size for file in self.live.values()),
            "numFiles": len(self.live),
            "numMetadata": 1,
            "numProtocol": 1,
            "setTransactions": [each["txn"] for each in self.others() if "txn" in each],
            "domainMetadata": [each["domainMetadata"] for each in self.others() if "domainMetadata" in each],
            "metadata": self.metadata(),
            "protocol": self.protocol(),
        }
        return said | ({"inCommitTimestampOpt": self.at_ms(self.version)} if self.stamped else {})
