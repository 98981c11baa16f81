"""Proves that what a program gives wrongly is refused by name before anything is begun."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import iscp
from iscp.core.run.run_plan import PARALLEL_MAX
from iscp.core.values.errors import InvalidRequest
from iscp.lake.local_lake import Lake


@pytest.fixture
def lake() -> Iterator[Lake]:
    with iscp.local() as made:
        yield made


@pytest.mark.parametrize("parallel", [0, -1, PARALLEL_MAX + 1])
def test_a_number_of_tables_at_once_that_cannot_be_is_refused(lake: Lake, parallel: int) -> None:
    with pytest.raises(InvalidRequest, match=f"parallel is {parallel}. Write a number from 1 to {PARALLEL_MAX}"):
        lake.run("jobs.yaml", parallel=parallel)


def test_a_text_is_not_taken_for_a_list_of_its_letters(lake: Lake) -> None:
    with pytest.raises(InvalidRequest, match="key is the text 'id'"):
        lake.replica("/t", "/copy", key="id")
    with pytest.raises(InvalidRequest, match="columns is the text 'id'"):
        lake.replica("/t", "/copy", columns="id")
    with pytest.raises(InvalidRequest, match="select is the text 'copy'"):
        lake.run("jobs.yaml", select="copy")
    with pytest.raises(InvalidRequest, match="exclude is the text 'copy'"):
        lake.forecast("jobs.yaml", exclude="copy")


def test_a_run_of_no_file_is_refused(lake: Lake) -> None:
    with pytest.raises(InvalidRequest, match="files are not given"):
        lake.run()
    with pytest.raises(InvalidRequest, match="files are not given"):
        lake.forecast()
