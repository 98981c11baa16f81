"""Queries of the algebra as they are stored."""

from __future__ import annotations

import json

from iscp.algebra.algebra import Rel
from iscp.algebra.algebra_codec import algebra_document, read_algebra_document


def algebra_to_json(root: Rel) -> bytes:
    return json.dumps(algebra_document(root), ensure_ascii=False, separators=(",", ":")).encode()


def algebra_from_json(content: bytes) -> Rel:
    """Raises ForgedAlgebraError."""
    return read_algebra_document(json.loads(content))
