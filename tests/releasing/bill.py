"""The bill of materials of the distribution: what uv.lock names for those who install it, as CycloneDX 1.5.

uv writes it; a serial number and a time that are other ones each time are replaced by such as follow from the content,
so that the same tree gives the same file.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from datetime import UTC, datetime
from typing import Any


def settle_bill(text: str, epoch_s: int) -> str:
    """Return uv's document with its time at `epoch_s` (Unix seconds), sorted, and under a number of its content."""
    bill: dict[str, Any] = json.loads(text)
    bill.pop("serialNumber", None)
    bill["metadata"]["timestamp"] = datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for name, key in (("components", "bom-ref"), ("dependencies", "ref")):
        bill[name] = sorted(bill.get(name, []), key=lambda each: str(each[key]))
    digest = hashlib.sha256(json.dumps(bill, sort_keys=True).encode()).digest()
    bill["serialNumber"] = f"urn:uuid:{uuid.UUID(bytes=digest[:16], version=4)}"
    return json.dumps(bill, indent=1, sort_keys=True) + "\n"
