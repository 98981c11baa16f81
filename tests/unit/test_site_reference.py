"""The generated pages of the site have all that the code has: commands, settings, errors, methods, classes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from google.protobuf import descriptor_pool

from iscp import errors
from iscp.model.access.service_table import SERVICES, Scope
from iscp.model.settings.config import settings
from iscp.model.values.errors import ErrorCode
from iscp.server.http.json_calls import METHODS
from tests.site import benchmark_page, command_page, error_page, python_page, setting_page, tables, wire_page


def leaves(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Yield all commands that are shown, by their whole names."""
    yield context.command_path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from leaves(inner, click.Context(inner, parent=context, info_name=name))


@pytest.mark.parametrize("program", command_page.PROGRAMS)
def test_the_page_of_commands_has_every_command_with_every_option(program: str) -> None:
    sections = dict(re.findall(r"^##+ (.+)\n((?:(?!##).*\n?)*)", command_page.page(), re.MULTILINE))
    known = dict(
        leaves(command_page.PROGRAMS[program], click.Context(command_page.PROGRAMS[program], info_name=program))
    )
    assert len(known) > 10
    shared = {each.name for each in command_page.PROGRAMS[program].params}
    for path, command in known.items():
        options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
        for each in options:
            if path == program or each.name not in shared:
                assert max(each.opts, key=len) in sections[path], f"{path} {each.opts}"


def test_the_page_of_settings_has_every_setting() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| `ISCP_", setting_page.page(), re.MULTILINE)
    assert sorted(rows) == sorted(each.path for each in settings())


@pytest.mark.parametrize(
    ("kind", "text"),
    [(int, "whole number"), (float | None, "number"), (tuple[str, ...], "list of text"), (dict[str, int], "table")],
)
def test_types_of_settings_are_named_for_readers_of_toml(kind: type, text: str) -> None:
    assert setting_page.kind_text(kind) == text


def test_the_page_of_errors_has_every_code_with_what_to_do() -> None:
    sections = re.split(r"^## ", error_page.page(), flags=re.MULTILINE)[1:]
    assert [section.split()[0] for section in sections] == [code.name for code in ErrorCode]
    assert [section.split()[0] for section in sections if "**Do:**" not in section] == ["OK"]
    page = "".join(sections)
    named = [name for name in errors.__all__ if name not in ("ErrorCode", "PERMANENT_FROM")]
    assert [name for name in named if f"`iscp.errors.{name}`" not in page] == []


def test_messages_are_read_from_the_code_with_their_code_and_remedy() -> None:
    source = """
raise InvalidRequest(f"is {n} of {m}{k}", field="spec.key", remedy="Choose another")
raise StorageError("it is gone", remedy="Mount it", code=ErrorCode.TABLE_NOT_FOUND)
raise Conflict("no remedy")
raise Conflict(message, remedy="unknown text")
raise ValueError("not ours", remedy="no")
"""
    assert list(error_page.raised(source)) == [
        (ErrorCode.INVALID_REQUEST, error_page.Message("spec.key is … of …", "Choose another")),
        (ErrorCode.TABLE_NOT_FOUND, error_page.Message("it is gone", "Mount it")),
    ]
    assert sum(map(len, error_page.messages().values())) > 300


def test_messages_and_fields_are_those_that_the_descriptors_have() -> None:
    for item in wire_page.items().values():
        if item.kind == "message":
            known = descriptor_pool.Default().FindMessageTypeByName(f"iscp.wire.v1.{item.name}")
            assert [each.name for each in item.members] == [each.name for each in known.fields]
        elif item.kind == "enum":
            values = descriptor_pool.Default().FindEnumTypeByName(f"iscp.wire.v1.{item.name}").values
            assert [each.name for each in item.members] == [each.name for each in values]


def test_the_page_of_grpc_has_every_method_with_its_role() -> None:
    page = wire_page.grpc_page()
    ours = [row for row in SERVICES if row.name.startswith("iscp.wire.v1.") and "node" not in row.name]
    for row in ours:
        for method, rule in row.rules.items():
            section = page.split(f"### {row.name.rpartition('.')[2]}.{method}\n")[1].split("###")[0]
            assert ("For caller." if rule.scope is Scope.CALLER else f"the role `{rule.role.value}`") in section
            assert ("It is audited." in section) == rule.audited


def test_a_line_of_a_proto_that_is_not_understood_is_refused() -> None:
    fields = "  // One.\n  optional int64 b = 1; // Of them.\n  oneof c {\n    A d = 2;\n  }\n"
    text = f"// What it is.\nmessage A {{\n{fields}}}\n"
    (item,) = wire_page.parse_proto(text)
    assert item.text == "What it is."
    assert item.members == [
        wire_page.Member("b", "optional int64", "One. Of them."),
        wire_page.Member("d", "A", "", "c"),
    ]
    with pytest.raises(ValueError, match="extensions"):
        wire_page.parse_proto("message A {\n  extensions 4 to 9;\n}\n")


def test_the_page_of_http_has_every_path_and_schema() -> None:
    page = wire_page.http_page()
    assert [name for name in METHODS if f"| `/v1/{name}` |" not in page] == []
    assert [name for name in wire_page.openapi()["components"]["schemas"] if f"\n### {name}\n" not in page] == []


def test_the_pages_of_python_describe_each_class_and_function_once() -> None:
    pages = python_page.pages()
    described = re.findall(r"^::: (\S+)$", "\n".join(pages.values()), re.MULTILINE)
    assert len(described) == len(set(described))
    for package in python_page.PACKAGES:
        for name, value in python_page.public(package):
            assert f"{value.__module__}.{value.__qualname__}" in described, f"{package}.{name}"


def test_the_page_of_benchmarks_has_each_that_a_test_runs() -> None:
    page = benchmark_page.page()
    run = {path.stem for path in benchmark_page.FOLDER.glob("*.py") if "__main__" in path.read_text()}
    run |= {path.parent.name for path in benchmark_page.FOLDER.glob("*/__main__.py")}
    parts = {"bare_node", "feed_writer", "warm_spark"}  # what benchmarks start
    assert set(benchmark_page.benchmarks()) == run - parts
    assert [name for name in run - parts if f"python -m benchmarks.{name} " not in page] == []


def test_texts_of_the_code_are_shown_as_they_are() -> None:
    assert tables.plain("a *.sql\n file of <T> with `x|*`, [b]") == "a \\*.sql file of &lt;T> with `x|*`, \\[b\\]"
    assert list(tables.table(("a", "b"), [("1", "2")])) == ["| a | b |", "|-|-|", "| 1 | 2 |", ""]
    assert list(tables.table(("a", "b"), [])) == []
