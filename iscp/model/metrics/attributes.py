"""The attributes that metrics of several concepts have."""

from __future__ import annotations

from iscp.model.metrics.metric import Attribute

ACCOUNT = Attribute("iscp.account", "The account of the job")
TABLE = Attribute("iscp.table", "The URI of the table that the job is on")
JOB = Attribute("iscp.job", "The name of the job")
KIND = Attribute("iscp.kind", "The kind of consumer, as `replica` or `view`")
ERROR = Attribute(
    "error.type", "The [code](operations.md#error-codes) of the error, as `STORAGE`; absent where there was none"
)
