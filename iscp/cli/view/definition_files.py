"""The files that define jobs, for all commands that read them: YAML and JSON of jobs, SQL of views and indexes, and
projects of other tools, each by itself or in directories.

Nothing in a directory is passed over but what is listed here: whoever removes what no file defines relies on it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from iscp.cli.job.job_file import SUFFIXES, NamedSet, read_job_file
from iscp.cli.shell.terminal import say
from iscp.cli.view.dbt_manifest import read_manifest
from iscp.cli.view.spark_pipeline import PIPELINE_FILES, read_pipeline
from iscp.cli.view.sql_files import SQL_SUFFIX, Statement, read_statements
from iscp.cli.view.view_order import wanted_jobs
from iscp.cli.view.view_statements import ImportedViews, LeftOutView
from iscp.core.api.api_views import JobView
from iscp.core.run.wanted import Wanted
from iscp.core.spec.spec_fields import set_of, with_set
from iscp.core.values.argument_checks import Refusals
from iscp.core.values.errors import InvalidRequest
from iscp.core.values.untrusted_values import one_line

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
