"""Stands between a client and a real etcd, and can lose the answers while the requests arrive."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

CHUNK_BYTES = 65_536


class AnswerLosingProxy:
    """Relays TCP, and drops what comes back while answers are lost: the requests arrive all the same."""

    def __init__(self, port: int) -> None:
        self._upstream = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._losing = threading.Event()
        self._open: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def lose_answers(self) -> None:
        self._losing.set()

    def cut(self) -> None:
        """End the connections that there are."""
        for each in self._open[1:]:
            _shut(each)

    def pass_answers(self) -> None:
        self._losing.clear()

    def __enter__(self) -> AnswerLosingProxy:
        return self

    def __exit__(self, *_: object) -> None:
        for each in list(self._open):
            _shut(each)
            each.close()
        for thread in self._threads:
            thread.join(5)

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._upstream)
                self._open += [client, server]
                self._start(self._relay, client, server, False)
                self._start(self._relay, server, client, True)

    def _relay(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while chunk := source.recv(CHUNK_BYTES):
                if not (answers and self._losing.is_set()):
                    sink.sendall(chunk)
        _shut(source)
        _shut(sink)


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
