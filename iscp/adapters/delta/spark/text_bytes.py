"""Texts whose bytes are no UTF-8. Spark makes and writes them, and Arrow carries them as they are.

Others do not: Python does not decode them, and delta-rs dies of one in a merge, and the process with it. So rows that
have some are for Spark.
"""

from __future__ import annotations

import pyarrow as pa

REPLACEMENT = "\ufffd"
"""Java and Python show this in the place of bytes that are no UTF-8; in texts it has another order than these."""

_REFUSED = "non UTF-8 data"
"""In what delta-rs says of a file that it reads, of which nothing is committed then."""


def are_utf8(values: pa.Table | pa.ChunkedArray) -> bool:
    """Return whether all texts are UTF-8, nested ones and those in dictionaries too."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def is_of_text_bytes(error: Exception) -> bool:
    """Return whether delta-rs has met a text that is no UTF-8 in a file."""
    return _REFUSED in str(error)
