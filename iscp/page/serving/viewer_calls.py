"""Calls of the cluster in the name of who views the page.

The page decides nothing about rights: each call goes to this node's own gRPC port with the viewer's token, and with a
statement of what the viewer's certificate says. There it is decided as everybody's calls are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import grpc

from iscp.adapters.grpc.access.caller_evidence import TOKEN_KEY, statement
from iscp.adapters.grpc.channel.call_metadata import CALLER_KEY, Metadata, open_channel
from iscp.adapters.grpc.channel.grpc_errors import from_rpc
from iscp.adapters.grpc.channel.retrying_caller import Caller
from iscp.adapters.tls.endpoint import reachable
from iscp.adapters.tls.tls_files import TlsSource
from iscp.client.access_client import AccessClient
from iscp.client.admin_client import Client
from iscp.client.build_client import BuildClient
from iscp.client.feed_client import FeedClient
from iscp.client.operator_client import OperatorClient
from iscp.core.access.audit_entry import AuditEntry
from iscp.core.api.api_views import EventView, JobView, LeftOutRows
from iscp.core.api.search_views import SearchAnswer
from iscp.core.build.api_builds import BuildView
from iscp.core.job.iteration import HistoryEntry
from iscp.core.query.query_explanation import QueryExplanation
from iscp.wire.v1 import admin_pb2_grpc, search_pb2_grpc

R = TypeVar("R")

CALL_TIMEOUT_S = 20.0
"""Seconds that a call for the page may take; then the page says that the cluster did not answer in time."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """A viewer of the page, known by a token (empty: none) and the names in the certificate of the connection.

    `peer` is its address, as gRPC writes it.
    """

    token: str = ""
    names: frozenset[str] = frozenset()
    peer: str = ""

    @property
    def scope(self) -> str:
        """Return what is equal for the requests of one caller, and shows no token."""
        text = "\n".join((self.token, *sorted(self.names)))
        return hashlib.sha256(text.encode()).hexdigest()


class Operates(Protocol):
    def events(self) -> Sequence[EventView]: ...


class Audits(Protocol):
    def audit(self, *, limit: int) -> Sequence[AuditEntry]: ...


class ListsBuilds(Protocol):
    def list(self) -> Sequence[BuildView]: ...


class ViewerClient(Protocol):
    """The calls of boards that need no cluster, as `Client` has them."""

    @property
    def operator(self) -> Operates: ...

    @property
    def builds(self) -> ListsBuilds: ...

    @property
    def access(self) -> Audits: ...

    def jobs(self, *, limit: int) -> Sequence[JobView]: ...

    def count(self) -> int: ...

    def status(self, table: str, name: str, *, account: str) -> JobView: ...

    def history(self, table: str, name: str, *, limit: int, account: str) -> Sequence[HistoryEntry]: ...

    def dead_letters(self, table: str, name: str, *, account: str) -> LeftOutRows: ...

    def explain(self, table: str, name: str, *, account: str) -> QueryExplanation: ...

    def search(self, uri: str, text: str, *, k: int, highlight: bool, account: str) -> SearchAnswer: ...


class ViewerClients(Protocol):
    """The clients of the cluster, one for each viewer."""

    def client(self, viewer: Viewer) -> ViewerClient: ...

    def close(self) -> None: ...


def whole(client: ViewerClient) -> Client:
    """Return the client with all of its calls, as that of a cluster has them; only the page of one makes others."""
    return cast(Client, client)


class _ViewerCaller(Caller):
    """The caller of one viewer over the channel that all share. It calls once: who views the page reloads it."""

    def __init__(self, channel: Any, metadata: Metadata, endpoint: str) -> None:
        self.channel = channel
        self._metadata = metadata
        self._endpoint_name = endpoint

    def close(self) -> None:
        """Leave the channel to the others."""

    def call(
        self,
        method: Callable[..., R],
        request: Any,
        *,
        changes: bool = False,
        once: bool = False,
        timeout_s: float | None = None,
    ) -> R:
        within_s = CALL_TIMEOUT_S if timeout_s is None else min(timeout_s, CALL_TIMEOUT_S)
        try:
            return method(request, timeout=within_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise from_rpc(error, self._endpoint_name, changes=changes) from error


class _ViewerClient(Client):
    """The Python client, with the calls of a viewer."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._admin = admin_pb2_grpc.AdminStub(caller.channel)
        self._search = search_pb2_grpc.SearchStub(caller.channel)
        self.operator = OperatorClient(caller)
        self.builds = BuildClient(caller)
        self.feeds = FeedClient(caller)
        self.access = AccessClient(caller)


class PageClients(ViewerClients):
    """The clients of the node whose gRPC server listens on `address`, HOST:PORT."""

    def __init__(self, address: str, tls: TlsSource | None) -> None:
        self._endpoint = reachable(address)
        self._channel = open_channel(self._endpoint, tls)
        self._said = tls is not None

    def client(self, viewer: Viewer) -> Client:
        return _ViewerClient(_ViewerCaller(self._channel, metadata_of_viewer(viewer, self._said), self._endpoint))

    def close(self) -> None:
        self._channel.close()


def metadata_of_viewer(viewer: Viewer, said: bool) -> Metadata:
    """Return the metadata of a viewer's calls. `said`: by TLS, in which this node's statement is believed; without it
    the calls would be the node's own.
    """
    token = ((TOKEN_KEY, f"Bearer {viewer.token}"),) if viewer.token else ()
    return (*token, (CALLER_KEY, statement(viewer.names, viewer.peer))) if said else token


Query = Mapping[str, str]
"""The parameters of an address."""
