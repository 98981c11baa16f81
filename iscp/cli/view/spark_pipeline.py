"""Read a project of Spark Declarative Pipelines: its SQL, and what functions return of SQL. Nothing of it is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from iscp.cli.shell.untrusted_yaml import SafeLoader, refuse_vast
from iscp.cli.view.sql_tokens import SqlSource
from iscp.cli.view.view_options import read_text
from iscp.cli.view.view_statements import ImportedViews, ViewStatement, parse_statements
from iscp.core.spec.view_fields import view_text
from iscp.core.values.errors import InvalidRequest

PIPELINE_FILES = ("spark-pipeline.yml", "spark-pipeline.yaml")
MODULES = frozenset({"dp", "sdp", "dlt", "pipelines"})
"""The names that programs give to the module whose decorators make tables."""

PIPELINE_CHARS_MAX = 1_000_000
"""Characters of a file of a pipeline; a longer one is refused."""

_REMEDY = "Write it as spark-pipelines does: libraries: [{glob: {include: transformations/**}}]"
_IGNORED = {"comment": "comment", "table_properties": "table_properties"}


def read_pipeline(path: Path) -> ImportedViews:
    """Return all views of the files that the pipeline names. Raises InvalidRequest for a pipeline that cannot be
    read.
    """
    found = ImportedViews()
    for file in _files(path):
        text = read_text(str(file), str(file), PIPELINE_CHARS_MAX)
        if file.suffix == ".sql":
            _read_sql(SqlSource(text, str(file)), found)
        else:
            _read_python(text, str(file), found)
    return found


def _files(path: Path) -> list[Path]:
    root = path.parent.resolve()
    files: set[Path] = set()
    for pattern in _patterns(path):
        whole = f"{pattern}/*" if pattern.endswith("**") else pattern
        try:
            matching = [*root.glob(whole)]
        except (ValueError, RuntimeError, OSError) as error:  # RuntimeError: an absolute one
            raise InvalidRequest(f"cannot search {pattern!r:.80}: {error}", field=str(path), remedy=_REMEDY) from error
        files |= {file for file in matching if file.suffix in (".sql", ".py") and file.is_file()}
    # Those that lead out of the project by links or dots are not the project's.
    return sorted(path.parent / file.resolve().relative_to(root) for file in files if root in file.resolve().parents)


def _patterns(path: Path) -> Iterator[str]:
    try:
        text = read_text(str(path), str(path), PIPELINE_CHARS_MAX)
        refuse_vast(text, str(path))
        root: Any = yaml.load(text, SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"is not YAML: {error}", field=str(path), remedy=_REMEDY) from error
    libraries = root.get("libraries") if isinstance(root, dict) else None
    for library in libraries if isinstance(libraries, list) else []:
        glob = library.get("glob") if isinstance(library, dict) else None
        pattern = glob.get("include") if isinstance(glob, dict) else None
        if not isinstance(pattern, str) or not pattern:
            raise InvalidRequest("names libraries that are no globs", field=str(path), remedy=_REMEDY)
        yield pattern


def _read_sql(source: SqlSource, found: ImportedViews) -> None:
    try:
        for each in parse_statements(source):
            if isinstance(each, InvalidRequest):
                found.leave_out(each.field, "", each.message)
            else:
                found.views.append(each)
    except InvalidRequest as error:  # the rest of the file cannot be cut into statements
        found.leave_out(error.field, "", error.message)


def _read_python(text: str, name: str, found: ImportedViews) -> None:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        found.leave_out(name, "", f"is not Python: {error}")
        return
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for decorator in node.decorator_list:
            kind, keywords = _decorator(decorator)
            if kind:
                _read_function(node, kind, keywords, name, found)


def _decorator(node: ast.expr) -> tuple[str, dict[str, ast.expr]]:
    """Return the decorator's name, as `dp.materialized_view`, and what it is given; empty if it is not of a
    pipeline.
    """
    keywords = {each.arg or "**": each.value for each in node.keywords} if isinstance(node, ast.Call) else {}
    named = node.func if isinstance(node, ast.Call) else node
    if isinstance(named, ast.Attribute) and isinstance(named.value, ast.Name) and named.value.id in MODULES:
        return f"{named.value.id}.{named.attr}", keywords
    return "", {}


def _read_function(
    node: ast.FunctionDef | ast.AsyncFunctionDef,
    kind: str,
    keywords: dict[str, ast.expr],
    file: str,
    found: ImportedViews,
) -> None:
    place = f"{file}:{node.lineno}:{node.col_offset + 1}"
    given = keywords.pop("name", None)
    name = given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else node.name
    query = _returned_query(node)
    others = sorted(keywords.keys() - _IGNORED.keys())
    if not (kind.endswith(".materialized_view") or kind == "dlt.table"):
        found.leave_out(place, name, f"@{kind} makes no materialized view")
    elif given is not None and name is not getattr(given, "value", None):
        found.leave_out(place, name, "its name is computed")
    elif query is None:
        found.leave_out(place, name, 'its body is not only: return spark.sql("…"), with a plain text')
    elif others:
        found.leave_out(place, name, f"it is given {', '.join(others)}, which a view here cannot have")
    else:
        source = SqlSource(view_text(query.value), file, query.lineno, query.col_offset + 1)
        ignored = tuple(_IGNORED[each] for each in keywords)
        found.views.append(ViewStatement(name=name, query=source, place=place, ignored=ignored))


def _returned_query(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Any:
    """Return the text in the one statement `return spark.sql("…")` after a docstring; None if it does something
    else.
    """
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    if isinstance(node, ast.AsyncFunctionDef) or len(body) != 1 or node.args.args:
        return None
    match body[0]:
        case ast.Return(
            value=ast.Call(
                func=ast.Attribute(value=ast.Name(id="spark"), attr="sql"),
                args=[ast.Constant(value=str()) as text],
                keywords=[],
            )
        ):
            return text
        case _:
            return None
