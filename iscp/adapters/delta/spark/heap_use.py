"""How full the JVM's heap is with what is in use, as its last full collection found."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext

_OLD = ("Tenured", "Old")
"""In the names that Java's collectors give the pool in which objects are that live long."""


def heap_share_of(context: SparkContext) -> float:
    """Of the space for objects that live long; 0: there was no collection yet. The same until the next one."""
    pool = _old_pool(context._jvm)
    usage = None if pool is None else pool.getCollectionUsage()
    return 0.0 if usage is None or usage.getMax() <= 0 else usage.getUsed() / usage.getMax()


@lru_cache(maxsize=1)
def _old_pool(jvm: Any) -> Any:
    """There is one JVM in a process at a time."""
    pools = jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
    found = (pools.get(number) for number in range(pools.size()))
    return next((each for each in found if any(name in str(each.getName()) for name in _OLD)), None)
