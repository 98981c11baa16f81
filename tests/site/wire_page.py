"""The pages of gRPC and of JSON over HTTP, from the .proto files, the table of services and the OpenAPI document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from iscp import __version__
from iscp.model.access.service_table import SERVICES, Rule, Scope, ServiceRow
from iscp.server.http.json_calls import METHODS, document, media_type, path_of
from tests.site.tables import code, plain, table

PROTO = Path(__file__).parents[2] / "proto/iscp/wire/v1"

_GRPC_HEAD = """\
# gRPC

The services that nodes have for users and operators, from `proto/iscp/wire/v1`. [Interfaces](../api.md) says what all
interfaces share, and [authorization](../authorization.md) what the roles are. Times are Unix seconds. A failed call has
an `ErrorDetail` in the trailing metadata `iscp-error-bin`.
"""

_HTTP_HEAD = """\
# HTTP

The methods of the [gateway](../gateway.md), from its OpenAPI document. The site has [the document](openapi.json); a
node has that of its version at `/v1/openapi.json`. Requests are `POST`s of `application/json`. 64-bit integers are
texts in answers, and texts or numbers in requests.
"""

_ITEM = re.compile(r"(?P<kind>service|message|enum|oneof) (?P<name>\w+) \{")
_METHOD = re.compile(
    r"rpc (?P<name>\w+)\((?P<sends>stream )?(?P<request>[\w.]+)\) returns \((?P<flows>stream )?(?P<answer>[\w.]+)\);"
)
_FIELD = re.compile(
    r"(?P<label>repeated |optional )?(?P<type>map<[\w, .]+>|[\w.]+) (?P<name>\w+) = (?P<number>\d+)( \[.*\])?;"
)
_VALUE = re.compile(r"(?P<name>[A-Z0-9_]+) = (?P<number>\d+);")


@dataclass(frozen=True, slots=True)
class Member:
    """A method, a field or a value; `shape` is its type, or what it takes and answers."""

    name: str
    shape: str
    text: str
    choice: str = ""


@dataclass(slots=True)
class Item:
    """A service, a message or an enum, with the comment above it."""

    kind: str
    name: str
    text: str
    members: list[Member] = field(default_factory=list)


def parse_proto(text: str) -> list[Item]:
    """Return the items of a .proto file of this project, which nests none but `oneof`.

    Raises ValueError for a line that is none of what the project's files have.
    """
    items: list[Item] = []
    said: list[str] = []
    choice = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("//"):
            said.append(line.removeprefix("//").strip())
            continue
        above, said = " ".join(said), []
        if not line or line.startswith(("syntax ", "package ", "import ", "option ", "reserved ")):
            continue
        if line in ("}", "};"):
            choice = ""
        elif (found := _ITEM.match(line)) and found["kind"] == "oneof":
            choice = found["name"]
        elif found:
            items.append(Item(found["kind"], found["name"], above))
            if line.endswith("}"):
                continue
        else:
            items[-1].members.append(_member(items[-1].kind, line, above, choice))
    return items


def _member(kind: str, line: str, text: str, choice: str) -> Member:
    line, _, behind = line.partition("//")
    text = f"{text} {behind.strip()}".strip()
    if kind == "service" and (found := _METHOD.fullmatch(line.strip())):
        request, answer = found["request"], found["answer"]
        return Member(found["name"], f"{found['sends'] or ''}{request} → {found['flows'] or ''}{answer}", text)
    if kind == "enum" and (found := _VALUE.fullmatch(line.strip())):
        return Member(found["name"], found["number"], text)
    if kind == "message" and (found := _FIELD.fullmatch(line.strip())):
        return Member(found["name"], f"{found['label'] or ''}{found['type']}", text, choice)
    raise ValueError(f"a line that is not understood: {line!r} in a {kind}")


@cache
def items() -> dict[str, Item]:
    """Return all items that users meet, by their names; what nodes say to each other is not among them."""
    files = sorted(path for path in PROTO.glob("*.proto") if path.name != "node.proto")
    return {item.name: item for path in files for item in parse_proto(path.read_text())}


def grpc_page() -> str:
    """Return the page of services with their methods, then of messages and enums."""
    rows = {row.name.rpartition(".")[2]: row for row in SERVICES}
    lines = [_GRPC_HEAD]
    for item in items().values():
        if item.kind == "service":
            lines += [f"## {item.name}", "", code(rows[item.name].name), "", plain(item.text), ""]
            for method in item.members:
                lines += _method(method, rows[item.name])
    lines += ["## Messages", ""]
    for item in items().values():
        if item.kind != "service":
            lines += [f"### {item.name}", "", plain(item.text), ""]
            head = ("value", "number", "") if item.kind == "enum" else ("field", "type", "")
            lines += table(head, map(_field_row, item.members))
    return "\n".join(lines)


def _method(method: Member, row: ServiceRow) -> Iterator[str]:
    rule = row.rules[method.name]
    yield from (f"### {row.name.rpartition('.')[2]}.{method.name}", "")
    yield from (_linked(method.shape), "")
    facts = [
        _who(rule),
        "The owner answers it: another node forwards the call." if row.forwarded else "",
        "It is audited." if rule.audited else "",
        "It waits as long as its request says." if rule.waits else "",
        "Without an answer something may have changed." if rule.changes else "",
    ]
    yield from (plain(method.text), "", " ".join(filter(None, facts)), "")


def _who(rule: Rule) -> str:
    match rule.scope:
        case Scope.OPEN | Scope.CALLER | Scope.NODES:
            return f"For {rule.scope.name.lower()}."
        case Scope.ACCOUNT:
            return f"It takes the role `{rule.role.value}` in the account."
        case Scope.CLUSTER:
            return f"It takes the role `{rule.role.value}` in the cluster-wide account."


def _field_row(member: Member) -> Sequence[str]:
    text = f"One of `{member.choice}`. {member.text}" if member.choice else member.text
    return code(member.name), _linked(member.shape), plain(text)


def _linked(shape: str) -> str:
    """Return a type in which each message is a link to it on the same page."""
    words = re.split(r"(\w+)", shape.replace("iscp.wire.v1.", ""))
    kinds = {name for name, item in items().items() if item.kind != "service"}
    return "".join(f"[{word}](#{word.lower()})" if word in kinds else word.replace("<", "&lt;") for word in words)


def openapi() -> dict[str, Any]:
    """Return the document that a node of this version serves."""
    return document(METHODS.values(), __version__)


def openapi_text() -> str:
    """Return the OpenAPI document as a file."""
    return json.dumps(openapi(), indent=1)


def http_page() -> str:
    """Return the page of paths, then of the schemas that they use."""
    texts = {member.name: member.text for item in items().values() if item.kind == "service" for member in item.members}
    rows = []
    for name, method in METHODS.items():
        answer = f"{_schema_link(method.output_type.name)}, {code(media_type(method))}"
        rows.append((code(path_of(method)), _schema_link(method.input_type.name), answer, plain(texts[name])))
    lines = [_HTTP_HEAD, "## Methods", "", *table(("path", "request", "answer", ""), rows), "## Schemas", ""]
    for name, schema in sorted(openapi()["components"]["schemas"].items()):
        lines += [f"### {name}", ""]
        lines += table(("field", "type"), ((code(each), _schema_type(of)) for each, of in schema["properties"].items()))
    return "\n".join(lines)


def _schema_link(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def _schema_type(schema: dict[str, Any]) -> str:
    match schema:
        case {"$ref": str(reference)}:
            return _schema_link(reference.rpartition("/")[2])
        case {"enum": values}:
            return ", ".join(map(code, values))
        case {"type": "array", "items": inner}:
            return f"list of {_schema_type(inner)}"
        case {"type": "object", "additionalProperties": dict() as inner}:
            return f"object of {_schema_type(inner)}"
        case {"type": "object", "properties": properties}:
            return ", ".join(map(code, properties))
        case {"type": kind, **rest}:
            return f"{kind} ({rest['format']})" if "format" in rest else str(kind)
    raise ValueError(f"a schema that is not understood: {schema}")
