"""Files with a view's query, changed by somebody who knows the format."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import blake2b
from typing import Any


def forged(content: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The file after `change` has been made to its document, with a digest that fits."""
    document = json.loads(content)
    del document["digest"]
    change(document)
    digest = blake2b(json.dumps(document, sort_keys=True).encode(), digest_size=16).hexdigest()
    return json.dumps(document | {"digest": digest}).encode()
