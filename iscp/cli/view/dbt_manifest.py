"""Read a `manifest.json` of dbt: those of its models that have `iscp` in their `meta`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iscp.cli.shell.arguments import parse_duration_s
from iscp.cli.view.other_dialects import SPARK_ADAPTERS, in_spark
from iscp.cli.view.sql_tokens import SqlSource
from iscp.cli.view.view_options import read_text
from iscp.cli.view.view_statements import ImportedViews, ViewStatement
from iscp.core.spec.view_fields import REFRESH_POLICIES, view_text
from iscp.core.values.errors import InvalidRequest

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
            run = {each: _seconds(fields[each]) for each in ("every", "target_lag") if each in fields}
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
        found.views.append(
            ViewStatement(name=name, query=query, place=place, refresh=refresh, run=run, tags=_tags(node))
        )


def _tags(node: dict[str, Any]) -> tuple[str, ...]:
    """Return the tags of a model, with those of its folders: dbt writes all of them into the node."""
    tags = node.get("tags")
    return tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else ()


def _seconds(value: object) -> float:
    return parse_duration_s(str(value))
