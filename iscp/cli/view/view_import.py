"""`iscp-admin view import`: the views of a Spark Declarative Pipelines project, or of a dbt manifest."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from iscp.cli.job.apply import CHECK_TIMEOUT_S
from iscp.cli.shell.arguments import anywhere, invocation
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.terminal import say
from iscp.cli.view.view_apply import project_options, warn_of_unkept
from iscp.core.values.errors import InvalidRequest
from iscp.core.values.untrusted_values import one_line

if TYPE_CHECKING:
    from iscp.cli.view.imported_views import ImportedViews


@click.command(name="import")
@click.argument("project", type=click.Path(), metavar="PATH")
@project_options
@anywhere
@invocation
def import_views(
    invocation: Invocation,
    /,
    project: str,
    tables: dict[str, str],
    target_root: str,
    timeout_s: float,
    account: str,
    **flags: Any,
) -> None:
    """Take over the materialized views of a Spark Declarative Pipelines project or a dbt project.

    PATH is a directory with a spark-pipeline.yml or a target/manifest.json, or such a file. Of a pipeline it is the
    views in SQL, and functions of Python that do nothing but return spark.sql("…"); of dbt the compiled models that
    have iscp in their meta. Nothing of the project is run. What cannot be taken over is listed.
    """
    from iscp.cli.view.view_order import TablePlaces, place_views
    from iscp.cli.view.view_plan import PlanOptions, apply_views, targets_of_views

    found = read_project(project)
    if invocation.output != "json":
        for each in found.left_out:
            say(one_line(f"left out: {each.place}: {each.name} {each.why}"), err=True)
        warn_of_unkept(found.views)
    if not found.views:
        raise InvalidRequest(
            f"holds no view that can be taken over ({len(found.left_out)} are left out)",
            field=project or "PATH",
            remedy="Write views as CREATE MATERIALIZED VIEW; of dbt, set meta.iscp of the models",
        )
    with invocation.client() as client:
        known = {name.casefold(): uri for name, uri in tables.items()}
        places = TablePlaces(target_root, known, targets_of_views(client, account), found.aliases)
        views = place_views(found.views, places)
        more = {"left_out": [dataclasses.asdict(each) for each in found.left_out]}
        check_timeout_s = invocation.within_s(CHECK_TIMEOUT_S)
        options = PlanOptions(account, timeout_s=timeout_s, check_timeout_s=check_timeout_s, more=more, **flags)
        apply_views(invocation, client, views, options)


def read_project(project: str) -> ImportedViews:
    """Raises InvalidRequest for a path where there is none."""
    from iscp.cli.view.dbt_manifest import read_manifest
    from iscp.cli.view.spark_pipeline import PIPELINE_FILES, read_pipeline

    path = Path(project)
    try:
        if project and path.is_dir():
            candidates = [path / name for name in (*PIPELINE_FILES, "manifest.json", "target/manifest.json")]
            path = next((each for each in candidates if each.is_file()), path)
        readable = bool(project) and path.is_file()
    except (OSError, ValueError):
        readable = False
    if not readable:
        raise InvalidRequest(
            "is no project", field=project or "PATH", remedy="Name a spark-pipeline.yml or a manifest.json of dbt"
        )
    return read_manifest(path) if path.suffix == ".json" else read_pipeline(path)
