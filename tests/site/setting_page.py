"""The page of all settings, from the classes of the configuration."""

from __future__ import annotations

import types
import typing
from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, get_args, get_origin

from iscp.model.settings.config import Setting, settings
from iscp.model.settings.variables import NOT_SETTINGS, setting_variable
from tests.limits import number_text
from tests.site.tables import code, plain, table

_HEAD = """\
# Settings

Every setting of a node with its variable, type, default and bounds. [Configuration](../configuration.md) says how a
node reads them, and has examples.
"""


def page() -> str:
    """Return the page, by sections of the file."""
    sections: defaultdict[str, list[Setting]] = defaultdict(list)
    for each in settings():
        sections[each.path.rpartition(".")[0]].append(each)
    lines = [_HEAD]
    for name, members in sections.items():
        lines += [f"## {code(f'[{name}]') if name else 'The node'}", ""]
        lines += table(("setting", "variable", "type", "default", "meaning"), map(_row, members))
    others = "The commands, the clients and the node read these variables besides:"
    return "\n".join([*lines, "## Variables that are no settings", "", others, "", *_variables()])


def _variables() -> list[str]:
    return [f"- `{name}`" for name in sorted(NOT_SETTINGS)]


def _row(setting: Setting) -> tuple[str, ...]:
    bounds = ""
    if setting.least is not None:
        bounds = f", at least {number_text(setting.least)}"
    elif setting.above is not None:
        bounds = f", more than {number_text(setting.above)}"
    default = "(required)" if setting.required else code(default_text(setting.default))
    return (
        code(setting.path),
        code(setting_variable(setting.path)),
        kind_text(setting.kind) + bounds,
        default,
        plain(setting.text),
    )


def kind_text(kind: Any) -> str:
    """Return the name of a type as a reader of TOML has it."""
    plain_kinds = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    if kind in plain_kinds:
        return plain_kinds[kind]
    arguments = [each for each in get_args(kind) if each is not Ellipsis]
    origin = get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(kind_text(each) for each in arguments if each is not type(None))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "table"
    if isinstance(origin, type) and issubclass(origin, Sequence | frozenset):
        return f"list of {kind_text(arguments[0])}" if arguments else "list"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(code(str(each.value)) for each in kind)
    raise TypeError(f"a setting of a kind that has no name here: {kind}")


def default_text(default: object) -> str:
    """Return a default as TOML has it; an empty one is nothing."""
    match default:
        case bool():
            return str(default).lower()
        case Enum():
            return str(default.value)
        case int() | float():
            return f"{default:g}" if isinstance(default, float) else str(default)
        case str():
            return default
        case None | {} | () | []:
            return ""
        case tuple() | list() | frozenset():
            return ", ".join(map(str, default))
        case _:
            return "" if not default else str(default)
