"""What cannot be held is found alone, and its neighbours are appended in order and in few commits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from iscp.core.values.errors import InvalidRequest, StorageError
from iscp.runtime.loop.halved_append import append_in_halves


def test_neighbours_of_what_is_refused_are_appended_in_order_and_few_commits() -> None:
    commits: list[Sequence[int]] = []
    refused: list[int] = []

    def append(batch: Sequence[int]) -> None:
        if 5 in batch:
            raise InvalidRequest("5 cannot be held")
        commits.append(batch)

    append_in_halves(range(16), append, lambda entry, error: refused.append(entry))
    assert refused == [5]
    assert [each for batch in commits for each in batch] == [*range(5), *range(6, 16)]
    assert len(commits) == 4


def test_another_fault_is_the_callers() -> None:
    def fail(batch: Sequence[int]) -> None:
        raise StorageError("the disk is full")

    with pytest.raises(StorageError):
        append_in_halves([1, 2], fail, lambda entry, error: None)
