"""The descriptor set of etcd: it is in a private pool, and equals proto/etcd."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool

from iscp.adapters.etcd import descriptors

ROOT = Path(__file__).parents[4]


def test_etcds_messages_stay_out_of_the_default_pool() -> None:
    """There they would clash with any other copy in the same interpreter."""
    for name in ("mvccpb.KeyValue", "etcdserverpb.RangeRequest"):
        with pytest.raises(KeyError):
            descriptor_pool.Default().FindMessageTypeByName(name)


def test_every_call_has_the_answer_that_the_service_declares() -> None:
    pool = descriptors.RangeRequest.DESCRIPTOR.file.pool
    for path, answer in descriptors.ANSWERS.items():
        service, _, method = path.lstrip("/").partition("/")
        declared = pool.FindServiceByName(service).FindMethodByName(method)
        assert declared.output_type.full_name == answer.DESCRIPTOR.full_name


def test_the_committed_descriptors_are_compiled_from_the_committed_protos(tmp_path: Path) -> None:
    fresh = tmp_path / "etcd.binpb"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-Iproto/etcd", "--include_imports"]
    subprocess.run([*command, f"--descriptor_set_out={fresh}", "rpc.proto"], cwd=ROOT, check=True, timeout=60)
    committed = ROOT / "iscp/adapters/etcd/etcd.binpb"
    assert fresh.read_bytes() == committed.read_bytes(), "run scripts/generate-etcd"
