"""Reads files of TOML that people write, in bounded time and memory."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

FILE_CHARS_MAX = 100_000
"""Characters of a file of settings or of contexts; a longer one is refused. All settings have a tenth of it."""

KEY_PARTS_MAX = 100
"""Parts of a dotted key in such a file; a longer key is refused, as tomllib's time grows with their square."""

# Where a key can begin. A text in which this stands by chance would be a strange one, and is refused as well.
_LONG_KEY = re.compile(
    r"""(?:^|[\[{,]) [ \t]* (?: (?: [\w-]++ | "(?:[^"\\\n]|\\.)*+" | '[^'\n]*+' ) [ \t]*+ \. [ \t]*+ )"""
    f"{{{KEY_PARTS_MAX}}}",
    re.MULTILINE | re.VERBOSE,
)


def read_toml(file: Path) -> dict[str, Any]:
    """Raises OSError, and ValueError whose text goes after the file's name."""
    with file.open(encoding="utf-8") as stream:
        try:
            text = stream.read(FILE_CHARS_MAX + 1)
        except UnicodeDecodeError as error:
            raise ValueError(f"is not TOML: {error}") from error
    if len(text) > FILE_CHARS_MAX:
        raise ValueError(f"has more than {FILE_CHARS_MAX} characters")
    if found := _LONG_KEY.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise ValueError(f"has a key of more than {KEY_PARTS_MAX} parts in line {line}")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of too many digits; nested too deep
        raise ValueError(f"is not TOML: {error}") from error
