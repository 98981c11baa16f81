"""The chart's values as values.yaml says them: each by its path, with its default and the comment above it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "deploy/helm/iscp"


class UndocumentedValueError(Exception):
    """A value without a comment above it."""


@dataclass(frozen=True, slots=True)
class Value:
    """One value of the chart. A section has `parts`, and its own comment may be missing."""

    path: str
    text: str
    default: Any
    parts: tuple[Value, ...] = ()

    def leaves(self) -> Iterator[Value]:
        """The values that users set, in the file's order."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves()


def read_values(text: str) -> tuple[Value, ...]:
    """Every value of a values.yaml. A mapping is a section if any of its keys has a comment, else one value.

    Raises UndocumentedValueError.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    return tuple(_read(root, "", text.splitlines()))


def _read(node: yaml.MappingNode, parent: str, lines: list[str]) -> Iterator[Value]:
    for key, value in node.value:
        path, text = parent + key.value, _comment_above(lines, key.start_mark.line, key.start_mark.column)
        default = yaml.SafeLoader("").construct_document(value)
        if isinstance(value, yaml.MappingNode) and _is_section(value, lines):
            yield Value(path, text, default, tuple(_read(value, f"{path}.", lines)))
        elif text:
            yield Value(path, text, default)
        else:
            raise UndocumentedValueError(f"values.yaml: {path} has no comment above it: say what it is")


def _is_section(node: yaml.MappingNode, lines: list[str]) -> bool:
    return any(
        _comment_above(lines, key.start_mark.line, key.start_mark.column)
        or (isinstance(value, yaml.MappingNode) and not value.flow_style and _is_section(value, lines))
        for key, value in node.value
        if not node.flow_style
    )


def _comment_above(lines: list[str], line: int, column: int) -> str:
    """The comment lines just above, indented as the key is, as one text."""
    prefix = f"{' ' * column}# "
    first = line
    while first and lines[first - 1].startswith(prefix):
        first -= 1
    return " ".join(each.removeprefix(prefix) for each in lines[first:line])
