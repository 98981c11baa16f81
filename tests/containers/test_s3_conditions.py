"""What is relied on of a store with the S3 API, on a real one: a condition of a put holds, whoever puts at once."""

from __future__ import annotations

import logging
import multiprocessing
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import obstore
import pytest
from deltalake import DeltaTable
from obstore.exceptions import AlreadyExistsError
from obstore.store import from_url

from iscp.delta.selftest.commit_race import Contender, DeltaRsContender, breaches, race
from iscp.storage.s3_settings import LOG_STORE
from tests.fakes.s3 import FakeS3
from tests.race.jvms import AtOnce, Jvm
from tests.race.test_put_if_absent_s3 import hadoop_settings

log = logging.getLogger(__name__)

PROCESSES, THREADS = 2, 4
"""Eight who put the same at once."""


def put_all(uri: str, names: list[str], author: str, sizes: list[int]) -> list[str]:
    """The names that `author` was first to put: THREADS threads try each."""
    store = from_url(uri)

    def first(job: tuple[str, int, int]) -> str | None:
        name, size, number = job
        content = f"{author}-{number}".encode().ljust(size, b".")
        try:
            obstore.put(store, name, content, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return None
        return f"{name} {author}-{number}"

    jobs = [(name, size, number) for name, size in zip(names, sizes, strict=True) for number in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        return [won for won in pool.map(first, jobs) if won is not None]


@pytest.mark.parametrize("count", [100, pytest.param(3_000, marks=pytest.mark.full)])
def test_of_many_who_put_if_absent_one_has_put(uri: str, count: int) -> None:
    """Small ones, and some that arrive in several pieces; what is there is what the one has put, and whole."""
    names = [f"{number:05d}" for number in range(count)]
    sizes = [200_000 if number % 10 == 0 else 100 for number in range(count)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        authors = [f"p{number}" for number in range(PROCESSES)]
        found = [
            each
            for won in pool.map(put_all, *zip(*((uri, names, author, sizes) for author in authors), strict=True))
            for each in won
        ]
    won = dict(each.split(" ") for each in found)
    assert len(found) == len(won) == count
    store = from_url(uri)
    for name, size in zip(names, sizes, strict=True):
        content = obstore.get(store, name).bytes().to_bytes()
        assert (content.rstrip(b"."), len(content)) == (won[name].encode(), size)
    assert len(Counter(won.values())) > 1, "otherwise it was no race"


def test_what_is_there_is_replaced_only_by_who_knows_it(uri: str) -> None:
    """If-Match: of two who have read the same, one replaces it."""
    store = from_url(uri)
    first = obstore.put(store, "x", b"0", use_multipart=False)
    obstore.put(store, "x", b"1", mode={"e_tag": first["e_tag"]}, use_multipart=False)
    with pytest.raises(obstore.exceptions.PreconditionError):
        obstore.put(store, "x", b"2", mode={"e_tag": first["e_tag"]}, use_multipart=False)
    assert obstore.get(store, "x").bytes() == b"1"


@pytest.mark.parametrize("versions", [60, pytest.param(500, marks=[pytest.mark.full, pytest.mark.timeout(1_800)])])
def test_two_jvms_and_delta_rs_race_for_commits(
    s3: FakeS3,
    uri: str,
    jvms: Callable[..., Jvm],
    delta_rs: Callable[..., DeltaRsContender],
    pool: ThreadPoolExecutor,
    tmp_path: Path,
    versions: int,
) -> None:
    third, directory = delta_rs(uri), f"{uri}/_delta_log"
    machines = [
        AtOnce(jvms(hadoop_settings(s3, tmp_path)).contender(directory, name, LOG_STORE), pool) for name in "ab"
    ]
    contenders: list[Contender] = [*machines, third]
    rounds = race(directory, contenders, range(1, versions + 1))
    wins = Counter(name for outcome in rounds for name in outcome.winners)
    log.info("%d versions, won by %s", len(rounds), dict(wins))
    assert breaches(rounds) == []
    assert DeltaTable(uri).version() == versions
    assert all(wins[contender.name] for contender in contenders), wins
