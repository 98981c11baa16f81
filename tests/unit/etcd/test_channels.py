"""Which errors of gRPC mean that nothing was written, and which leave the outcome unknown.

The descriptor set of etcd: it is in a private pool, and equals proto/etcd.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool
from grpc import StatusCode

from iscp.etcd import channels
from iscp.etcd.channels import (
    EtcdCompactedError,
    EtcdDeniedError,
    EtcdExhaustedError,
    EtcdFault,
    EtcdLeaseGoneError,
    EtcdOutcomeUnknown,
    EtcdRefusedError,
    EtcdUnavailable,
    fault_of,
    translated,
)
from iscp.model.values.errors import ConfigurationError, LeaseLost, OutcomeUnknown, TemporaryError, Unavailable


@dataclass
class Answer:
    """Has what gRPC's errors have."""

    status: StatusCode
    text: str | None

    def code(self) -> StatusCode:
        return self.status

    def details(self) -> str | None:
        return self.text


@pytest.mark.parametrize(
    ("code", "text", "fault", "read", "write"),
    [
        (
            StatusCode.UNAVAILABLE,
            "failed to connect to all addresses; x",
            EtcdFault.UNSENT,
            EtcdUnavailable,
            EtcdUnavailable,
        ),
        (StatusCode.UNAVAILABLE, "Socket closed", EtcdFault.LOST, EtcdUnavailable, EtcdOutcomeUnknown),
        (StatusCode.UNAVAILABLE, None, EtcdFault.LOST, EtcdUnavailable, EtcdOutcomeUnknown),
        (StatusCode.UNAVAILABLE, "etcdserver: no leader", EtcdFault.LOST, EtcdUnavailable, EtcdOutcomeUnknown),
        (StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", EtcdFault.LOST, EtcdUnavailable, EtcdOutcomeUnknown),
        (StatusCode.UNKNOWN, "context canceled", EtcdFault.LOST, EtcdUnavailable, EtcdOutcomeUnknown),
        (
            StatusCode.UNAUTHENTICATED,
            "etcdserver: invalid auth token",
            EtcdFault.TOKEN,
            EtcdDeniedError,
            EtcdDeniedError,
        ),
        (
            StatusCode.PERMISSION_DENIED,
            "etcdserver: permission denied",
            EtcdFault.REFUSED,
            EtcdDeniedError,
            EtcdDeniedError,
        ),
        (
            StatusCode.RESOURCE_EXHAUSTED,
            "etcdserver: mvcc: database space exceeded",
            EtcdFault.REFUSED,
            EtcdExhaustedError,
            EtcdExhaustedError,
        ),
        (
            StatusCode.OUT_OF_RANGE,
            "etcdserver: mvcc: required revision has been compacted",
            EtcdFault.REFUSED,
            EtcdCompactedError,
            EtcdCompactedError,
        ),
        (
            StatusCode.NOT_FOUND,
            "etcdserver: requested lease not found",
            EtcdFault.REFUSED,
            EtcdLeaseGoneError,
            EtcdLeaseGoneError,
        ),
        (
            StatusCode.INVALID_ARGUMENT,
            "etcdserver: key is not provided",
            EtcdFault.REFUSED,
            EtcdRefusedError,
            EtcdRefusedError,
        ),
    ],
)
def test_an_error_is_sorted_by_what_may_have_happened(
    code: StatusCode, text: str | None, fault: EtcdFault, read: type, write: type
) -> None:
    error = Answer(code, text)
    assert fault_of(error) is fault
    assert type(translated(error, writes=False)) is read
    assert type(translated(error, writes=True)) is write


def test_each_is_below_the_error_that_the_rest_of_iscp_knows() -> None:
    assert issubclass(EtcdUnavailable, Unavailable)
    assert issubclass(EtcdOutcomeUnknown, OutcomeUnknown)
    assert issubclass(EtcdDeniedError, ConfigurationError)
    assert issubclass(EtcdLeaseGoneError, LeaseLost)
    assert issubclass(EtcdCompactedError, TemporaryError)
    assert EtcdDeniedError("x").code == ConfigurationError.code


ROOT = Path(__file__).parents[3]


def test_etcds_messages_stay_out_of_the_default_pool() -> None:
    """There they would clash with any other copy in the same interpreter."""
    for name in ("mvccpb.KeyValue", "etcdserverpb.RangeRequest"):
        with pytest.raises(KeyError):
            descriptor_pool.Default().FindMessageTypeByName(name)


def test_every_call_has_the_answer_that_the_service_declares() -> None:
    pool = channels.RangeRequest.DESCRIPTOR.file.pool
    for path, answer in channels.ANSWERS.items():
        service, _, method = path.lstrip("/").partition("/")
        declared = pool.FindServiceByName(service).FindMethodByName(method)
        assert declared.output_type.full_name == answer.DESCRIPTOR.full_name


def test_the_committed_descriptors_are_compiled_from_the_committed_protos(tmp_path: Path) -> None:
    fresh = tmp_path / "etcd.binpb"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-Iproto/etcd", "--include_imports"]
    subprocess.run([*command, f"--descriptor_set_out={fresh}", "rpc.proto"], cwd=ROOT, check=True, timeout=60)
    committed = ROOT / "iscp/etcd/etcd.binpb"
    assert fresh.read_bytes() == committed.read_bytes(), "run scripts/generate-etcd"
