"""Spark that notes what is done with it, for what starts it late."""

from __future__ import annotations

import threading
from typing import Any


class FakeContext:
    """A SparkContext, and the JVM's: which thread works in which group, and which groups were canceled."""

    def __init__(self) -> None:
        self.groups: dict[int, str] = {}
        self.canceled: list[str] = []

    def setJobGroup(self, group: str, *description: object, **how: bool) -> None:  # noqa: N802
        self.groups[threading.get_ident()] = group

    @property
    def _jsc(self) -> FakeContext:
        return self

    def sc(self) -> FakeContext:
        return self

    def cancelJobGroupAndFutureJobs(self, group: str) -> None:  # noqa: N802
        self.canceled.append(group)


class FakeSession:
    """A session, whose JVM side is itself; `active` has the one of each thread."""

    class Conf:
        def __init__(self) -> None:
            self.settings: dict[str, str] = {}

        @property
        def getAll(self) -> dict[str, str]:  # noqa: N802
            return dict(self.settings)

        def set(self, name: str, value: str) -> None:
            self.settings[name] = value

        def unset(self, name: str) -> None:
            del self.settings[name]

    def __init__(self, version: str, context: FakeContext, active: dict[int, str]) -> None:
        self.version = version
        self.sparkContext = context
        self.conf = self.Conf()
        self._active = active

    @property
    def _jvm(self) -> Any:
        active = self._active

        class Sessions:
            @staticmethod
            def setActiveSession(session: FakeSession) -> None:  # noqa: N802
                active[threading.get_ident()] = session.version

        return type("Jvm", (), {"org.apache.spark.sql.classic.SparkSession": Sessions})

    @property
    def _jsparkSession(self) -> FakeSession:  # noqa: N802
        return self


class FakeSpark:
    """Port SparkAccess. `active` is the version of each thread's active session; `ended` says how it was ended."""

    local = True

    def __init__(self) -> None:
        self.context = FakeContext()
        self.active: dict[int, str] = {}
        self.root: Any = FakeSession("root", self.context, self.active)
        self.sessions: list[FakeSession] = []
        self.lives = True
        self.ended: list[str] = []

    def new_session(self) -> Any:
        self.sessions.append(FakeSession(f"session {len(self.sessions)}", self.context, self.active))
        return self.sessions[-1]

    def alive(self) -> bool:
        return self.lives

    def kill(self) -> None:
        self.ended.append("kill")

    def stop(self) -> None:
        self.ended.append("stop")
