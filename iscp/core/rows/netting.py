"""Define what the changes of one key in a range come to; Arrow and Spark both carry out this one definition.

A table is a bag of rows: several of them may have one key. The changes of a key, in order of version and in one version
removals before writes, are counted as if the key had one row before where the first of them removes, and none where it
writes. If none is left, the key is gone, whatever there was between. If one is left, and the last change wrote it, it
is that one: the version that wrote it has removed all others. If one is left and the last change removed another, or if
there are more, rows share the key, or shared it; which of them is left does not follow from the changes, only from the
source's rows. Values are never compared, so that this is true for all types.

A row that was there before the range and stays there shows in no change. So each operation also says how many rows the
key had before, and is valid only if that is so. Whoever applies it has to check that against a target that has a key's
row, or against the source as it is after the range.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Op(StrEnum):
    """An operation on a key: it leads from how many rows to how many."""

    INSERT = "i"
    """The key has no row before, and one after."""
    UPDATE = "u"
    """The key has one row before and after."""
    DELETE = "d"
    """The key has one row before, and none after."""
    PASSED = "p"
    """The key has no row before and after: it came and went. A row that the key has is not the row it was."""


NET_OPS: Mapping[tuple[bool, bool], Op] = {
    (True, True): Op.INSERT,
    (False, True): Op.UPDATE,
    (False, False): Op.DELETE,
    (True, False): Op.PASSED,
}
"""The operation by whether the first change of a key writes, and whether the last one does."""

ABSENT_BEFORE = (Op.INSERT, Op.PASSED)
ABSENT_AFTER = (Op.DELETE, Op.PASSED)
