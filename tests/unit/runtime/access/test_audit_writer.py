"""The audit's writer: nobody waits for it, and what it cannot keep is in the node's log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from iscp.core.access.audit_entry import AuditEntry
from iscp.core.values.errors import InvalidRequest, StorageError
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


def test_the_queue_is_bounded_by_characters_too(caplog: pytest.LogCaptureFixture) -> None:
    audit = FakeAudit()
    writer = AuditWriter(audit, queue_chars_max=2 * ENTRY.chars + 1_000)
    huge, two = replace(ENTRY, what="x" * 2_000), [ENTRY, ENTRY]
    writer.add([*two, huge])
    assert writer.counters() == {"audit_waiting": 2, "audit_lost": 1}
    assert writer.turn()
    writer.add([*two, huge])  # what was written makes room
    assert writer.counters() == {"audit_waiting": 2, "audit_lost": 2}


class Hanging(FakeAudit):
    """Its append ends when it is let, with an error if it is given one."""

    def __init__(self, error: StorageError | None = None) -> None:
        super().__init__()
        self.begun, self.go_on, self.error = threading.Event(), threading.Event(), error

    def append(self, entries: Sequence[AuditEntry]) -> None:
        self.begun.set()
        assert self.go_on.wait(20.0)
        if self.error:
            raise self.error
        super().append(entries)


@pytest.mark.parametrize("error", [None, StorageError("gone")])
def test_what_is_being_written_when_a_node_stops_is_lost_only_if_it_fails(
    caplog: pytest.LogCaptureFixture, error: StorageError | None
) -> None:
    audit = Hanging(error)
    writer = AuditWriter(audit, close_s=0.1)
    first, second, third = entries(3)
    writer.add([first])
    writer.start()
    assert audit.begun.wait(10.0)
    writer.add([second])
    writer.close()
    writer.add([third])

    def logged(event: str) -> list[str]:
        return [getattr(each, "audit_request_id", "") for each in caplog.records if each.message == event]

    assert (logged("audit.lost"), logged("audit.unconfirmed"), writer.lost) == (["r1", "r2"], ["r0"], 2)
    audit.go_on.set()
    until(lambda: writer.counters() == {"audit_waiting": 0, "audit_lost": 3 if error else 2}, within_s=10.0)
    assert audit.entries == ([] if error else [first])
    until(lambda: logged("audit.lost") == (["r1", "r2", "r0"] if error else ["r1", "r2"]), within_s=10.0)
    assert "audit.broken" not in caplog.messages


def test_what_was_written_of_a_batch_is_not_written_again() -> None:
    class Picky(FakeAudit):
        """It cannot hold r3, and fails once after it has held something."""

        def append(self, entries: Sequence[AuditEntry]) -> None:
            if any(each.request_id == "r3" for each in entries):
                raise InvalidRequest("cannot be held")
            if self.entries and self.failures:
                raise self.failures.pop()
            self.entries.extend(entries)

    audit = Picky(failures=[StorageError("gone")])
    writer = AuditWriter(audit)
    writer.add(entries(4))
    assert not writer.turn()
    assert writer.counters() == {"audit_waiting": 2, "audit_lost": 0}
    assert writer.turn()
    assert [each.request_id for each in audit.entries] == ["r0", "r1", "r2"]
    assert writer.counters() == {"audit_waiting": 0, "audit_lost": 1}
