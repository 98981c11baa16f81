"""Kills nodes while the demo runs, the owner in its turn: whoever runs them starts them again."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress

from iscp.client.admin_client import Client
from iscp.core.api.api_views import ClusterView, NodeView
from iscp.core.values.errors import IscpError

EVERY_S = 5.0
READY_MIN = 2
"""Nodes that have to be ready before one is killed: something has to go on."""
OWNER_EVERY = 3
"""One kill of so many is the owner's, from the second on."""


class Chaos:
    """A thread that kills with SIGKILL; `kills` are those so far, by the nodes' names."""

    def __init__(self, endpoint: str, draw: random.Random) -> None:
        self.kills: list[str] = []
        self._endpoint = endpoint
        self._draw = draw
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-chaos", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        with Client(self._endpoint, timeout_s=EVERY_S) as client:
            while not self._ended.wait(EVERY_S):
                with suppress(IscpError):  # it is not known who is there: nobody is killed
                    self._kill(client.cluster())

    def _kill(self, cluster: ClusterView) -> None:
        ready = [node for node in cluster.nodes if node.state == "ready"]
        victim = self._victim(ready, cluster.owner) if len(ready) >= READY_MIN else None
        if victim is not None:
            with suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGKILL)
                self.kills.append(f"{victim.node_id} (owner)" if victim.node_id == cluster.owner else victim.node_id)

    def _victim(self, ready: Sequence[NodeView], owner: str) -> NodeView | None:
        owners = [node for node in ready if node.node_id == owner]
        if owners and len(self.kills) % OWNER_EVERY == 1:
            return owners[0]
        return self._draw.choice([node for node in ready if node.node_id != owner] or owners or [None])
