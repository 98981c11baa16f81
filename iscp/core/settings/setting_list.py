"""Every setting by its path, as it is documented and read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, get_type_hints

from iscp.core.job.iteration import Bounds
from iscp.core.settings.config import NodeConfig


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as documented; `default` is MISSING where it must be given."""

    path: str
    kind: Any
    default: Any
    text: str
    least: float | None = None
    above: float | None = None

    @property
    def required(self) -> bool:
        return self.default is MISSING


_BOUNDS_TEXT = {
    "rows_max": "Most rows that one iteration takes",
    "bytes_max": "Most bytes (of files read) that one iteration takes",
    "versions_max": "Most source versions that one iteration takes",
}


def settings(of: type = NodeConfig, parent: str = "") -> Iterator[Setting]:
    """Yield every setting below `of`, sections after the plain ones, each by its path (`etcd.lease_ttl_s`)."""
    hints = get_type_hints(of)
    sections = []
    for each in fields(of):
        path, kind = parent + each.name, hints[each.name]
        if is_dataclass(kind) and isinstance(kind, type):
            sections.append((kind, f"{path}."))
        elif of is Bounds:
            yield Setting(path, kind, each.default, _BOUNDS_TEXT[each.name], least=1)
        else:
            known = each.metadata
            default = each.default if each.default_factory is MISSING else each.default_factory()
            yield Setting(path, kind, default, known["about"], known["least"], known["above"])
    for kind, path in sections:
        yield from settings(kind, path)
