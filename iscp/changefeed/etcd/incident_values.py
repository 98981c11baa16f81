"""Counts of incidents as etcd holds them."""

from __future__ import annotations

import json

from iscp.adapters.etcd.values import KeyValue
from iscp.changefeed.model.lock_queue import IncidentReport, Incidents
from iscp.core.values.errors import (
    ConfigurationError,
)


def incidents_of(kv: KeyValue | None) -> Incidents:
    return Incidents(report_of("", kv).count, kv.mod_revision) if kv else Incidents()


def report_of(shard: str, kv: KeyValue) -> IncidentReport:
    try:
        fields = json.loads(kv.value)
        return IncidentReport(
            shard=shard,
            count=int(fields["count"]),
            raised_at_s=float(fields["raised_at_s"]),
            raised_by=str(fields["raised_by"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"holds no count of incidents: {error!r}", field=kv.key, remedy="Delete the key in etcd: it begins at 0"
        ) from error
