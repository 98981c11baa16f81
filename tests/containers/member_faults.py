"""What may happen to a member, for as long as it lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.containers.etcd_members import EtcdMembers, Member


@contextmanager
def fault(members: EtcdMembers, kind: str, member: Member) -> Iterator[None]:
    """`kind`: killed, frozen, or cut off from the other members; it is well again afterwards."""
    begin, end = {
        "kill": (member.kill, member.start),
        "freeze": (member.freeze, member.thaw),
        "cut": (lambda: members.cut(member), lambda: members.heal(member)),
    }[kind]
    begin()
    try:
        yield
    finally:
        end()
