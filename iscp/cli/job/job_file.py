"""Job files: YAML documents (or lists of them) that say what `job register` takes, and where each fault is.

A job is written as the options are named (table, name, target, key, …), or with `spec` holding a whole job_spec.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import yaml

from iscp.adapters.tls.endpoint import REGISTRATIONS_MAX
from iscp.cli.shell.arguments import absolute_table, absolute_target, parse_duration_s, split_columns
from iscp.cli.shell.untrusted_yaml import SafeLoader, refuse_vast
from iscp.core.api.api_requests import JobName, RegisterRequest
from iscp.core.api.api_views import JobView
from iscp.core.run.wanted import Wanted
from iscp.core.spec.spec import JobSpec
from iscp.core.spec.spec_fields import DURATIONS, PATHS, flat_name, flatten, to_spec_json
from iscp.core.spec.spec_parsing import parse_spec
from iscp.core.spec.view_fields import REFRESH_POLICIES, VIEW_KIND
from iscp.core.values.errors import InvalidRequest
from iscp.core.values.ids import DEFAULT_ACCOUNT

_NAMING = {"table", "name", "account"}
_FLAT = set(PATHS)
_PLAIN = "Use texts, numbers, lists and mappings, none of which holds itself"
_CONSUMER_DEFAULT = "replica"

FILE_CHARS_MAX = 100_000_000
"""Characters of a job file; a longer one is refused. 100,000 jobs have a fifth of it."""

SUFFIXES = (".json", ".yaml", ".yml")


class _Loader(SafeLoader):  # type: ignore[misc, valid-type]
    """Refuses a field that is given twice, of which YAML itself would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the field {key.value!r} is given twice", key.start_mark
                )
            seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def read_paths(paths: Sequence[str]) -> list[Wanted]:
    """Return all jobs of files and of those named *.yaml, *.yml and *.json below directories; `-` is stdin.

    Raises InvalidRequest whose field is the path of the first fault.
    """
    return [wanted for path in paths for file in _files(path) for wanted in _read_file(file)]


def _files(path: str) -> list[Path]:
    given = Path(path)
    if not path or not os.path.isdir(path):
        return [given]
    found = sorted(file for file in given.rglob("*") if file.suffix in SUFFIXES and file.is_file())
    if not found:
        raise InvalidRequest(f"holds no file *{', *'.join(SUFFIXES)}", field=path, remedy="Name a file, or another one")
    return found


def _read_file(path: Path) -> list[Wanted]:
    if str(path) == "-":
        return _parse_jobs(sys.stdin, "stdin")
    try:
        with path.open(encoding="utf-8") as stream:
            return _parse_jobs(stream, str(path))
    except OSError as error:
        raise InvalidRequest(
            f"cannot be read: {error.strerror or error}", field=str(path), remedy="Name a file that you may read"
        ) from error


def read_jobs(stream: IO[str], source: str) -> list[RegisterRequest]:
    """Return all jobs of a file; raises InvalidRequest whose field is the path of the first fault, as
    `job.yaml[1].key`.
    """
    found = _parse_jobs(stream, source)
    if len(found) > REGISTRATIONS_MAX:
        raise InvalidRequest(
            f"holds {len(found)} jobs, more than {REGISTRATIONS_MAX}",
            field=source,
            remedy="Split it, or use `iscp-admin apply`",
        )
    return [each.request for each in found]


def _parse_jobs(stream: IO[str], source: str) -> list[Wanted]:
    try:
        text = stream.read(FILE_CHARS_MAX + 1)
        if len(text) > FILE_CHARS_MAX:
            raise InvalidRequest(f"has more than {FILE_CHARS_MAX} characters", field=source, remedy="Split it")
        refuse_vast(text, source)
        documents = list(yaml.load_all(text, _Loader))
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no UTF-8, or a number or time that there is not
        raise InvalidRequest(
            f"is not YAML: {error}", field=source, remedy="Correct it; `iscp-admin explain` shows what a job has"
        ) from error
    entries = [entry for document in documents for entry in _entries(document)]
    if not entries:
        raise InvalidRequest("holds no job", field=source, remedy="Write at least table, name and target")
    places = (f"{source}[{number}]" for number in range(len(entries)))
    return [Wanted(_request(entry, place), place) for entry, place in zip(entries, places, strict=True)]


def entry_of(job: JobView) -> dict[str, Any]:
    """Return a job as a file says it."""
    account = {} if job.account == DEFAULT_ACCOUNT else {"account": job.account}
    fields = flatten(job.spec_json)
    if fields.get("consumer") == _CONSUMER_DEFAULT:
        del fields["consumer"]
    return {"table": job.table, "name": job.name, **account, **fields}


def _entries(document: Any) -> Iterator[Any]:
    if isinstance(document, list):
        yield from document
    elif document is not None:
        yield document


def _request(entry: Any, path: str) -> RegisterRequest:
    if not isinstance(entry, dict):
        raise InvalidRequest("must be a mapping", field=path, remedy="Write fields as in `table: /data/orders`")
    known = _NAMING | ({"spec"} if "spec" in entry else _FLAT)
    for name in entry:
        if name not in known:
            raise InvalidRequest(
                "is not a known field", field=f"{path}.{name}", remedy=f"Known are {', '.join(sorted(known))}"
            )
    job = JobName(
        absolute_table(_text(entry, "table", path, required=True)),
        _text(entry, "name", path, required=True),
        _text(entry, "account", path) or DEFAULT_ACCOUNT,
    )
    return RegisterRequest(job, _spec(entry, path))


def _spec(entry: dict[str, Any], path: str) -> str:
    if "spec" in entry:
        spec = entry["spec"]
        consumer = _check(spec, path).consumer
        if consumer.target:
            spec["iteration"]["consumer"]["target"] = absolute_target(consumer.target)
        return json.dumps(spec, default=str)
    fields = {name: value for name, value in entry.items() if name not in _NAMING}
    fields["consumer"] = fields.get("consumer") or _CONSUMER_DEFAULT
    # Some consumers can do without one; those that cannot say so.
    target = _text(entry, "target", path, required=fields["consumer"] == _CONSUMER_DEFAULT)
    fields["target"] = absolute_target(target)
    if fields["consumer"] == VIEW_KIND:
        fields["options"] = _view_options(fields.get("options"), f"{path}.options")
    for name in fields.keys() & {"key", "columns"}:
        fields[name] = _columns(entry, name, path)
    for name in fields.keys() & DURATIONS:
        fields[name] = _duration_s(entry, name, path)
    try:
        spec_json = to_spec_json(fields)
        parse_spec(spec_json)
    except InvalidRequest as error:
        # Named as it was written, not as the spec nests it.
        place = path if error.field == "spec" else f"{path}.{flat_name(error.field)}"
        raise InvalidRequest.from_error(error, field=place) from error
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"cannot be written as JSON: {error}", field=path, remedy=_PLAIN) from error
    return spec_json


def _view_options(options: Any, path: str) -> dict[str, Any]:
    """Return the options with absolute paths of tables; the query itself is for the node to check.

    Raises InvalidRequest with the place below `path` that is at fault.
    """
    if not isinstance(options, Mapping):
        raise InvalidRequest("is missing", field=path, remedy="Write `options: {sql: SELECT …, tables: {name: URI}}`")
    if not isinstance(sql := options.get("sql"), str) or not sql.strip():
        raise InvalidRequest("is missing", field=f"{path}.sql", remedy="Write `sql: SELECT …`")
    tables = options.get("tables")
    if not isinstance(tables, Mapping) or not tables:
        raise InvalidRequest("is missing", field=f"{path}.tables", remedy="Write `tables: {orders: /lake/orders}`")
    for name, uri in tables.items():
        if not isinstance(name, str) or not isinstance(uri, str) or not uri:
            raise InvalidRequest("must be a text", field=f"{path}.tables.{name}", remedy="Write as in orders: /lake/o")
    if options.get("refresh", REFRESH_POLICIES[0]) not in REFRESH_POLICIES:
        raise InvalidRequest("is not known", field=f"{path}.refresh", remedy=f"Use {', '.join(REFRESH_POLICIES)}")
    return {**options, "tables": {name: absolute_table(uri) for name, uri in tables.items()}}


def _check(spec: Any, path: str) -> JobSpec:
    try:
        return parse_spec(json.dumps(spec, default=str))
    except InvalidRequest as error:
        raise InvalidRequest.from_error(error, field=f"{path}.{error.field}") from error
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"cannot be written as JSON: {error}", field=f"{path}.spec", remedy=_PLAIN) from error


def _text(entry: dict[str, Any], name: str, path: str, *, required: bool = False) -> str:
    value = entry.get(name)
    if value is None and not required:
        return ""
    if value is None or value == "":
        raise InvalidRequest("is missing", field=f"{path}.{name}", remedy=f"Add `{name}: …`")
    if not isinstance(value, str):
        raise InvalidRequest("must be a text", field=f"{path}.{name}", remedy=f'Quote it: "{value}"')
    return value


def _duration_s(entry: dict[str, Any], name: str, path: str) -> Any:
    value = entry[name]
    if not isinstance(value, str):
        return value
    try:
        return parse_duration_s(value)
    except ValueError as error:
        raise InvalidRequest(
            f"{value!r} {error}", about=f"{path}.{name}", remedy="Write it as in 500ms, 60s, 2m or 1h30m"
        ) from error


def _columns(entry: dict[str, Any], name: str, path: str) -> list[str] | None:
    value = entry.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        value = list(split_columns(value)) or [""]
    if not isinstance(value, list) or not all(isinstance(column, str) and column for column in value):
        raise InvalidRequest("must be a list of column names", field=f"{path}.{name}", remedy=f"Write `{name}: [a, b]`")
    return value or None
