"""Which errors say that nothing was written, and which do not know."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
import pytest

from iscp.adapters.etcd.errors import (
    EtcdCompacted,
    EtcdDenied,
    EtcdExhausted,
    EtcdLeaseGone,
    EtcdOutcomeUnknown,
    EtcdRefused,
    EtcdUnavailable,
    Fault,
    fault_of,
    translated,
)
from iscp.core.errors import ConfigurationError, LeaseLost, OutcomeUnknown, TemporaryError, Unavailable

Code = grpc.StatusCode


@dataclass
class Answer:
    """Has what gRPC's errors have."""

    status: Code
    text: str | None

    def code(self) -> Code:
        return self.status

    def details(self) -> str | None:
        return self.text


@pytest.mark.parametrize(
    ("code", "text", "fault", "read", "write"),
    [
        (Code.UNAVAILABLE, "failed to connect to all addresses; x", Fault.UNSENT, EtcdUnavailable, EtcdUnavailable),
        (Code.UNAVAILABLE, "Socket closed", Fault.LOST, EtcdUnavailable, EtcdOutcomeUnknown),
        (Code.UNAVAILABLE, None, Fault.LOST, EtcdUnavailable, EtcdOutcomeUnknown),
        (Code.UNAVAILABLE, "etcdserver: no leader", Fault.LOST, EtcdUnavailable, EtcdOutcomeUnknown),
        (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", Fault.LOST, EtcdUnavailable, EtcdOutcomeUnknown),
        (Code.UNKNOWN, "context canceled", Fault.LOST, EtcdUnavailable, EtcdOutcomeUnknown),
        (Code.UNAUTHENTICATED, "etcdserver: invalid auth token", Fault.TOKEN, EtcdDenied, EtcdDenied),
        (Code.PERMISSION_DENIED, "etcdserver: permission denied", Fault.REFUSED, EtcdDenied, EtcdDenied),
        (
            Code.RESOURCE_EXHAUSTED,
            "etcdserver: mvcc: database space exceeded",
            Fault.REFUSED,
            EtcdExhausted,
            EtcdExhausted,
        ),
        (
            Code.OUT_OF_RANGE,
            "etcdserver: mvcc: required revision has been compacted",
            Fault.REFUSED,
            EtcdCompacted,
            EtcdCompacted,
        ),
        (Code.NOT_FOUND, "etcdserver: requested lease not found", Fault.REFUSED, EtcdLeaseGone, EtcdLeaseGone),
        (Code.INVALID_ARGUMENT, "etcdserver: key is not provided", Fault.REFUSED, EtcdRefused, EtcdRefused),
    ],
)
def test_an_error_is_sorted_by_what_may_have_happened(
    code: Code, text: str | None, fault: Fault, read: type, write: type
) -> None:
    error = Answer(code, text)
    assert fault_of(error) is fault
    assert type(translated(error, writes=False)) is read
    assert type(translated(error, writes=True)) is write


def test_each_stands_below_the_error_that_the_rest_of_iscp_knows() -> None:
    assert issubclass(EtcdUnavailable, Unavailable)
    assert issubclass(EtcdOutcomeUnknown, OutcomeUnknown)
    assert issubclass(EtcdDenied, ConfigurationError)
    assert issubclass(EtcdLeaseGone, LeaseLost)
    assert issubclass(EtcdCompacted, TemporaryError)
    assert EtcdDenied("x").code == ConfigurationError.code
