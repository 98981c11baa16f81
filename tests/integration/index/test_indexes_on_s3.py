"""Indexes on S3, in buckets with keys of their own: the same commits, searches and maintenance as on local paths."""

from __future__ import annotations

import random
import subprocess
import sys

import lance
import obstore
import pyarrow as pa
import pytest
from obstore.store import from_url

from iscp.index.lance.index_store import open_index
from iscp.index.lance.word_counts import FOLDER
from iscp.index.maintenance.index_maintenance import MaintenanceLimits, maintain
from iscp.index.maintenance.index_shape import read_shape, version_numbers
from iscp.index.model.index_definition import Upkeep, next_action
from iscp.index.search.search_library import search
from iscp.model.values.errors import Conflict, InvalidRequest, StorageError
from iscp.storage import files
from iscp.storage.dataset_manifest import MANIFEST_BYTES_MAX, VersionProbe
from iscp.storage.locations import VERSIONS, manifest_name
from iscp.storage.s3_settings import table_options
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock
from tests.fakes.hostile_index import make_index
from tests.fakes.maintained_index import (
    MaintainedIndex,
    counted,
    indexed,
    random_row,
    rows_of,
    same_rows,
    stored_counts,
)
from tests.fakes.s3 import WITH_TOKEN, FakeS3

AT_ONCE = MaintenanceLimits(keep_s=0.0, in_flight_s=0.0)


def assert_equal_to_its_model(index: MaintainedIndex) -> None:
    at = index.store.open()
    assert same_rows(rows_of(at), index.model)
    for number in (0, 1):
        words, rows, length = counted(index.model, number)
        assert stored_counts(at, number) == words
        assert (at.head.totals[number].rows, at.head.totals[number].words) == (rows, length)


def maintained(index: MaintainedIndex, limits: MaintenanceLimits = AT_ONCE) -> tuple[Upkeep, ...]:
    return maintain(index.store, limits, SystemClock(), EnvironmentFailpoints({}), 60.0).actions


@pytest.mark.parametrize("bucket", ["", "acme", WITH_TOKEN])
@pytest.mark.slow(but=1)
def test_an_index_is_made_changed_and_maintained(s3: FakeS3, bucket: str) -> None:
    index, chance = MaintainedIndex(s3.uri("changed", bucket), dimension=8), random.Random(3)
    index.create()
    with pytest.raises(Conflict, match="another writer"):
        index.create()
    probe = VersionProbe()
    seen = probe.first_probe(index.store.root)
    index.change({str(each): random_row(chance, 8) for each in range(2_500)}, [])
    index.change_randomly(chance, 900, 2_500)
    assert probe.probe(index.store.root, seen).version == index.store.open().version
    assert Upkeep.SEGMENTS in maintained(index)
    index.change_randomly(chance, 50, 2_500)
    assert indexed(index.store.open(), 1)[1] > 0
    assert_equal_to_its_model(index)

    counts_before = len(files.names(f"{index.store.root}/{FOLDER}"))
    for _ in range(9):
        index.change_randomly(chance, 20, 2_500)
    assert Upkeep.CLEAN_UP in maintained(index)
    maintained(index)
    assert next_action(read_shape(index.store.open(), 600.0, SystemClock().now_s())) is None
    assert len(version_numbers(index.store.root)) <= 3
    assert len(files.names(f"{index.store.root}/{FOLDER}")) <= counts_before + 8
    assert_equal_to_its_model(index)


def test_of_two_commits_on_one_version_the_later_one_fails(s3: FakeS3) -> None:
    index = MaintainedIndex(s3.uri("fenced", "acme"))
    index.create()
    index.change({"1": random_row(random.Random(1))}, [])
    first, second = index.store.begin(), index.store.begin()
    for commit, key in ((first, "2"), (second, "3")):
        commit.add(index.table({key: random_row(random.Random(2))}))
    first.commit()
    with pytest.raises(Conflict, match="another writer was first"):
        second.commit()
    assert sorted(rows_of(index.store.open())) == ["1", "2"]


def test_two_processes_write_one_index_and_nothing_is_lost(s3: FakeS3) -> None:
    index = MaintainedIndex(s3.uri("raced", "acme"))
    index.create()
    command = [sys.executable, "-m", "tests.fakes.maintained_index_program", "write", index.store.root]
    writers = [
        subprocess.Popen([*command, str(seed), "6", "40", "100", "0"], stdout=subprocess.PIPE, text=True)
        for seed in (1, 2)
    ]
    assert all('"commits": 6' in writer.communicate(timeout=120)[0] for writer in writers)
    at = index.store.open()
    found = rows_of(at)  # each key once, and as many rows as the head says
    for number in (0, 1):
        words, rows, length = counted(found, number)
        assert stored_counts(at, number) == words
        assert (at.head.totals[number].rows, at.head.totals[number].words) == (rows, length)
    assert at.version == 13


def test_words_vectors_and_filters_are_searched(s3: FakeS3) -> None:
    index = make_index(s3.uri("searched", "acme"))
    at = index.uri.replace("s3://", "s3a://")
    words = search(at, '"red blue" OR gr*', k=20, filter="id < 900")
    assert len(words.hits) == 20
    assert all(hit.key["id"] < 900 for hit in words.hits)
    vector = search(at, vector=[0.5] * 16, k=5, filter="id >= 300")
    assert len(vector.hits) == 5
    assert len(search(at, "green", vector=[0.5] * 16, k=5).hits) == 5


def test_a_place_without_an_index_and_manifests_of_others_are_refused(s3: FakeS3) -> None:
    with pytest.raises(InvalidRequest, match="is no index: there is none"):
        open_index(s3.uri("nothing", "acme"))
    plain = s3.uri("plain", "acme")
    lance.write_dataset(pa.table({"a": [1]}), plain, storage_options=table_options(plain))
    with pytest.raises(InvalidRequest, match="did not write"):
        open_index(plain)


def test_a_manifest_that_is_too_large_or_none_is_not_read(s3: FakeS3) -> None:
    index = MaintainedIndex(s3.uri("spoilt"))
    index.create()
    store = from_url(index.store.root)
    obstore.put(store, f"{VERSIONS}/{manifest_name(2)}", b"none")
    with pytest.raises(StorageError, match="is not opened: it is too short"):
        index.store.open()
    obstore.put(store, f"{VERSIONS}/{manifest_name(3)}", b"\0" * (MANIFEST_BYTES_MAX + 1))
    with pytest.raises(StorageError, match="has 67108865 bytes, more than"):
        index.store.open()
    obstore.put(store, f"{VERSIONS}/7.manifest", b"")
    with pytest.raises(StorageError, match="as Lance named them before"):
        index.store.open()
