"""A manifest comes back as it was written, and one that is damaged, forged or of a newer iscp is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.delta.joblog.log_backup import BACKUP_FORMAT, BackupManifest, digest_of, parse_manifest
from iscp.model.values.errors import ConfigurationError, InvalidRequest

MANIFEST = BackupManifest(
    cluster="prod",
    table_id="0a1b",
    log_format=3,
    version=42,
    term=7,
    jobs=5,
    rows=6,
    file="rows-42.parquet",
    size=1_000,
    sha256="f" * 64,
    schema_json='{"type":"struct"}',
    properties={"iscp.format": "3", "ключ": "wert"},
    taken_at_s=1_700_000_000.5,
    program="0.1.0",
)


def written(about: Any, **whole: Any) -> bytes:
    """Return a manifest with a right SHA-256, as whoever forges one writes it."""
    digest = digest_of(json.dumps(about, sort_keys=True).encode())
    return json.dumps(
        {"format": BACKUP_FORMAT, "kind": "iscp_log", "backup": about, "sha256": digest, **whole}
    ).encode()


def test_a_manifest_comes_back_as_it_was_written() -> None:
    assert parse_manifest(MANIFEST.to_bytes(), "m") == MANIFEST
    assert parse_manifest(written(asdict(MANIFEST)), "m") == MANIFEST


@settings(max_examples=100)
@given(st.integers(0, len(MANIFEST.to_bytes()) - 1), st.integers(0, 255))
def test_a_byte_that_is_another_changes_nothing_or_is_noticed(place: int, byte: int) -> None:
    content = bytearray(MANIFEST.to_bytes())
    content[place] = byte
    with suppress(InvalidRequest, ConfigurationError):
        assert parse_manifest(bytes(content), "m") == MANIFEST


@pytest.mark.parametrize("length", range(0, len(MANIFEST.to_bytes()), 37))
def test_one_that_is_cut_is_refused(length: int) -> None:
    with pytest.raises(InvalidRequest, match="m is damaged"):
        parse_manifest(MANIFEST.to_bytes()[:length], "m")


def test_one_of_a_newer_iscp_says_so() -> None:
    with pytest.raises(ConfigurationError, match=f"format {BACKUP_FORMAT + 1}, and this iscp knows {BACKUP_FORMAT}"):
        parse_manifest(written({"unknown": 1}, format=BACKUP_FORMAT + 1), "m")


@pytest.mark.parametrize(
    "change",
    [
        {"file": "../../etc/passwd"},
        {"file": "rows.parquet/../x"},
        {"file": "rows.json"},
        {"file": ""},
        {"version": -1},
        {"version": "42"},
        {"version": True},
        {"size": 2**80},
        {"jobs": 1.5},
        {"cluster": 3},
        {"sha256": None},
        {"taken_at_s": "now"},
        {"taken_at_s": float("nan")},
        {"schema_json": {}},
        {"properties": {"a": 1}},
        {"properties": ["a"]},
        {"properties": None},
    ],
)
def test_values_that_no_backup_has_are_refused_though_the_digest_is_right(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="m is damaged"):
        parse_manifest(written(asdict(MANIFEST) | change), "m")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"3",
        b"null",
        b"\xff",
        b"[" * 100_000,
        b'{"kind": "iscp_log"}',
        written([]),
        written({}),
        written({**asdict(MANIFEST), "more": 1}),
        written(asdict(MANIFEST), kind="iscp_feed"),
        written(asdict(MANIFEST), format="1"),
        written(asdict(MANIFEST), format=None),
        written(asdict(replace(MANIFEST, rows=7)), sha256=json.loads(MANIFEST.to_bytes())["sha256"]),
    ],
)
def test_what_is_no_manifest_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_manifest(content, "m")
    assert refused.value.field == "SRC"
    assert "m is damaged" in refused.value.message
