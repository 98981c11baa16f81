"""Many nodes in one process, behind one port: `python -m tests.fakes.many_nodes_program COUNT`.

Each has the service that a node has, and answers the owner at once; a call reaches the node that its metadata mean. The
port is written to its standard output once it is open; the process ends with its standard input.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc

from iscp.client.channel.grpc_calls import SERVER_OPTIONS, meant_of
from iscp.model.protocol.messages import Announce, OwnerMessage
from iscp.server.node.node_server import NodeServer
from tests.fakes.node_calls import FakeNodeCalls
from tests.fakes.prompt_nodes import EPOCH, answers, node_records

CLUSTER, OWNER_ID = "/iscp/many", "owner"


class Handlers:
    """Stands for a server, where a service is added to it; keeps what it serves."""

    def __init__(self) -> None:
        self.of_service: Any = None

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        (self.of_service,) = handlers


class ByNode(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """Gives each call to the node that it means."""

    def __init__(self, count: int) -> None:
        self._nodes: dict[str, Handlers] = {}
        for record in node_records(count):
            served: list[NodeServer] = []
            hear = partial(answer, served)
            served.append(NodeServer(record.node_id, lambda: EPOCH, CLUSTER, "v", FakeNodeCalls(), hear))
            self._nodes[record.node_id] = Handlers()
            served[0].add_to(self._nodes[record.node_id])

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        meant = meant_of(handler_call_details.invocation_metadata)
        return self._nodes[meant.node_id].of_service.service(handler_call_details)


def answer(served: list[NodeServer], messages: Sequence[OwnerMessage]) -> None:
    for message in messages:
        for said in answers(message):
            served[0].send(message.owner_id if isinstance(message, Announce) else OWNER_ID, said)


def main(count: int) -> None:
    server = grpc.server(ThreadPoolExecutor(4), options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers((ByNode(count),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop(0).wait()


if __name__ == "__main__":
    main(int(sys.argv[1]))
