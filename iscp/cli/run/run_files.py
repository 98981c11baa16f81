"""Read the files of a run: those of `iscp-admin apply`, and projects of other tools."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from iscp.cli.job.job_file import SUFFIXES, read_paths
from iscp.cli.view.spark_pipeline import PIPELINE_FILES
from iscp.cli.view.sql_files import SQL_SUFFIX, read_statements
from iscp.cli.view.view_apply import read_project, refuse_empty, refuse_uncompiled, warn_of_ignored, warn_of_project
from iscp.cli.view.view_order import wanted_jobs
from iscp.core.run.wanted import Wanted
from iscp.core.values.argument_checks import Refusals
from iscp.core.values.errors import InvalidRequest

if TYPE_CHECKING:
    from iscp.cli.view.sql_files import Statement

_MANIFEST = "manifest.json"
PROJECT_FILES = (*PIPELINE_FILES, _MANIFEST, f"target/{_MANIFEST}")
"""The files by which a directory is known as a project of another tool."""


def read_run_files(
    paths: Sequence[str], tables: Mapping[str, str], target_root: str, account: str, *, quiet: bool
) -> list[Wanted]:
    """Return the jobs of files, of directories of them, and of projects, in their order; warn of what has no effect.

    `tables`, `target_root` and `account` are for statements of SQL, and for projects. Raises InvalidRequest, with all
    faults that there are.
    """
    refusals = Refusals()
    wanted: list[Wanted] = []
    statements: list[Statement] = []
    aliases: dict[str, str] = {}
    found_paths: list[str] = []
    for given in paths:
        with refusals.collect():
            found_paths += _files(given)
    for path in found_paths:
        with refusals.collect():
            if _is_project(path):
                found = read_project(path)
                if not quiet:
                    warn_of_project(found)
                refuse_empty(path, found)
                statements += found.views
                aliases |= found.aliases
            elif path.endswith(SQL_SUFFIX):
                statements += read_statements([path])
            else:
                wanted += read_paths([path])
    refusals.raise_all()
    if statements and not quiet:
        warn_of_ignored(statements)
    return wanted + wanted_jobs(statements, [], target_root, tables, aliases, account)


def _files(path: str) -> list[str]:
    """Return the file or project that a path names, or the files of a directory.

    Raises InvalidRequest for a directory without any, and for a project of dbt that is not compiled.
    """
    given = Path(path)
    if path == "-" or not os.path.isdir(path) or any((given / name).is_file() for name in PROJECT_FILES):
        return [path]
    refuse_uncompiled(given)
    found = sorted(str(each) for each in given.rglob("*") if each.suffix in (SQL_SUFFIX, *SUFFIXES) and each.is_file())
    if not found:
        raise InvalidRequest(
            f"holds no file *{', *'.join((SQL_SUFFIX, *SUFFIXES))}", field=path, remedy="Name a file, or another one"
        )
    return found


def _is_project(path: str) -> bool:
    given = Path(path)
    return given.name in (*PIPELINE_FILES, _MANIFEST) or os.path.isdir(path)
