"""The page of all errors: each code with its classes, what to do, and the messages that name a remedy."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from iscp import errors as public
from iscp.client.channel.grpc_calls import status_of
from iscp.model.values import errors
from iscp.model.values.errors import ErrorCode, IscpError
from tests.site.page_text import site_text
from tests.site.tables import plain, table

ROOT = Path(__file__).parents[2]

_HEAD = """\
# Errors

Each error has a code, a message, and mostly the field that it is about and a remedy. Codes from 1 to 9999 are
temporary: iscp retries. At 10000 and above somebody has to act. [Operations](../operations.md#error-codes) has the same
codes in one table, and [Python](../python.md#errors) the classes in use. Below each code are the messages that have a
remedy of their own, as they stand in the code: `…` is what they say of the case.
"""

_ROW = re.compile(r"^\| (\d+) \| ([A-Z_]+) \| (.*?) \| (.*?) ?\|$", re.MULTILINE)


@dataclass(frozen=True, slots=True, order=True)
class Message:
    """A message as it stands in the code, with its remedy."""

    text: str
    remedy: str


def page() -> str:
    """Return the page of all codes, in their order."""
    advice = {int(number): (means, do) for number, _, means, do in _ROW.findall(_operations())}
    lines = [_HEAD]
    for error in ErrorCode:
        means, do = advice[error.value]
        lines += [f"## {error.name}", "", f"{error.value}: {_sentence(means)}", ""]
        lines += [f"**Do:** {_sentence(do)}", ""] if do else []
        for kind in (each for each in classes() if each.code is error):
            doc = plain(kind.__doc__ or "")
            lines += [f"`iscp.errors.{kind.__name__}`, gRPC's status {status_of(kind('')).name}. {doc}", ""]
        said = sorted(messages().get(error, ()))
        lines += table(("message", "remedy"), ((plain(each.text), plain(each.remedy)) for each in said))
    return "\n".join(lines)


def _sentence(text: str) -> str:
    return text if text.endswith(("?", ".")) else f"{text}."


def _operations() -> str:
    """Return the text of docs/operations.md, with its links as a page one folder below has them."""
    text = site_text((ROOT / "docs/operations.md").read_text(), "docs/operations.md")
    text = re.sub(r"\]\((?=[\w-]+\.md)", "](../", text)
    return text.replace("](#", "](../operations.md#")


def classes() -> list[type[IscpError]]:
    """Return the classes of errors that users may catch."""
    found = [getattr(public, name) for name in public.__all__]
    return [each for each in found if isinstance(each, type) and issubclass(each, IscpError)]


@cache
def messages() -> dict[ErrorCode, set[Message]]:
    """Return the messages with remedies of each code, from all modules of the package."""
    found: defaultdict[ErrorCode, set[Message]] = defaultdict(set)
    for path in sorted((ROOT / "iscp").rglob("*.py")):
        for code, message in raised(path.read_text()):
            found[code].add(message)
    return dict(found)


def raised(source: str) -> Iterator[tuple[ErrorCode, Message]]:
    """Yield the code and the message of each error in a module whose message and remedy are texts."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id=name), args=[first, *_], keywords=keywords):
                kind = getattr(errors, name, None)
                given = {each.arg: each.value for each in keywords}
                text, remedy, field = (_text(each) for each in (first, given.get("remedy"), given.get("field")))
                if isinstance(kind, type) and issubclass(kind, IscpError) and text and remedy:
                    yield _code(given.get("code"), kind), Message(IscpError(text, field=field).sentence, remedy)
            case _:
                pass


def _code(given: ast.expr | None, kind: type[IscpError]) -> ErrorCode:
    match given:
        case ast.Attribute(value=ast.Name(id="ErrorCode"), attr=name):
            return ErrorCode[name]
        case _:
            return kind.code


def _text(node: ast.expr | None) -> str:
    """Return a text with … for what is not known before it is said; nothing if all of it is."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=parts):
            texts = [str(each.value) if isinstance(each, ast.Constant) else "…" for each in parts]
            return re.sub("…+", "…", "".join(texts))
        case _:
            return ""
