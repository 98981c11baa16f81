"""A read of a loop's state, which its own thread makes, while the caller waits."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from iscp.ports.system import Threads

T = TypeVar("T")


def query_loop(
    put: Callable[[Callable[[], None]], None], read: Callable[[], T], timeout_s: float, threads: Threads
) -> T:
    """Return what `read` finds, on the thread of the loop to which `put` gives it.

    Raises what either of them raises, and TimeoutError if there is no answer by then: `read` may still be called.
    """
    answer: Future[T] = Future()
    (answered,) = threads.conditions(1)

    def answer_caller() -> None:
        with answered:
            try:
                answer.set_result(read())
            except Exception as error:  # noqa: BLE001  (it belongs to the caller)
                answer.set_exception(error)
            answered.notify_all()

    put(answer_caller)
    with answered:
        if not answered.wait_for(answer.done, timeout_s):
            raise TimeoutError
    return answer.result()
