"""Admission to the service `Node`, and the threads in which its methods run."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from iscp.adapters.grpc.channel.grpc_errors import translate_errors
from iscp.adapters.tls.server_credentials import names_shown
from iscp.core.values.errors import NotAuthorized


def refuse_stranger(names: Collection[str], node_name: str) -> None:
    """Raise NotAuthorized unless a caller whose certificate has these names is a node; without TLS everybody passes."""
    if node_name and node_name.lower() not in (name.lower() for name in names):
        raise NotAuthorized(
            f"this is for nodes alone, and the caller's certificate does not have {node_name} among its DNS names",
            about="security.tls.node_name",
            remedy="Give a node the certificate of one, and the same name to all nodes of a cluster",
        )


class AdmittedMethod:
    """A method for nodes alone, in threads of its own (gRPC reads that attribute; its health service has it too).

    Every method of the service is one: there is no other way to it.
    """

    def __init__(
        self, method: Callable[[Any, grpc.ServicerContext], Any], pool: ThreadPoolExecutor, node_name: str
    ) -> None:
        self._method = method
        self._node_name = node_name
        self.experimental_thread_pool = pool

    def __call__(self, request: Any, context: grpc.ServicerContext) -> Any:
        if self._node_name:
            with translate_errors(context, "admit", "node_call"):
                refuse_stranger(names_shown(context).dns, self._node_name)
        return self._method(request, context)
