"""Files of TOML: what would cost minutes or gigabytes is refused before it is parsed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from iscp.adapters.system.toml_file import FILE_CHARS_MAX, KEY_PARTS_MAX, read_toml

LONG = ".".join(["a"] * (KEY_PARTS_MAX + 1))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "iscp.toml"


def refused(file: Path, text: str) -> str:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"^(is|has) ") as refusal:
        read_toml(file)
    return str(refusal.value)


@pytest.mark.parametrize(
    "text",
    [
        f"{LONG} = 1",
        f"x = 1\n  {LONG.replace('.', ' . ')} = 1",
        f"[{LONG}]",
        f"[[ {LONG} ]]",
        f"x = {{ {LONG} = 1 }}",
        f"x = {{ y = 1, {LONG} = 1 }}",
        ".".join(['"a.\\" b"', "'c \"'"] * KEY_PARTS_MAX) + " = 1",
    ],
    ids=["a key", "a later line", "a table", "a list of tables", "in braces", "after a comma", "quoted"],
)
def test_a_key_of_too_many_parts_is_refused_by_its_line(file: Path, text: str) -> None:
    assert refused(file, text) == f"has a key of more than {KEY_PARTS_MAX} parts in line {text.count(chr(10)) + 1}"


def test_as_many_parts_and_texts_with_many_dots_are_read(file: Path) -> None:
    dots = "10.0.0.1:2379, " * KEY_PARTS_MAX + "." * 1000
    file.write_text(f'{LONG.removesuffix(".a")} = "{dots}"\n', encoding="utf-8")
    assert dots in str(read_toml(file))


def test_a_file_that_is_too_long_is_refused_without_reading_all_of_it() -> None:
    with pytest.raises(ValueError, match=f"^has more than {FILE_CHARS_MAX} characters$"):
        read_toml(Path("/dev/zero"))


@pytest.mark.parametrize("text", ["x = " + "[" * 90_000, f"x = {'9' * 5_000}", "x =", "x = 1\nx = 2"])
def test_what_is_no_toml_says_so(file: Path, text: str) -> None:
    assert refused(file, text).startswith("is not TOML: ")


def test_what_is_no_text_says_so(file: Path) -> None:
    file.write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"^is not TOML: "):
        read_toml(file)


@pytest.mark.parametrize(
    "piece",
    ["a.", "a", ",", "{a.", ",a.'", ',"\\', '["a,"', "'", "[a.b]\n", f"{LONG[4:]} = 1\n"],
)
def test_a_file_of_the_greatest_length_takes_a_moment(file: Path, piece: str) -> None:
    text = piece * (FILE_CHARS_MAX // len(piece))
    began_s = time.process_time()
    refused(file, text)
    assert time.process_time() - began_s < 5
