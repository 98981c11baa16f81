"""The files that define jobs, for all commands that read them: YAML and JSON of jobs, SQL of views and indexes, and
projects of other tools, each by itself or in directories.

The module reads statements of SQL files, makes jobs of them, and finds the files of directories.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from iscp.cli.job.job_file import SUFFIXES, NamedSet, read_job_file
from iscp.cli.shell.arguments import absolute_table, absolute_target
from iscp.cli.shell.terminal import say
from iscp.cli.view.project_import import PIPELINE_FILES, read_manifest, read_pipeline, tables_read
from iscp.cli.view.sql_statements import (
    INDEX_STATEMENT,
    STATEMENT,
    ImportedViews,
    IndexStatement,
    LeftOutView,
    SqlSource,
    ViewStatement,
    is_index,
    parse_index,
    parse_view,
    statement_tokens,
)
from iscp.cli.view.view_options import read_text
from iscp.model.api.api_requests import JobName, JobView, RegisterRequest
from iscp.model.run.run_plan import Wanted
from iscp.model.spec.spec import set_of, to_spec_json, with_set
from iscp.model.spec.spec_parsing import ViewFields, view_of
from iscp.model.values.errors import InvalidRequest
from iscp.model.values.untrusted_values import Refusals, one_line

# --- SQL files with statements of views and of indexes ----------------------------------------------------------------

FILE_CHARS_MAX = 10_000_000
"""Characters of a file of views; a longer one is refused."""

SQL_SUFFIX = ".sql"

Statement = ViewStatement | IndexStatement


def read_statements(paths: Sequence[str]) -> list[Statement]:
    """Return the statements of files; `-` is stdin.

    Raises InvalidRequest for the first that cannot be taken over, with every other one beside it, and where there is
    none.
    """
    found, refusals = list[Statement](), Refusals()
    for path in paths:
        name = "stdin" if path == "-" else path
        with refusals.collect():
            for statement in parse_sql(SqlSource(read_text(path, name, FILE_CHARS_MAX), name)):
                if isinstance(statement, InvalidRequest):
                    refusals.add(statement)
                else:
                    found.append(statement)
    refusals.raise_all()
    if not found:
        raise InvalidRequest(
            "holds no view",
            field="stdin" if paths[0] == "-" else paths[0] or "--file",
            remedy=f"Write {STATEMENT}, or {INDEX_STATEMENT}",
        )
    return found


def parse_sql(source: SqlSource) -> Iterator[Statement | InvalidRequest]:
    """Yield each statement, or why it cannot be taken over. Raises InvalidRequest for a text that has no end."""
    for tokens, end in statement_tokens(source):
        yield parse_index(source, tokens, end) if is_index(tokens) else parse_view(source, tokens, end)


# --- views and indexes as jobs ----------------------------------------------------------------------------------------
# The views and indexes of one project become jobs. These functions find the places of their tables, and the order in
# which the jobs can be registered.

_TARGET_NAME = re.compile(r"[\w-][\w .-]*")


@dataclass(frozen=True, slots=True)
class TablePlaces:
    """Places of tables by their names: those that were given, and the targets of views that are registered.

    `root` is the directory or URI below which new views are. `aliases`: what queries call a table or a view, and
    what it is called otherwise. Names are folded to lower case everywhere.
    """

    root: str
    given: Mapping[str, str]
    registered: Mapping[str, str]
    aliases: Mapping[str, str] = field(default_factory=dict)

    def target_of(self, view: Statement) -> str:
        """Raises InvalidRequest for a name that cannot be one of a directory, and where there is no root."""
        if not _TARGET_NAME.fullmatch(view.name):
            raise InvalidRequest(
                f"{view.name!r:.80} cannot be the name of its target",
                about=view.place,
                remedy="Use letters, digits, _, - and dots",
            )
        if not self.root:
            raise InvalidRequest(
                f"{view.name!r:.80} has no place",
                about=view.place,
                remedy="Give --target-root, below which targets are",
            )
        return f"{self.root.rstrip('/')}/{view.name}"

    def of_table(self, name: str) -> str | None:
        """Return the URI or name of the table, or None; a name with a dot may be of the catalog."""
        for key in (name.casefold(), self.view_key(name)):
            if uri := self.given.get(key) or self.registered.get(key):
                return uri
        return name if "." in name else None

    def view_key(self, name: str) -> str:
        return self.aliases.get(name.casefold(), name.casefold())


def wanted_jobs(
    statements: Sequence[Statement],
    registered: Sequence[JobView],
    root: str,
    given: Mapping[str, str],
    aliases: Mapping[str, str],
    account: str,
) -> list[Wanted]:
    """Return the jobs of views and indexes, each after those whose targets it reads; `registered`: all views that are
    there.

    Raises InvalidRequest, with the place, where one cannot be had, with every other one beside it.
    """
    refusals = Refusals()
    views = [each for each in statements if isinstance(each, ViewStatement)]
    places, by_name = _known_places(views, registered, root, given, aliases, refusals)
    indexes = (each for each in statements if isinstance(each, IndexStatement))
    wanted = [
        *_wanted_views(by_name, registered, places, account, refusals),
        *_wanted_indexes(indexes, by_name, places, account, refusals),
    ]
    refusals.raise_all()
    return wanted


def _known_places(
    statements: Sequence[ViewStatement],
    registered: Sequence[JobView],
    root: str,
    given: Mapping[str, str],
    aliases: Mapping[str, str],
    refusals: Refusals,
) -> tuple[TablePlaces, dict[str, ViewStatement]]:
    """Return the places of tables, and the views by their names."""
    targets = {job.name.casefold(): view.target for job in registered if (view := view_of(job.spec_json))}
    places = TablePlaces(root, {name.casefold(): uri for name, uri in given.items()}, targets, aliases)
    by_name: dict[str, ViewStatement] = {}
    for each in statements:
        first = by_name.setdefault(each.name.casefold(), each)
        if first is not each:
            message = f"{each.name!r} is a view at {first.place} already"
            refusals.add(InvalidRequest(message, about=each.place, remedy="Name each view once"))
        elif each.name.casefold() in places.given:
            message = f"{each.name!r} is a view, and a table that is given by --table"
            remedy = "Leave out --table for it, or name the view otherwise"
            refusals.add(InvalidRequest(message, about=each.place, remedy=remedy))
    return places, by_name


def _wanted_views(
    by_name: Mapping[str, ViewStatement],
    registered: Sequence[JobView],
    places: TablePlaces,
    account: str,
    refusals: Refusals,
) -> list[Wanted]:
    found: dict[str, ViewFields] = {}
    for key, view in by_name.items():
        with refusals.collect():
            found[key] = _fields(view, by_name, places)
    reads = {
        key: [read for name in fields.tables if (read := places.view_key(name)) in by_name]
        for key, fields in found.items()
    }
    there: dict[str, list[JobView]] = {}
    for job in registered:
        there.setdefault(job.name, []).append(job)
    wanted = []
    with refusals.collect():
        for key in _ordered(by_name, reads):
            with refusals.collect():
                if key in found:
                    wanted.append(_wanted(by_name[key], found[key], there.get(by_name[key].name, []), account))
    return wanted


def _fields(view: ViewStatement, views: Mapping[str, ViewStatement], places: TablePlaces) -> ViewFields:
    tables: dict[str, str] = {}
    for name in tables_read(view.query):
        other = views.get(places.view_key(name))
        uri = places.target_of(other) if other else places.of_table(name)
        if uri is None:
            raise InvalidRequest(
                f"{view.name!r} reads {name!r}, which is neither a view nor given by --table",
                about=view.query.place(0),
                remedy=f"Say where it is, as in --table {name}=/lake/{name}",
            )
        tables[name] = uri
    if not tables:
        raise InvalidRequest(f"{view.name!r} reads no table", about=view.query.place(0), remedy="Name one in its FROM")
    return ViewFields(view.sql, tables, places.target_of(view), view.refresh, view.run)


def _ordered(views: Mapping[str, ViewStatement], reads: Mapping[str, Sequence[str]]) -> list[str]:
    """Raises InvalidRequest for a circle."""
    try:
        return list(TopologicalSorter(reads).static_order())
    except CycleError as error:
        circle = [views[key] for key in error.args[1]]
        raise InvalidRequest(
            f"is in a circle: {' → '.join(view.name for view in reversed(circle))}",
            field=circle[0].place,
            remedy="Have one of them read tables instead",
        ) from error


def _wanted(statement: ViewStatement, fields: ViewFields, there: Sequence[JobView], account: str) -> Wanted:
    """Return the job on the table that the view of this name is on already, if the query still reads that table."""
    on = [job for job in there if {job.table, job.table_id} & set(fields.tables.values())]
    if there and not on:
        raise InvalidRequest(
            f"{statement.name!r} is a view on {there[0].table}, which the query does not read",
            about=statement.place,
            remedy=f"Delete it first: `iscp-admin view drop {statement.name}`",
        )
    job = JobName(on[0].table if on else fields.table, statement.name, account)
    request = RegisterRequest(job, fields.spec_json())
    return Wanted(request, statement.place, statement.replace, statement.if_missing)


def _wanted_indexes(
    statements: Iterable[IndexStatement],
    views: Mapping[str, ViewStatement],
    places: TablePlaces,
    account: str,
    refusals: Refusals,
) -> list[Wanted]:
    first: dict[tuple[str, str], IndexStatement] = {}
    wanted = []
    for each in statements:
        with refusals.collect():
            table = _table_of(each, views, places)
            before = first.setdefault((table, each.name.casefold()), each)
            if before is not each:
                message = f"{each.name!r} is an index at {before.place} already"
                raise InvalidRequest(message, about=each.place, remedy="Name each index once")
            spec = index_spec(each, absolute_target(each.target) or places.target_of(each))
            request = RegisterRequest(JobName(table, each.name, account), spec)
            wanted.append(Wanted(request, each.place, each.replace, each.if_missing))
    return wanted


def _table_of(index: IndexStatement, views: Mapping[str, ViewStatement], places: TablePlaces) -> str:
    if index.is_place:
        return absolute_table(index.table)
    view = views.get(places.view_key(index.table))
    if uri := places.target_of(view) if view else places.of_table(index.table):
        return uri
    raise InvalidRequest(
        f"{index.name!r} is on {index.table!r}, which is neither a view nor given by --table",
        about=index.place,
        remedy=f"Say where it is, as in --table {index.table}=/lake/{index.table}, or ON '/lake/{index.table}'",
    )


def index_spec(index: IndexStatement, target: str) -> str:
    """Return the job_spec of an index. `every` or `cron` alone makes a trigger periodic."""
    run = dict(index.run)
    if not run.keys().isdisjoint(("every", "cron")):
        run.setdefault("trigger", "periodic")
    fields = {"consumer": index.kind, "target": target, "key": list(index.key), "where": index.where or None}
    return to_spec_json({**fields, "options": dict(index.options), **run})


# --- files and directories of definitions -----------------------------------------------------------------------------
# Nothing in a directory is passed over but what is listed here: whoever removes what no file defines relies on it.

_MANIFEST, _DBT_PROJECT = "manifest.json", "dbt_project.yml"
PROJECT_FILES = (*PIPELINE_FILES, _MANIFEST, f"target/{_MANIFEST}")
"""The files by which a directory is known as a project of another tool."""

DEFINITION_SUFFIXES = (SQL_SUFFIX, *SUFFIXES)
"""The endings of files that are read of a directory, in upper case too."""

PROSE_SUFFIXES = (".md", ".rst", ".txt")
"""The endings of files of a directory that are for people, and passed over."""

FILES_MAX = 100_000
"""Entries of a directory and of all below it; more are refused."""


@dataclass(frozen=True, slots=True)
class Definitions:
    """The definitions of files: jobs as they are wanted, and statements, whose places depend on what else is there.

    `aliases`: what queries call a table, by what it is called otherwise. `left_out`: what of projects cannot be taken
    over. `sets`: the names by which files say whose their jobs are.
    """

    wanted: Sequence[Wanted]
    statements: Sequence[Statement]
    aliases: Mapping[str, str]
    left_out: Sequence[LeftOutView] = ()
    sets: Sequence[NamedSet] = ()

    def jobs(
        self, registered: Sequence[JobView], tables: Mapping[str, str], target_root: str, account: str
    ) -> list[Wanted]:
        """Return all jobs; `registered`: the views that are there. Raises InvalidRequest, with all faults of the
        statements.
        """
        views = wanted_jobs(self.statements, registered, target_root, tables, self.aliases, account)
        return [*self.wanted, *views]

    def set_name(self, given: str) -> str:
        """Return the one set that the files and `given` name; empty if none does. Raises InvalidRequest for two."""
        name = given
        for each in self.sets:
            if name and each.name != name:
                raise InvalidRequest(
                    f"names the set {each.name}, and the set is {name}",
                    field=each.place,
                    remedy="Apply the files of each set by themselves",
                )
            name = each.name
        return name


def in_set(wanted: Sequence[Wanted], name: str) -> list[Wanted]:
    """Return the jobs as those of the set; all are as they were if the name is empty. Raises InvalidRequest for one
    that says another set.
    """
    if not name:
        return list(wanted)
    refusals, found = Refusals(), list[Wanted]()
    for each in wanted:
        own = set_of(each.request.spec_json)
        if own not in ("", name):
            refusals.add(
                InvalidRequest(
                    f"is of the set {own}, and the set is {name}",
                    field=f"{each.place}.set",
                    remedy="Leave it out there, or apply the files of each set by themselves",
                )
            )
        request = dataclasses.replace(each.request, spec_json=with_set(each.request.spec_json, name))
        found.append(dataclasses.replace(each, request=request))
    refusals.raise_all()
    return found


def read_definitions(paths: Sequence[str], *, quiet: bool) -> Definitions:
    """Return what files, directories of them, and projects define, in their order; warn of what has no effect.

    Raises InvalidRequest, with all faults that there are.
    """
    refusals, reading = Refusals(), _DefinitionReader(quiet)
    found: list[str] = []
    for given in paths:
        with refusals.collect():
            found += files_of(given)
    for path in found:
        with refusals.collect():
            reading.read(path)
    refusals.raise_all()
    if not quiet:
        warn_of_ignored(reading.statements)
    return Definitions(reading.wanted, reading.statements, reading.aliases, reading.left_out, reading.sets)


@dataclass(slots=True)
class _DefinitionReader:
    """The definitions that were read so far."""

    quiet: bool
    wanted: list[Wanted] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    left_out: list[LeftOutView] = field(default_factory=list)
    sets: list[NamedSet] = field(default_factory=list)

    def read(self, path: str) -> None:
        """Raises InvalidRequest."""
        if _is_project(path):
            found = read_project(path)
            if not self.quiet:
                warn_of_project(found)
            refuse_empty(path, found)
            self.statements += found.views
            self.aliases |= found.aliases
            self.left_out += found.left_out
        elif _has_suffix(path, (SQL_SUFFIX,)):
            self.statements += read_statements([path])
        else:
            wanted, sets = read_job_file(Path(path))
            self.wanted += wanted
            self.sets += sets


def files_of(path: str) -> list[str]:
    """Return the file or project that a path names, or the files and projects of a directory.

    Raises InvalidRequest for a directory without any, for a project of dbt that is not compiled, and for every entry
    that is neither a definition nor known to be none.
    """
    if path == "-" or not os.path.isdir(path):
        return [path]
    refusals = Refusals()
    found = list(_definitions(path, refusals))
    refusals.raise_all()
    if not found:
        raise InvalidRequest(
            f"holds no file *{', *'.join(DEFINITION_SUFFIXES)}", field=path, remedy="Name a file, or another one"
        )
    return found


def sql_files_of(paths: Sequence[str]) -> list[str]:
    """Return the files that paths name, and those of directories, which are to hold files of SQL alone.

    Raises InvalidRequest, as `files_of` does, and for a file of a directory that is none of SQL.
    """
    refusals, found = Refusals(), list[str]()
    for path in paths:
        with refusals.collect():
            for each in files_of(path):
                if each != path and not _has_suffix(each, (SQL_SUFFIX,)):
                    remedy = "Use `iscp-admin apply`, which takes it"
                    refusals.add(InvalidRequest("is no file of SQL", field=each, remedy=remedy))
                found.append(each)
    refusals.raise_all()
    return found


def _definitions(root: str, refusals: Refusals) -> Iterator[str]:
    """Yield the definitions below a directory, and note in `refusals` what is not understood.

    A directory of a project is one definition, and nothing within it is looked at. Links to files are followed, as
    mounted configuration has them; those to directories could lead around in a circle.
    """

    def refuse(path: str, message: str) -> None:
        refusals.add(InvalidRequest(message, field=path, remedy=_REMEDY))

    def refuse_unreadable(error: OSError) -> None:
        refuse(str(error.filename), f"cannot be read: {error.strerror}")

    count = 0
    for directory, directories, files in os.walk(root, onerror=refuse_unreadable):
        count += len(directories) + len(files)
        if count > FILES_MAX:
            raise InvalidRequest(f"holds more than {FILES_MAX} files", field=root, remedy="Name the files themselves")
        if any(os.path.isfile(os.path.join(directory, name)) for name in PROJECT_FILES):
            directories.clear()
            yield directory
            continue
        with refusals.collect():
            refuse_uncompiled(Path(directory))
        for name in sorted(files):
            path = os.path.join(directory, name)
            if fault := _fault(path, name):
                refuse(path, fault)
            elif not _is_passed_over(name):
                yield path
        for name in directories:
            path = os.path.join(directory, name)
            if os.path.islink(path) and not name.startswith("."):
                refuse(path, "is a link to a directory")
        directories[:] = sorted(name for name in directories if not name.startswith("."))


def _fault(path: str, name: str) -> str:
    """Return why an entry of a directory, which is none itself, is refused; empty if it is not."""
    if name.startswith("."):
        return "is hidden, and named like a file of jobs" if _has_suffix(name, DEFINITION_SUFFIXES) else ""
    if not _has_suffix(name, (*DEFINITION_SUFFIXES, *PROSE_SUFFIXES)):
        return f"is not understood: it ends in none of {', '.join(DEFINITION_SUFFIXES)}"
    if not os.path.isfile(path):
        return "is no file" if os.path.exists(path) else "is a link to nothing"
    return ""


def _is_passed_over(name: str) -> bool:
    return name.startswith(".") or _has_suffix(name, PROSE_SUFFIXES)


def _has_suffix(path: str, suffixes: Sequence[str]) -> bool:
    return path.lower().endswith(tuple(suffixes))


def _is_project(path: str) -> bool:
    return Path(path).name in (*PIPELINE_FILES, _MANIFEST) or os.path.isdir(path)


_REMEDY = "Move it elsewhere, or name the files that are meant instead of their directory"


# --- projects of other tools ------------------------------------------------------------------------------------------


def warn_of_project(found: ImportedViews) -> None:
    """Say on stderr what of a project is left out, and whether its queries are written otherwise here."""
    for each in found.left_out:
        say(one_line(f"left out: {each.place}: {each.name} {each.why}"), err=True)
    if found.views and found.rewritten:
        say(one_line(f"warning: the queries are written for Spark, from those for {found.rewritten}"), err=True)


def warn_of_ignored(statements: Sequence[Statement]) -> None:
    """Warn on stderr of what statements say that has no effect here."""
    for each in statements:
        if ignored := getattr(each, "ignored", ()):
            clauses = ", ".join(dict.fromkeys(ignored))
            say(f"warning: {each.place}: of {each.name} not kept: {clauses}", err=True)


def refuse_empty(project: str, found: ImportedViews) -> None:
    """Raise InvalidRequest for a project that has no view which can be taken over."""
    if not found.views:
        raise InvalidRequest(
            f"holds no view that can be taken over ({len(found.left_out)} are left out)",
            field=project,
            remedy="Write views as CREATE MATERIALIZED VIEW; of dbt, set meta.iscp of the models, and compile",
        )


def refuse_uncompiled(directory: Path) -> None:
    """Raise InvalidRequest for a directory of a dbt project, whose manifest is not there."""
    if (directory / _DBT_PROJECT).is_file():
        raise InvalidRequest(
            "is a project of dbt without a target/manifest.json",
            field=str(directory),
            remedy="Run `dbt compile` there first",
        )


def read_project(project: str) -> ImportedViews:
    """Raises InvalidRequest for a path where there is none."""
    path = Path(project)
    try:
        if project and path.is_dir():
            candidates = [path / name for name in PROJECT_FILES]
            path = next((each for each in candidates if each.is_file()), path)
            if path.is_dir():
                refuse_uncompiled(path)
        readable = bool(project) and path.is_file()
    except (OSError, ValueError):
        readable = False
    if not readable:
        raise InvalidRequest(
            "is no project", field=project or "PATH", remedy="Name a spark-pipeline.yml or a manifest.json of dbt"
        )
    return read_manifest(path) if path.suffix == ".json" else read_pipeline(path)
