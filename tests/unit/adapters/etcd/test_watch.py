"""The revision from which a watch resumes, against a scripted server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from iscp.adapters.etcd import descriptors as pb
from iscp.adapters.etcd.etcd_errors import EtcdDeniedError, EtcdUnavailable
from iscp.adapters.etcd.values import Changed, Compacted, Progress
from iscp.adapters.etcd.watch import Watch
from tests.fakes.clock import FakeClock

LASTS_S = 7.0


class Ended(grpc.RpcError):  # type: ignore[misc]
    """As a server ends a stream whose time is over: by its own word for that, or by another."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNKNOWN

    def details(self) -> str:
        return "context deadline exceeded"


class ScriptedCall:
    def __init__(self, responses: list[Any]) -> None:
        self._responses = responses

    def __iter__(self) -> Iterator[Any]:
        for response in self._responses:
            if isinstance(response, Passes):
                response.clock.advance(response.by_s)
                raise Ended
            yield response

    def cancel(self) -> None:
        pass


class ScriptedChannels:
    """Each connection brings the next list of responses and then ends; keeps what the watch requested."""

    closed = False

    def __init__(self, *connections: list[Any], revision_now: int = 0) -> None:
        self._connections = iter(connections)
        self._revision_now = revision_now
        self.started_at: list[int] = []
        self.lasts_s: list[float] = []
        self.tokens_dropped = 0
        self.watch_events = 0

    def count_events(self, events: int) -> None:
        self.watch_events += events

    def open_stream(self, _path: str, requests: Iterator[Any], *, timeout_s: float) -> tuple[object, ScriptedCall]:
        self.lasts_s.append(timeout_s)
        self.started_at.append(next(requests).create_request.start_revision)
        try:
            return object(), ScriptedCall(next(self._connections))
        except StopIteration:
            self.closed = True
            raise EtcdUnavailable("the script is at its end") from None

    def unary(self, _path: str, _request: Any, *, writes: bool) -> Any:
        assert not writes
        return pb.RangeResponse(header={"revision": self._revision_now})

    def leave(self, _endpoint: object) -> None:
        pass

    def drop_token(self) -> None:
        self.tokens_dropped += 1


@dataclass
class Passes:
    """So much time passes, and then the stream ends."""

    clock: FakeClock
    by_s: float


def created(revision: int, cluster_id: int = 1) -> Any:
    return pb.WatchResponse(created=True, header={"revision": revision, "cluster_id": cluster_id})


def events(*revisions: int, header: int) -> Any:
    sent = [{"kv": {"key": b"k", "mod_revision": revision}} for revision in revisions]
    return pb.WatchResponse(header={"revision": header, "cluster_id": 1}, events=sent)


def progress(revision: int) -> Any:
    return pb.WatchResponse(header={"revision": revision, "cluster_id": 1})


def seen(channels: ScriptedChannels, start_revision: int = 5, clock: FakeClock | None = None) -> list[Any]:
    at = {"start_revision": start_revision, "lasts_s": LASTS_S}
    return list(Watch(channels, clock or FakeClock(), "k", prefix=False, **at))  # type: ignore[arg-type]


def test_it_resumes_after_the_last_event_and_not_after_the_header() -> None:
    """The header's revision is the store's: events up to it may still have to come."""
    channels = ScriptedChannels([created(9), events(5, 6, header=9)], [created(9), events(7, 9, header=9)])
    changes = seen(channels)
    assert channels.started_at == [5, 7, 10]
    assert [e.kv.mod_revision for change in changes for e in change.events] == [5, 6, 7, 9]
    assert channels.watch_events == 4


def test_a_progress_notice_is_passed_on_and_not_resumed_from() -> None:
    channels = ScriptedChannels([created(5), events(5, header=5), progress(50)])
    assert seen(channels)[1:] == [Progress(50)]
    assert channels.started_at == [5, 6]


def test_it_lasts_for_its_time_over_all_connections() -> None:
    clock = FakeClock()
    before, after = Passes(clock, 3.0), Passes(clock, LASTS_S - 3.0)
    channels = ScriptedChannels([created(9), events(5, header=9), before], [created(9), after], [events(6, header=9)])
    assert [type(item) for item in seen(channels, clock=clock)] == [Changed]
    assert (channels.started_at, channels.lasts_s) == ([5, 6], [LASTS_S, LASTS_S - 3.0])


def test_compaction_ends_it() -> None:
    compacted = pb.WatchResponse(canceled=True, compact_revision=8)
    channels = ScriptedChannels([created(9), compacted], [events(9, header=9)])
    assert seen(channels) == [Compacted(8)]
    assert channels.started_at == [5]


@pytest.mark.parametrize(
    ("revision_now", "outcome"),
    [(3, [Compacted(0)]), (9, [Changed])],
    ids=["store recreated", "member lags behind"],
)
def test_a_lower_revision_is_a_new_store_only_if_the_whole_cluster_has_it(
    revision_now: int, outcome: list[Any]
) -> None:
    channels = ScriptedChannels([created(3), events(5, header=5)], revision_now=revision_now)
    items = seen(channels)
    assert items == outcome or [type(item) for item in items] == outcome


def test_another_cluster_is_a_new_store() -> None:
    channels = ScriptedChannels([created(9), events(5, header=9)], [created(99, cluster_id=2)])
    assert seen(channels)[-1] == Compacted(0)


def test_a_refusal_is_taken_for_final_after_one_new_token() -> None:
    denied = pb.WatchResponse(created=True, canceled=True, cancel_reason="etcdserver: permission denied")
    channels = ScriptedChannels([denied], [denied])
    with pytest.raises(EtcdDeniedError):
        seen(channels)
    assert channels.tokens_dropped == 1
    again = ScriptedChannels([denied], [created(9), events(5, header=9)])
    assert [type(item) for item in seen(again)] == [Changed]
