"""Names of tables are those that OpenLineage's own client gives to the same places."""

from __future__ import annotations

import pytest
from openlineage.client.naming.dataset import S3, LocalFileSystem

from iscp.core.lineage.openlineage_names import dataset_name
from iscp.core.values.untrusted_values import NAME_CHARS_MAX


def test_a_local_path_is_named_as_the_official_client_names_it() -> None:
    official = LocalFileSystem("/lake/orders")
    expected = official.get_namespace(), official.get_name()
    for uri in ("/lake/orders", "/lake/orders/", "file:///lake/orders", "file:/lake/orders"):
        assert dataset_name(uri) == expected
    assert dataset_name("file:///lake/a%20b") == ("file", "/lake/a b")


def test_a_place_on_s3_is_named_as_the_official_client_names_it() -> None:
    official = S3("bucket", "lake/orders")
    expected = official.get_namespace(), official.get_name()
    for uri in ("s3://bucket/lake/orders", "s3a://bucket/lake/orders", "s3://bucket//lake/orders/"):
        assert dataset_name(uri) == expected


@pytest.mark.parametrize(
    "uri",
    ["", "/", "orders", "../x", "s3://", "s3://bucket", "s3:///key", "postgres://host/table", "http://[", "file:x"],
)
def test_what_is_no_place_of_a_table_has_no_name(uri: str) -> None:
    assert dataset_name(uri) is None


def test_poisoned_names_are_escaped_and_endless_ones_are_none() -> None:
    found = dataset_name("/lake/\x1b[2J\n\ud800")
    assert found is not None
    assert found.name == "/lake/\\x1b[2J\n\\ud800"
    found.name.encode()
    assert dataset_name("/" + "x" * NAME_CHARS_MAX) is None
