"""What a project of another tool has that can be a view here, and what cannot, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from iscp.cli.view.view_statements import ViewStatement


@dataclass(frozen=True, slots=True)
class LeftOutView:
    """`name` is empty where it has none that could be read."""

    place: str
    name: str
    why: str


@dataclass(slots=True)
class ImportedViews:
    """`aliases`: what queries of the project call a table or view, by its name folded to lower case, and its own."""

    views: list[ViewStatement] = field(default_factory=list)
    left_out: list[LeftOutView] = field(default_factory=list)
    aliases: Mapping[str, str] = field(default_factory=dict)

    def leave_out(self, place: str, name: str, why: str) -> None:
        self.left_out.append(LeftOutView(place, name, why))
