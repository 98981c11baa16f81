"""Add up the lags of jobs along the ways to them: a view on a view lags by both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

UNKNOWN = -1.0
"""A lag of which nothing is known, in seconds."""


def chain_lags(lags_s: Mapping[str, float], inputs: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Return for each job its own lag, and on top of it the greatest of those that make what it reads.

    A lag is UNKNOWN where one on the way is. In a circle, which nothing forbids, the way ends where it closes. Without
    recursion, as a chain may be long.
    """
    found: dict[str, float] = {}
    for start in lags_s:
        stack, under_way = [start], set[str]()
        while stack:
            job_id = stack[-1]
            if job_id in found:
                stack.pop()
                continue
            before = [each for each in inputs.get(job_id, ()) if each in lags_s]
            open_ones = [each for each in before if each not in found and each not in under_way]
            if open_ones and job_id not in under_way:
                under_way.add(job_id)
                stack += open_ones
                continue
            known = [found[each] for each in before if each in found]
            own_s = lags_s[job_id]
            found[job_id] = UNKNOWN if min([own_s, *known]) < 0 else own_s + max(known, default=0.0)
            stack.pop()
    return found
