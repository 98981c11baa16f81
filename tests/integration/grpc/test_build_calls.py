"""An owner that waits for tasks of a build, over a real socket."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue

from iscp.model.values.errors import InvalidRequest, IscpError, QueueFull, StorageError, Unavailable
from iscp.model.values.progress import TableSize
from iscp.ports.cluster import BuildAnswer
from iscp.server.node.node_server import BUILD_CALLS_MAX
from tests.fakes.streams import WAIT_S, NodeUnderTest, OwnerUnderTest
from tests.fakes.waiting import until

FAILING, PROMPT, SLOW = 0, 1, 2


class Caller:
    def __init__(self, owner: OwnerUnderTest, node: NodeUnderTest) -> None:
        self._calls = owner.peers.call(node.record)
        self.answers: SimpleQueue[BuildAnswer] = SimpleQueue()

    def call(self, owner_rev: int, range_id: int = 5, task_ids: Sequence[str] = ("a", "b")) -> None:
        self.end_wait = self._calls.work_on_build_tasks(owner_rev, range_id, task_ids, self.answers.put)

    def answer(self) -> BuildAnswer:
        return self.answers.get(timeout=WAIT_S)

    def fault(self) -> IscpError:
        answer = self.answer()
        assert isinstance(answer, IscpError)
        return answer


def test_what_is_finished_comes_back(owner: OwnerUnderTest, node: NodeUnderTest) -> None:
    caller = Caller(owner, node)
    caller.call(PROMPT)
    assert caller.answer() == {"a": TableSize(1, 5), "b": TableSize(1, 5)}
    assert node.calls.worked == [(PROMPT, 5, ("a", "b"))]


def test_what_the_work_raises_comes_back_as_it_was(owner: OwnerUnderTest, node: NodeUnderTest) -> None:
    caller = Caller(owner, node)
    caller.call(FAILING)
    fault = caller.fault()
    assert isinstance(fault, StorageError)
    assert (fault.message, fault.remedy) == ("no space", "Make some")


def test_who_does_not_wait_any_more_ends_the_wait_at_the_node(owner: OwnerUnderTest, node: NodeUnderTest) -> None:
    caller = Caller(owner, node)
    caller.call(SLOW)
    until(lambda: node.calls.worked)
    caller.end_wait()
    assert isinstance(caller.fault(), IscpError)
    assert node.calls.given_up.wait(WAIT_S)


def test_no_more_wait_at_a_node_than_may_and_others_get_through(owner: OwnerUnderTest, node: NodeUnderTest) -> None:
    callers = [Caller(owner, node) for _ in range(BUILD_CALLS_MAX)]
    for caller in callers:
        caller.call(SLOW)
    until(lambda: len(node.calls.worked) == BUILD_CALLS_MAX)
    further = Caller(owner, node)
    further.call(PROMPT)
    assert isinstance(further.fault(), QueueFull)
    assert owner.peers.call(node.record).counters()
    for caller in callers:
        caller.end_wait()
        caller.fault()

    def has_room() -> bool:
        further.call(PROMPT)
        return further.answer() == {"a": TableSize(1, 5), "b": TableSize(1, 5)}

    until(has_room)


def test_what_no_owner_says_is_refused(owner: OwnerUnderTest, node: NodeUnderTest) -> None:
    caller = Caller(owner, node)
    for range_id in (0, -1, 1 << 40):
        caller.call(PROMPT, range_id)
        assert isinstance(caller.fault(), InvalidRequest)
    assert node.calls.worked == []


def test_a_node_that_is_gone_is_unavailable(owner: OwnerUnderTest, node: NodeUnderTest) -> None:
    caller = Caller(owner, node)
    caller.call(SLOW)
    until(lambda: node.calls.worked)
    node.stop()
    assert isinstance(caller.fault(), Unavailable)
    owner.peers.keep([])
    caller.call(SLOW)
    assert isinstance(caller.fault(), Unavailable)
    node.start()
