"""The connections to a port are found among the files of this process, and are ended without their owner's help."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from iscp.adapters.system.open_connections import connections_to, end_connection, files_count, peer_of


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_only_connections_to_the_port_are_found_and_one_is_ended(family: socket.AddressFamily, host: str) -> None:
    with ExitStack() as opened:
        listener, elsewhere = (opened.enter_context(socket.create_server((host, 0), family=family)) for _ in range(2))
        port = listener.getsockname()[1]
        near, far = [], []
        for _ in range(3):
            near.append(opened.enter_context(socket.create_connection((host, port), 20)))
            far.append(opened.enter_context(listener.accept()[0]))
        opened.enter_context(socket.create_connection((host, elsewhere.getsockname()[1]), 20))
        found = connections_to(port)
        assert found == {(host, end.getsockname()[1]): other.fileno() for end, other in zip(near, far, strict=True)}
        before = files_count()
        peer = host, near[0].getsockname()[1]
        end_connection(found[peer], (host, 1), port)
        end_connection(far[1].fileno(), peer, port)
        with Path(os.devnull).open() as file:
            end_connection(file.fileno(), peer, port)
        end_connection(found[peer], peer, port)
        assert files_count() == before
        assert [end.recv(1) for end in near[:1]] == [b""]
        for end in near[1:]:
            end.setblocking(False)
            with pytest.raises(BlockingIOError):
                end.recv(1)


def test_a_host_is_written_in_one_way() -> None:
    assert peer_of("::ffff:10.0.0.1", 1) == peer_of("10.0.0.1", 1) == ("10.0.0.1", 1)
    assert peer_of("fe80::1%eth0", 1) == peer_of("FE80:0::1", 1) == ("fe80::1", 1)
