"""Threads of a simulated process, behind the port Threads: each runs until it waits, and goes on when the world says.

So the real loops run as they are, whole, in one thread of the operating system and in simulated time. What calls the
outside (etcd, the job log) waits likewise: `Threads.asked`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

from tests.simulation.violation import expect

if TYPE_CHECKING:
    from tests.simulation.process import Process

T = TypeVar("T")

SOON_S = 1e-6
"""More than what sums of times are rounded by: who waits until then finds that it is then."""

TURNS_MAX = 1_000
"""How often a loop may find that it has nothing to wait for, and nothing to do."""

TURN_S = 0.001
"""How long others may run before it looks again."""

Action = Callable[[], None]


class _Wait:
    """One wait of one thread: goes on once, whatever of all that may end it comes first."""

    __slots__ = ("ends", "over", "thread")

    def __init__(self) -> None:
        self.thread = getcurrent()
        self.over = False
        self.ends: object = None

    def end(self, ends: object = None) -> None:
        if not self.over:
            self.over = True
            self.ends = ends
            self.thread.switch()


class Threads:
    """Those of one process. None of them goes on while it is stopped, nor once it was killed."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def thread(self, name: str, run: Action) -> Thread:
        return Thread(self, run)

    def conditions(self, count: int) -> list[Condition]:
        return [Condition(self) for _ in range(count)]

    def pool(self, name: str) -> Pool:
        return Pool(self, self._process.world.parts.pool_lag_s.get(name, 0.0))

    def begin(self, run: Action) -> None:
        """A thread, from here on, until it ends or waits for the first time."""
        begun = greenlet(run, self._process.world.hub)
        self._process.world.begun.append(begun)
        begun.switch()

    @property
    def now_s(self) -> float:
        return self._process.now_s

    def random(self) -> float:
        return self._process.world.random.random()

    def soon(self, action: Action) -> None:
        self._process.after(0.0, action)

    def sleep(self, delay_s: float) -> None:
        wait = _Wait()
        self._process.after(delay_s + SOON_S, wait.end)
        self.park()

    def waited(self, wait: _Wait, most_s: float | None) -> object:
        """What ended the wait; None: the time."""
        if most_s is not None:
            self._process.after(most_s + SOON_S, wait.end)
        self.park()
        return wait.ends

    def asked(self, ask: Callable[[Callable[[T], None], Callable[[], None]], None], failed: Exception) -> T:
        """What `ask` has answered; raises `failed` where it says that it failed."""
        wait = _Wait()
        ask(lambda answer: wait.end((answer,)), wait.end)
        self.park()
        if isinstance(wait.ends, tuple):
            found: T = wait.ends[0]
            return found
        raise failed

    def park(self) -> None:
        if self._process.world.over:
            raise GreenletExit
        self._process.world.hub.switch()


class Condition:
    """Threads that give way only where they wait need no lock."""

    __slots__ = ("_in_vain", "_threads", "_waiting")

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._in_vain = 0
        self._waiting: deque[_Wait] = deque()

    def __enter__(self) -> bool:
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        pass

    def wait(self, timeout: float | None = None) -> bool:
        wait = _Wait()
        self._waiting.append(wait)
        if self._threads.waited(wait, timeout) is None:
            if wait in self._waiting:
                self._waiting.remove(wait)
            return False
        return True

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> object:
        until_s = None if timeout is None else self._threads.now_s + timeout
        while not (found := predicate()):
            left_s = None if until_s is None else until_s - self._threads.now_s
            if left_s is not None and left_s <= 0.0:
                self._in_vain += 1
                expect(self._in_vain < TURNS_MAX, "a loop turns without rest, though nothing happens")
                self._threads.sleep(TURN_S)
                return predicate()
            self._in_vain = 0
            self.wait(left_s)
        return found

    def notify(self, n: int = 1) -> None:
        for _ in range(min(n, len(self._waiting))):
            wait = self._waiting.popleft()
            self._threads.soon(lambda wait=wait: wait.end(True))  # type: ignore[misc]

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Thread:
    def __init__(self, threads: Threads, run: Action) -> None:
        self._threads = threads
        self._run = run
        self._greenlet: greenlet | None = None
        self._ended = Condition(threads)
        self._over = False

    def start(self) -> None:
        self._threads.soon(lambda: self._threads.begin(self._whole))

    def _whole(self) -> None:
        self._greenlet = getcurrent()
        self._run()
        self._over = True
        self._ended.notify_all()

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait_for(lambda: self._over, timeout)

    def is_alive(self) -> bool:
        return not self._over

    def is_current(self) -> bool:
        return self._greenlet is getcurrent()


class Pool(Executor):
    """One thread, which takes up to `lag_s` for each thing besides."""

    def __init__(self, threads: Threads, lag_s: float) -> None:
        self._threads = threads
        self._lag_s = lag_s
        self._waiting: deque[Action] = deque()
        self._busy = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        answer: Future[T] = Future()
        self._waiting.append(lambda: answer.set_result(fn(*args, **kwargs)))
        if not self._busy:
            self._busy = True
            self._threads.soon(lambda: self._threads.begin(self._run))
        return answer

    def _run(self) -> None:
        while self._waiting:
            if self._lag_s:
                self._threads.sleep(self._threads.random() * self._lag_s)
            self._waiting.popleft()()
        self._busy = False

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._waiting.clear()
