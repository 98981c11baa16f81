"""etcd's messages, built from a descriptor set in a pool of their own.

Generated modules would register in protobuf's default pool, where a second copy of etcd's messages in the same
interpreter (any other client) clashes: `duplicate symbol mvccpb.KeyValue`. The set is compiled from proto/etcd by
`scripts/generate-etcd`. Nothing outside this package sees these dynamically typed messages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "etcdserverpb"


def _load() -> dict[str, Any]:
    files = descriptor_pb2.FileDescriptorSet.FromString(Path(__file__).with_name("etcd.binpb").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return {
        message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{message.name}"))
        for file in files.file
        for message in file.message_type
    }


_CLASSES = _load()

RangeRequest = _CLASSES["RangeRequest"]
RangeResponse = _CLASSES["RangeResponse"]
PutRequest = _CLASSES["PutRequest"]
PutResponse = _CLASSES["PutResponse"]
DeleteRangeRequest = _CLASSES["DeleteRangeRequest"]
DeleteRangeResponse = _CLASSES["DeleteRangeResponse"]
RequestOp = _CLASSES["RequestOp"]
Compare = _CLASSES["Compare"]
TxnRequest = _CLASSES["TxnRequest"]
TxnResponse = _CLASSES["TxnResponse"]
CompactionRequest = _CLASSES["CompactionRequest"]
CompactionResponse = _CLASSES["CompactionResponse"]
WatchRequest = _CLASSES["WatchRequest"]
WatchCreateRequest = _CLASSES["WatchCreateRequest"]
WatchResponse = _CLASSES["WatchResponse"]
LeaseGrantRequest = _CLASSES["LeaseGrantRequest"]
LeaseGrantResponse = _CLASSES["LeaseGrantResponse"]
LeaseRevokeRequest = _CLASSES["LeaseRevokeRequest"]
LeaseRevokeResponse = _CLASSES["LeaseRevokeResponse"]
LeaseKeepAliveRequest = _CLASSES["LeaseKeepAliveRequest"]
LeaseKeepAliveResponse = _CLASSES["LeaseKeepAliveResponse"]
LeaseTimeToLiveRequest = _CLASSES["LeaseTimeToLiveRequest"]
LeaseTimeToLiveResponse = _CLASSES["LeaseTimeToLiveResponse"]
MemberListRequest = _CLASSES["MemberListRequest"]
MemberListResponse = _CLASSES["MemberListResponse"]
StatusRequest = _CLASSES["StatusRequest"]
StatusResponse = _CLASSES["StatusResponse"]
AuthenticateRequest = _CLASSES["AuthenticateRequest"]
AuthenticateResponse = _CLASSES["AuthenticateResponse"]

# Path of a call -> the class of its answer.
ANSWERS: dict[str, Any] = {
    f"/{_PACKAGE}.{service}/{method}": answer
    for service, method, answer in (
        ("KV", "Range", RangeResponse),
        ("KV", "Put", PutResponse),
        ("KV", "DeleteRange", DeleteRangeResponse),
        ("KV", "Txn", TxnResponse),
        ("KV", "Compact", CompactionResponse),
        ("Lease", "LeaseGrant", LeaseGrantResponse),
        ("Lease", "LeaseRevoke", LeaseRevokeResponse),
        ("Lease", "LeaseTimeToLive", LeaseTimeToLiveResponse),
        ("Lease", "LeaseKeepAlive", LeaseKeepAliveResponse),
        ("Watch", "Watch", WatchResponse),
        ("Cluster", "MemberList", MemberListResponse),
        ("Maintenance", "Status", StatusResponse),
        ("Auth", "Authenticate", AuthenticateResponse),
    )
}


def path(service: str, method: str) -> str:
    return f"/{_PACKAGE}.{service}/{method}"
