"""Texts whose bytes are no UTF-8. Spark makes and writes them, and Arrow carries them as they are.

Others do not: Python does not decode them, and delta-rs dies of one in a merge, and the process with it. So rows that
have some are for Spark.
"""

from __future__ import annotations

import pyarrow as pa

REPLACEMENT = "\ufffd"
"""What Java and Python show in the place of bytes that are no UTF-8; in texts it has another order than these."""

_REFUSED = "non UTF-8 data"
"""In what delta-rs says of a file that it reads, of which nothing is committed then."""


def are_utf8(values: pa.Table | pa.ChunkedArray) -> bool:
    """Whether all texts are, those too that are nested, or in dictionaries."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def is_of_text_bytes(error: Exception) -> bool:
    """Whether delta-rs has met such a text in a file."""
    return _REFUSED in str(error)
