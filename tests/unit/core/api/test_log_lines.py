"""Which lines of a log are about a job."""

from __future__ import annotations

import pytest

from iscp.core.api.log_lines import JobOfLines

JOB = JobOfLines("000000000001", "copy", "acme", ("t-1", "sales.orders", "/lake/orders"))


@pytest.mark.parametrize(
    ("fields", "about"),
    [
        ({"job_id": "000000000001", "table": "elsewhere"}, True),
        ({"job_id": "000000000002", "table": "sales.orders", "job": "copy", "account": "acme"}, False),
        ({"job_ids": ["000000000002", "000000000001"], "table": "/lake/orders", "account": "acme"}, True),
        ({"job_ids": ["000000000002"], "table": "/lake/orders", "account": "acme"}, False),
        ({"job_ids": [], "table": "/lake/orders"}, False),
        ({"table": "/lake/orders"}, True),
        ({"table": "sales.orders", "job": "copy"}, True),
        ({"table": "sales.orders", "job": "other"}, False),
        ({"table": "sales.orders", "job": "copy", "account": "other"}, False),
        ({"table": "/lake/orders", "account": "acme"}, True),
        ({"table": "/lake/orders", "account": "other"}, False),
        ({"shard": "t-1"}, True),
        ({"shard": "t-1/3", "node": "n"}, True),
        ({"shard": "t-10"}, False),
        ({"table": ["/lake/orders"]}, False),
        ({"event": "/lake/orders"}, False),
        ({}, False),
    ],
)
def test_a_line_is_about_the_job_or_about_its_table_and_no_other_job(fields: dict[str, object], about: bool) -> None:
    assert JOB.named_in(fields) is about
