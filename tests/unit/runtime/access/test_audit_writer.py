"""The audit's writer: nobody waits for it, and what it cannot keep is in the node's log."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from iscp.core.audit_entry import AuditEntry
from iscp.core.errors import InvalidRequest, StorageError
from iscp.runtime.access.audit_writer import AuditWriter
from tests.fakes.access import FakeAudit
from tests.fakes.waiting import until

ENTRY = AuditEntry(1.0, "n", "a", "a", "editor", "id", "token", "p", "/s/Pause", "{}", "r", "OK")


def entries(count: int) -> list[AuditEntry]:
    return [replace(ENTRY, request_id=f"r{number}") for number in range(count)]


def test_entries_are_written_soon_and_in_order() -> None:
    audit = FakeAudit()
    writer = AuditWriter(audit)
    writer.start()
    for each in entries(3):
        writer.add([each])
    until(lambda: audit.entries == entries(3), within_s=10.0)
    writer.close()
    assert writer.lost == 0


def test_what_is_pending_is_written_at_the_end() -> None:
    audit = FakeAudit()
    writer = AuditWriter(audit)
    writer.start()
    writer.add(entries(5))
    writer.close()
    assert audit.entries == entries(5)


def test_a_storage_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    audit = FakeAudit(failures=[StorageError("full")])
    writer = AuditWriter(audit)
    writer.add(entries(2))
    assert not writer.turn()
    assert "audit.failed" in caplog.messages
    assert writer.counters() == {"audit_waiting": 2, "audit_lost": 0}
    assert writer.turn()
    assert audit.entries == entries(2)
    assert writer.turn()  # nothing is left
    assert audit.entries == entries(2)


def test_beyond_the_queue_entries_are_counted_and_logged_in_full(caplog: pytest.LogCaptureFixture) -> None:
    writer = AuditWriter(FakeAudit(), queue_max=2)
    writer.add(entries(5))
    assert writer.counters() == {"audit_waiting": 2, "audit_lost": 3}
    lost = [record for record in caplog.records if record.message == "audit.lost"]
    assert [getattr(record, "audit_request_id", "") for record in lost] == ["r2", "r3", "r4"]
    assert all(record.levelno == logging.ERROR for record in lost)


def test_what_no_table_can_hold_is_left_out_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Picky(FakeAudit):
        def append(self, entries: object) -> None:
            given = list(entries)  # type: ignore[call-overload]
            if any(each.request_id == "r2" for each in given):
                raise InvalidRequest("cannot be held")
            self.entries.extend(given)

    audit = Picky()
    writer = AuditWriter(audit)
    writer.add(entries(5))
    assert writer.turn()
    assert [each.request_id for each in audit.entries] == ["r0", "r1", "r3", "r4"]
    assert writer.lost == 1


def test_what_cannot_be_written_at_the_end_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    writer = AuditWriter(FakeAudit(failures=[StorageError("gone")] * 9))
    writer.start()
    writer.add(entries(2))
    writer.close()
    assert writer.lost == 2
    writer.add(entries(1))
    assert writer.lost == 3
