"""Datasets on S3 are probed by HEAD requests where they have not moved."""

from __future__ import annotations

import lance
import obstore
import pyarrow as pa
import pytest
from obstore.store import from_url

from iscp.model.values.errors import TableNotFound
from iscp.storage.dataset_manifest import VersionProbe
from iscp.storage.locations import VERSIONS, manifest_name
from iscp.storage.s3_settings import table_options
from tests.fakes.s3 import FakeS3, delete_all


def write(uri: str, mode: str) -> None:
    lance.write_dataset(pa.table({"id": [1]}), uri, mode=mode, storage_options=table_options(uri))


def test_a_dataset_on_s3_is_noticed_to_move_to_be_lost_and_to_be_gone(s3: FakeS3) -> None:
    uri, probe = s3.uri("lake/index"), VersionProbe()
    write(uri, "create")
    seen = probe.first_probe(uri)
    assert seen.version == 1
    unseen = f"{VERSIONS}/{manifest_name(9)}"
    obstore.put(from_url(uri), unseen, b"")  # which Lance would never put there: a listing alone shows it
    assert probe.probe(uri, seen) is seen
    assert probe.first_probe(uri).version == 9
    obstore.delete(from_url(uri), unseen)
    write(uri, "append")
    moved = probe.probe(uri, seen)
    assert moved.version == 2
    assert probe.probe(f"s3a://{uri.removeprefix('s3://')}", moved) is moved
    obstore.delete(from_url(uri), f"{VERSIONS}/{manifest_name(2)}")
    assert probe.probe(uri, moved).version == 1
    delete_all(uri)
    with pytest.raises(TableNotFound):
        probe.probe(uri, moved)
