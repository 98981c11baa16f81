"""A node that only says that it serves: the program that stands in for `iscp node`.

`FAKE_NODE` in the environment says what it is to do: `exit` ends it at once, `stubborn` makes it ignore SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from iscp.app.settings import load_settings


def main(file: str) -> int:
    config = load_settings(Path(file), os.environ)
    if os.environ.get("FAKE_NODE") == "exit":
        print("this node never starts", file=sys.stderr)  # noqa: T201  (it is what the log is to show)
        return 3
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: None if os.environ.get("FAKE_NODE") == "stubborn" else stopped.set())
    server = grpc.server(ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    servicer.set("iscp.wire.v1.Admin", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(config.listen)
    server.start()
    stopped.wait()
    server.stop(None)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
