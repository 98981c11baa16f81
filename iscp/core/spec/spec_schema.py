"""The fields of a job_spec as they are written: names, types, defaults and meanings, from the dataclasses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from functools import cache
from typing import Any, get_type_hints

from iscp.core.spec.spec import ConsumerSpec, JobSpec, TriggerSpec
from iscp.core.spec.spec_fields import PATHS


@dataclass(frozen=True, slots=True)
class SpecField:
    """`name` is its flat one, `path` its place in a job_spec. `default` is None where there is none.

    `seconds`: it is a span of time. `least` and `most` are inclusive.
    """

    name: str
    path: tuple[str, ...]
    kind: Any
    default: Any
    about: str
    seconds: bool
    least: int | None = None
    most: int | None = None

    @property
    def choices(self) -> tuple[str, ...]:
        """Of a field that chooses between ways: their names."""
        one_of = isinstance(self.kind, type) and issubclass(self.kind, StrEnum)
        return tuple(each.value for each in self.kind) if one_of else ()

    @property
    def type_name(self) -> str:
        """As people say it."""
        if self.choices:
            return " | ".join(self.choices)
        if self.seconds:
            return "duration"
        return _TYPE_NAMES[self.kind]


_TYPE_NAMES: dict[Any, str] = {
    str: "text",
    bool: "true or false",
    int: "whole number",
    int | None: "whole number",
    tuple[str, ...]: "list of texts",
    Mapping[str, Any]: "object",
}


@cache
def schema_of_spec() -> tuple[SpecField, ...]:
    """All fields, as `iscp.core.spec.spec_fields` orders them."""
    return tuple(_fields())


def _fields() -> Iterator[SpecField]:
    for name, path in PATHS.items():
        holder = ConsumerSpec if "consumer" in path else TriggerSpec if path[0] == "trigger" else JobSpec
        known = {each.name: each for each in fields(holder)}
        seconds = f"{path[-1]}_s" in known
        held = known[f"{path[-1]}_s" if seconds else path[-1]]
        default = held.default_factory() if held.default_factory is not MISSING else held.default
        yield SpecField(
            name=name,
            path=path,
            kind=get_type_hints(holder)[held.name],
            default=default if default not in (MISSING, "", (), {}) else None,
            about=held.metadata["about"],
            seconds=seconds,
            least=held.metadata["least"],
            most=held.metadata["most"],
        )
