"""Command lines with a fault in them, made from the parsers of the programs: what is wrong depends on the types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import click

HALVES = ("\udcff", "\ud800x", "a\udc9bb")
"""What bytes that are no UTF-8 become in a program's arguments."""

ODD = ("\x1b[31mred\x1b[0m", "\u202eabc", "a\nb", "x" * 5_000, "*[", "@/é", "--", "-1")
"""What may be a name of nothing; with escapes of terminals, other directions and new lines."""

WRONG_OF_TYPE: Mapping[str, tuple[str, ...]] = {
    "integer": ("", "x", "1.5", "nan", "1e3", "0x10", "9" * 30, "-" + "9" * 30, "9" * 5_000),
    "choice": ("", "nope", "\x1b[31m", "x" * 5_000),
    "duration": ("", "x", "nan", "inf", "-1s", "1e400", "1h1", "5 fortnights", "\x1b[31m", "9" * 5_000),
    "table": ("",),
    "target": ("",),
    "a,b": ("", ",", " , "),
    "json": ("", "{", "[]", "7", "NaN", "null", "[" * 100_000, '{"a":' * 100_000, "\x1b[31m"),
    "format": ("", "jsonn", "jsonpath=", "jsonpath=.[", "\x1b[31m"),
}
"""What no option or argument of that type may take. A number that has no upper bound takes long ones."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A command that is no group, by its words, as `job list`."""

    words: tuple[str, ...]
    command: click.Command

    def arguments(self) -> list[click.Parameter]:
        return [each for each in self.command.params if isinstance(each, click.Argument)]

    def flags(self) -> list[click.Parameter]:
        return [each for each in self.command.params if getattr(each, "is_flag", False)]

    def own_values(self) -> list[click.Parameter]:
        """But for the options that all commands have."""
        return [each for each in self.with_values() if each.name not in ("endpoint", "context", "output", "account")]

    def with_values(self) -> list[click.Parameter]:
        return [each for each in self.command.params if not getattr(each, "is_flag", False)]


def leaves(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[Leaf]:
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from leaves(command, (*words, name))
        else:
            yield Leaf((*words, name), command)


def wrong_of(param: click.Parameter) -> tuple[str, ...]:
    kind = param.type
    if isinstance(kind, click.IntRange):
        below = () if kind.min is None else (str(kind.min - 1),)
        above = () if kind.max is None else (str(kind.max + 1),)
        numbers = tuple(each for each in WRONG_OF_TYPE["integer"] if kind.max is not None or len(each) != 30)
        return (*HALVES, *numbers, *below, *above)
    if isinstance(kind, click.Path) and kind.exists:
        return (*HALVES, "nothing/here", "x" * 5_000)
    return (*HALVES, *WRONG_OF_TYPE.get("choice" if isinstance(kind, click.Choice) else kind.name, ()))


def line(leaf: Leaf, values: Mapping[str, str | None], *more: str) -> list[str]:
    """The command with these values of its arguments and options, by name; None leaves one out."""
    options: list[str] = []
    for each in leaf.command.params:
        value = values.get(str(each.name))
        if isinstance(each, click.Option) and value is not None:
            options += [each.opts[0], value]
    arguments = [values.get(str(each.name)) for each in leaf.arguments()]
    return [*leaf.words, *options, *more, *(each for each in arguments if each is not None)]
