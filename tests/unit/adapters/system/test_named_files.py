"""A file that a setting names is read within a bound, and one that is not there is said with its setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from iscp.adapters.system.named_files import read_named_file
from iscp.core.values.errors import ConfigurationError


def test_of_a_large_file_one_byte_more_than_allowed_is_read(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"12345")
    assert read_named_file(str(tmp_path / "key"), "a.file", 5) == b"12345"
    assert read_named_file(str(tmp_path / "key"), "a.file", 3) == b"1234"


def test_a_missing_file_is_named_with_its_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="key cannot be read") as refused:
        read_named_file(str(tmp_path / "key"), "a.file", 5)
    assert refused.value.field == "a.file"
