"""Arguments of the command line are parsed into values that the node understands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from iscp.cli.shell.arguments import TABLES, TARGET, absolute_table, parse_duration_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60s", 60.0), ("2m", 120.0), ("1h30m", 5400.0), ("500ms", 0.5), ("90", 90.0), ("1.5m", 90.0), ("0", 0.0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "60 s", "1x", "-5s", "-5", "nan", "1m junk"])
def test_what_is_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"^is not a duration$"):
        parse_duration_s(text)


@pytest.mark.parametrize("text", ["inf", "1e300", "3153600001", "876001h", "9" * 400 + "h"])
def test_no_duration_is_longer_than_a_wait_may_be(text: str) -> None:
    with pytest.raises(ValueError, match=r"^is more than a hundred years$"):
        parse_duration_s(text)
    assert parse_duration_s("876000h") == 3_153_600_000


@pytest.mark.parametrize(
    "text",
    ["/data/orders", "s3a://bucket/orders", "file:/data/x", "sales.orders", "8e1f4e3a-3f65-4d5e-9d5e-0d8e6a1b2c3d"],
)
def test_what_the_node_understands_stays(text: str) -> None:
    assert absolute_table(text) == text


@pytest.mark.parametrize("text", ["orders", "./sales.orders", "data/orders", "../x"])
def test_relative_paths_become_absolute(text: str) -> None:
    assert absolute_table(text) == os.path.abspath(text)


def test_a_name_that_is_a_path_too_is_the_path(tmp_path: Path) -> None:
    here = Path.cwd()
    existing = sorted(path.name for path in here.iterdir() if path.suffix == ".toml")[0]
    assert absolute_table(existing) == str(here / existing)
    assert absolute_table(str(tmp_path)) == str(tmp_path)


def test_a_target_is_a_path_never_a_name() -> None:
    """The node would take `copies.orders` relative to its own directory."""
    for text in ("copies.orders", "copies/orders", "8e1f4e3a-3f65-4d5e-9d5e-0d8e6a1b2c3d"):
        assert TARGET.convert(text, None, None) == os.path.abspath(text)
    for text in ("/data/copy", "s3a://bucket/copy", "file:/data/copy"):
        assert TARGET.convert(text, None, None) == text


def test_patterns_of_relative_paths_are_made_absolute_and_others_stay() -> None:
    for text in ("sales.*", "/data/*", "*/orders", "s3a://bucket/*", "orders?"):
        assert TABLES.convert(text, None, None) == text
    assert TABLES.convert("data/*", None, None) == os.path.abspath("data/*")
    assert TABLES.convert("data/orders", None, None) == os.path.abspath("data/orders")
