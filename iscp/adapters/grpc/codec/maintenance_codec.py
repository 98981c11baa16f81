"""The figures of refreshes and purges as messages of `Admin`, and back. A node's are checked as they come in."""

from __future__ import annotations

from collections.abc import Mapping

from iscp.core.job.maintenance_figures import JobUpkeep, UpkeepFigures
from iscp.core.values.untrusted_values import Check, exact_code, exact_float, exact_int, exact_message
from iscp.wire.v1 import admin_pb2 as pb


def _flag(value: object, name: str) -> bool:
    return bool(value)


_FIGURES: Mapping[str, Check] = {
    **dict.fromkeys(("submitted", "running", "waiting", "completed", "failed", "timeout", "rejected"), exact_int),
    **dict.fromkeys(("hanging", "quarantined"), _flag),
    "error_code": exact_code,
    "error_msg": exact_message,
    "next_at_s": exact_float,
}


def upkeep_to_wire(upkeep: JobUpkeep) -> pb.JobUpkeep:
    refresh, purge = (_figures_to_wire(each) if each else None for each in (upkeep.refresh, upkeep.purge))
    return pb.JobUpkeep(refresh=refresh, purge=purge)


def _figures_to_wire(figures: UpkeepFigures) -> pb.UpkeepFigures:
    return pb.UpkeepFigures(**{name: getattr(figures, name) for name in _FIGURES})


def upkeep_from_wire(message: pb.JobUpkeep) -> JobUpkeep:
    """Raises ValueError for figures that cannot be."""
    return JobUpkeep(
        _figures_from_wire(message.refresh) if message.HasField("refresh") else None,
        _figures_from_wire(message.purge) if message.HasField("purge") else None,
    )


def _figures_from_wire(message: pb.UpkeepFigures) -> UpkeepFigures:
    return UpkeepFigures(**{name: check(getattr(message, name), name) for name, check in _FIGURES.items()})
