"""What users import, get and give has a public name, and `import iscp` loads next to nothing."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
import typing
from collections.abc import Iterator
from typing import Any

import pytest

import iscp
from iscp.client.service_clients import AccessClient, BuildClient, OperatorClient

PACKAGES = (
    "iscp",
    "iscp.aio",
    "iscp.changefeed",
    "iscp.client",
    "iscp.consumers.custom",
    "iscp.errors",
    "iscp.types",
    "iscp.views",
)
"""The packages that users import from."""

REACHED = (AccessClient, BuildClient, OperatorClient)
"""The classes that users have as attributes of a client."""

INNER = frozenset({"EtcdConfig", "Wanted"})
"""What `iscp.changefeed.open` takes, and a LocalJob is made of, within iscp alone."""

HEAVY = frozenset(
    {"grpc", "google", "lance", "numpy", "opentelemetry", "pandas", "pyarrow", "pydantic", "pyspark", "sqlglot"}
)


def public_values() -> Iterator[tuple[str, Any]]:
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            yield f"{package}.{name}", getattr(module, name)


def classes_in(hint: Any) -> Iterator[type]:
    """Yield the classes that an annotation has, in whatever it is made of."""
    if inspect.isclass(hint) and not typing.get_args(hint):
        yield hint
    for part in typing.get_args(hint):
        yield from classes_in(part)


class _Modular(type):
    """A class that has whatever a module may have."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("_"):
            raise AttributeError(name)
        return Unknown


class Unknown(metaclass=_Modular):
    """A class, or a module, that is imported for type checkers alone."""


def resolved(value: Any) -> dict[str, Any]:
    """Return the annotations; names that are imported for type checkers alone stand for `Unknown`."""
    unknown: dict[str, Any] = {}
    while True:
        try:
            return typing.get_type_hints(value, localns=unknown)
        except NameError as error:
            if not error.name or error.name in unknown:
                raise
            unknown[error.name] = Unknown


def hints_of(value: Any) -> Iterator[Any]:
    """Yield the annotations of a function, or of a class: its fields, methods and properties that are public."""
    parts = [value]
    if inspect.isclass(value):
        for name, member in inspect.getmembers_static(value):
            if not name.startswith("_") or name == "__init__":
                parts.append(member.fget if isinstance(member, property) else inspect.unwrap(member))
    for part in parts:
        if inspect.isclass(part) or inspect.isfunction(part):
            yield from resolved(part).values()


def reached() -> dict[type, str]:
    """Every class of iscp that a public name leads to, with the name of one that names it."""
    waiting: list[tuple[str, Any]] = [*public_values(), *((each.__name__, each) for each in REACHED)]
    found: dict[type, str] = {}
    while waiting:
        place, value = waiting.pop()
        for each in (each for hint in hints_of(value) for each in classes_in(hint)):
            if each.__module__.startswith("iscp.model.") and each not in found:
                found[each] = place
                waiting.append((each.__name__, each))
    return found


def test_whatever_public_names_lead_to_is_public() -> None:
    public = {id(value) for _, value in public_values()}
    hidden = {each.__qualname__: place for each, place in reached().items() if id(each) not in public}
    assert {name: place for name, place in hidden.items() if name not in INNER} == {}
    assert len(reached()) > 50


def test_the_packages_show_their_public_names_and_nothing_else() -> None:
    assert {"Client", "search", "types", "errors"} <= set(dir(iscp))
    for package in ("iscp", "iscp.changefeed", "iscp.consumers.custom", "iscp.views"):
        module = importlib.import_module(package)
        assert sorted(dir(module)) == sorted(module.__all__)
        assert all(hasattr(module, name) for name in dir(module))
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        getattr(iscp, "Nothing")  # noqa: B009  (mypy knows that there is none)


@pytest.mark.parametrize("code", ["import iscp; dir(iscp)", "import iscp; iscp.types.JobView, iscp.errors.IscpError"])
def test_names_and_types_are_had_without_what_needs_more(code: str) -> None:
    loaded = f"{code}; import json, sys; print(json.dumps(sorted({{each.partition('.')[0] for each in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True, timeout=60)
    assert HEAVY.isdisjoint(json.loads(done.stdout))
