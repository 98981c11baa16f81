"""Views of projects of other tools: Spark Declarative Pipelines and dbt.

Nothing of a project is run: its files are read, and its queries are written as Spark takes them.
"""

from __future__ import annotations

import ast
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from iscp.cli.shell.arguments import parse_duration_s
from iscp.cli.shell.untrusted_yaml import SafeLoader, refuse_vast
from iscp.cli.view.sql_statements import ImportedViews, SqlSource, ViewStatement, parse_statements
from iscp.cli.view.view_options import read_text
from iscp.model.spec.spec_parsing import REFRESH_POLICIES, view_text
from iscp.model.values.errors import InvalidRequest
from iscp.model.values.untrusted_values import error_text

if TYPE_CHECKING:
    from sqlglot.expressions import Expr


# --- tables of a query ------------------------------------------------------------------------------------------------
# A query's tables are found by the names that the query gives them. The query is parsed here, and judged by the node
# alone.


def tables_read(query: SqlSource) -> tuple[str, ...]:
    """Return the tables in the order of the text, each once (`db.orders`, without quotes); not the names that the query
    itself defines.

    Raises InvalidRequest, with the place, for what is no query.
    """
    tree = _parse(query)
    found: dict[str, str] = {}
    for _, name in sorted(_names(tree)):
        found.setdefault(name.casefold(), name)
    return tuple(found.values())


def _parse(query: SqlSource) -> Expr:
    # Here, as its import takes longer than the start of the program may.
    from sqlglot import parse
    from sqlglot.errors import ParseError, SqlglotError
    from sqlglot.expressions import Query

    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)  # what it says of SQL it does not know goes on stderr
    remedy = "Correct the query: one SELECT, as Spark takes it"
    try:
        trees = parse(query.text, dialect="spark")
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        line, column = int(first.get("line") or 1), int(first.get("col") or 1)
        offset = sum(len(each) + 1 for each in query.text.split("\n")[: line - 1]) + max(column - 1, 0)
        reason = str(first.get("description") or "is not SQL")
        raise query.fault(min(offset, len(query.text)), f"is not SQL: {reason}", remedy) from error
    except (SqlglotError, RecursionError, ValueError) as error:
        raise query.fault(0, f"is not SQL: {error_text(error)}", remedy) from error
    if len(trees) != 1 or not isinstance(trees[0], Query):
        raise query.fault(0, "is not a query", remedy)
    return trees[0]


def _names(tree: Expr) -> Iterator[tuple[int, str]]:
    """Yield each name with its offset. A name that is called like a function is no table."""
    from sqlglot.expressions import CTE, Identifier, Table

    for table in tree.find_all(Table):
        parts = [part for part in table.parts if isinstance(part, Identifier)]
        name = ".".join(part.name for part in parts)
        if len(parts) == len(table.parts) and not (len(parts) == 1 and _is_defined(table, name, CTE)):
            yield int(parts[0].meta.get("start", 0)), name


def _is_defined(table: Expr, name: str, kind: type[Expr]) -> bool:
    """Return whether a WITH of a query around it defines it; later parts of a WITH know the earlier ones."""
    inside: Expr = table
    around = table.parent
    while around is not None:
        with_ = around.args.get("with_") or around.args.get("with")
        defined = [] if with_ is None or with_ is inside else with_.expressions
        if around.key == "with":
            defined = around.expressions[: around.expressions.index(inside)]
        if any(isinstance(each, kind) and each.alias.casefold() == name.casefold() for each in defined):
            return True
        inside, around = around, around.parent
    return False


# --- queries of other engines -----------------------------------------------------------------------------------------
# Such queries are written as Spark takes them: names in its quotes, functions and literals by its rules.

SPARK_ADAPTERS = frozenset({"", "databricks", "fabricspark", "glue", "spark"})
"""The adapters of dbt whose queries Spark takes as they are; a manifest without a name is taken as one of these."""

_DIALECTS = {"fabric": "tsql", "sqlserver": "tsql", "synapse": "tsql"}
"""The dialects of adapters that are called otherwise."""


def in_spark(sql: str, adapter: str) -> str:
    """Return the query as Spark takes it. Raises ValueError with the reason if it cannot be written so.

    What orders and divides as the other engine does is written out, as NULLS LAST is. Functions that are called the
    same are taken to be the same.
    """
    if adapter in SPARK_ADAPTERS:
        return sql
    # Here, as its import takes longer than the start of the program may.
    from sqlglot import transpile
    from sqlglot.dialects.dialect import Dialect
    from sqlglot.errors import ErrorLevel, SqlglotError

    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)  # what it says of SQL it does not know goes on stderr
    dialect = _DIALECTS.get(adapter, adapter)
    if dialect not in Dialect.classes:
        raise ValueError(f"it is written for {adapter!r:.80}, whose SQL is not known here")
    try:
        found = transpile(sql, read=dialect, write="spark", unsupported_level=ErrorLevel.RAISE)
    except (SqlglotError, RecursionError, ValueError) as error:
        raise ValueError(f"it cannot be written as Spark takes it: {error_text(error)}") from error
    if len(found) != 1:
        raise ValueError("it is more than one statement")
    return found[0]


# --- dbt --------------------------------------------------------------------------------------------------------------
# The models of a `manifest.json` are taken over that have `iscp` in their `meta`.

MANIFEST_CHARS_MAX = 200_000_000
"""Characters of a manifest of dbt; a longer one is refused."""

_WANTED = ("refresh", "every", "target_lag")


def read_manifest(path: Path) -> ImportedViews:
    """Raises InvalidRequest for a file that is no manifest."""
    remedy = "Name the target/manifest.json that `dbt compile` writes"
    try:
        manifest = json.loads(read_text(str(path), str(path), MANIFEST_CHARS_MAX))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"is not JSON: {error}", field=str(path), remedy=remedy) from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("nodes"), dict):
        raise InvalidRequest("is not a manifest of dbt", field=str(path), remedy=remedy)
    adapter = _adapter(manifest)
    rewritten = "" if adapter in SPARK_ADAPTERS else adapter
    found = ImportedViews(aliases=dict(_aliases(manifest)), rewritten=rewritten)
    for key, node in manifest["nodes"].items():
        if isinstance(node, dict) and node.get("resource_type") == "model" and (wanted := _asked(node)) is not None:
            _read_model(node, wanted, f"{path}: {key}", found, adapter)
    return found


def _adapter(manifest: dict[str, Any]) -> str:
    """Return what dbt calls the engine that the queries are written for; empty if the manifest does not say it."""
    metadata = manifest.get("metadata")
    return str((metadata.get("adapter_type") if isinstance(metadata, dict) else "") or "")


def _aliases(manifest: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield how queries write the relation of each model, seed and source, and its name."""
    sources = manifest.get("sources")
    for group in (manifest["nodes"], sources if isinstance(sources, dict) else {}):
        for node in group.values():
            relation = node.get("relation_name") if isinstance(node, dict) else None
            if isinstance(relation, str) and isinstance(node.get("name"), str):
                yield relation.replace("`", "").replace('"', "").casefold(), node["name"].casefold()


def _asked(node: dict[str, Any]) -> Any:
    """Return what `meta` says of iscp: true, or an object, which may be empty; None if it says nothing, or no."""
    config = node.get("config")
    for holder in (node, config if isinstance(config, dict) else {}):
        meta = holder.get("meta")
        wanted = meta.get("iscp") if isinstance(meta, dict) else None
        if wanted or wanted == {}:
            return wanted
    return None


def _read_model(node: dict[str, Any], wanted: Any, place: str, found: ImportedViews, adapter: str) -> None:
    name, code = str(node.get("name") or ""), node.get("compiled_code")
    fields = wanted if isinstance(wanted, dict) else {}
    unknown = sorted(str(each) for each in fields if each not in _WANTED)
    if node.get("language", "sql") != "sql":
        found.leave_out(place, name, "it is not of SQL")
    elif not isinstance(code, str) or not view_text(code):
        found.leave_out(place, name, "it has no compiled_code; `dbt compile` writes it")
    elif unknown:
        found.leave_out(place, name, f"meta.iscp has {', '.join(unknown)}; known are {', '.join(_WANTED)}")
    elif fields.get("refresh", "auto") not in REFRESH_POLICIES:
        found.leave_out(place, name, f"meta.iscp.refresh is none of {', '.join(REFRESH_POLICIES)}")
    else:
        try:
            run: dict[str, Any] = {each: _seconds(fields[each]) for each in ("every", "target_lag") if each in fields}
        except ValueError:
            found.leave_out(place, name, "meta.iscp has a time that is none; write it as in 10m")
            return
        try:
            sql = in_spark(view_text(code), adapter)
        except ValueError as error:
            found.leave_out(place, name, str(error))
            return
        file = str(node.get("original_file_path") or place)
        query = SqlSource(sql, file)
        refresh = str(fields.get("refresh", ""))
        run |= {"tags": tags} if (tags := _tags(node)) else {}
        found.views.append(ViewStatement(name=name, query=query, place=place, refresh=refresh, run=run))


def _tags(node: dict[str, Any]) -> list[str]:
    """Return the tags of a model, with those of its folders: dbt writes all of them into the node."""
    tags = node.get("tags")
    return [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []


def _seconds(value: object) -> float:
    return parse_duration_s(str(value))


# --- Spark Declarative Pipelines --------------------------------------------------------------------------------------
# The SQL of the project is read, and what its functions return of SQL.

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
