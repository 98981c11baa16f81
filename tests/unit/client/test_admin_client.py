"""What the Python client refuses before it calls anybody."""

from __future__ import annotations

from typing import Any

import pytest

from iscp.client.admin_client import Client
from iscp.core.errors import InvalidRequest


@pytest.mark.parametrize("field", ["key", "columns"])
def test_a_text_is_no_list_of_columns(field: str) -> None:
    """Its letters would be taken for columns, and there may be such."""
    given: dict[str, Any] = {field: "id"}
    with Client("127.0.0.1:1") as client, pytest.raises(InvalidRequest, match="a text and no list") as refused:
        client.register("/t", "a", target="/copy", **given)
    assert (refused.value.field, refused.value.remedy) == (field, f"Write it as in {field}=['id']")


@pytest.mark.parametrize("limit", [0, -1, 1 << 32])
def test_a_limit_is_a_number_above_0(limit: int) -> None:
    with Client("127.0.0.1:1") as client:
        for call in (lambda: client.jobs(limit=limit), lambda: client.history("/t", "a", limit=limit)):
            with pytest.raises(InvalidRequest, match=f"limit is {limit}: must be a whole number above 0"):
                call()
