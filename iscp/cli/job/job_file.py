"""Job files: YAML documents (or lists of them) that say what `job register` takes, and where each fault is.

A job is written as the options are named (table, name, target, key, …), or with `spec` holding a whole job_spec.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml

from iscp.cli.job.explain_command import NAMING
from iscp.cli.shell.arguments import absolute_table, absolute_target, parse_duration_s, split_columns
from iscp.cli.shell.untrusted_yaml import SafeLoader, refuse_vast
from iscp.model.api.api_requests import JobName, JobView, RegisterRequest
from iscp.model.run.run_plan import Wanted
from iscp.model.spec.spec import DURATIONS, PATHS, SET, flat_name, flatten, to_spec_json
from iscp.model.spec.spec_parsing import REFRESH_POLICIES, VIEW_KIND, check_set, spec_faults, unknown_field
from iscp.model.values.errors import InvalidRequest
from iscp.model.values.ids import DEFAULT_ACCOUNT
from iscp.model.values.untrusted_values import Refusals
from iscp.system.tls.tls_files import REGISTRATIONS_MAX

_FLAT = set(PATHS)
_PLAIN = "Use texts, numbers, lists and mappings, none of which holds itself"
_CONSUMER_DEFAULT = "replica"

FILE_CHARS_MAX = 100_000_000
"""Characters of a job file; a longer one is refused. 100,000 jobs have a fifth of it."""

SUFFIXES = (".json", ".yaml", ".yml")


_APPLY_ALONE = "Use `iscp-admin apply`, which alone knows sets"


@dataclass(frozen=True, slots=True)
class NamedSet:
    """The name by which a file says whose its jobs are, and where it does."""

    name: str
    place: str


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


def read_job_file(path: Path) -> tuple[list[Wanted], list[NamedSet]]:
    """Return the jobs of a file, and the sets that it names; `-` is stdin.

    Raises InvalidRequest whose field is the path of the first fault, with every other one beside it.
    """
    if str(path) == "-":
        return _parse_file(sys.stdin, "stdin")
    try:
        with path.open(encoding="utf-8") as stream:
            return _parse_file(stream, str(path))
    except OSError as error:
        raise InvalidRequest(
            f"cannot be read: {error.strerror or error}", field=str(path), remedy="Name a file that you may read"
        ) from error


def read_jobs(stream: IO[str], source: str) -> list[RegisterRequest]:
    """Return all jobs of a file; raises InvalidRequest whose field is the path of the first fault, as
    `job.yaml[1].key`, with every other one beside it.
    """
    found, sets = _parse_file(stream, source)
    if sets:
        raise InvalidRequest(f"names the set {sets[0].name}", field=sets[0].place, remedy=_APPLY_ALONE)
    if len(found) > REGISTRATIONS_MAX:
        raise InvalidRequest(
            f"holds {len(found)} jobs, more than {REGISTRATIONS_MAX}",
            field=source,
            remedy="Split it, or use `iscp-admin apply`",
        )
    return [each.request for each in found]


def _parse_file(stream: IO[str], source: str) -> tuple[list[Wanted], list[NamedSet]]:
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
    refusals, wanted, sets = Refusals(), list[Wanted](), list[NamedSet]()
    for number, entry in enumerate(entries):
        place = f"{source}[{number}]"
        with refusals.collect():
            if isinstance(entry, dict) and entry.keys() == {SET}:
                sets.append(_named_set(entry, f"{place}.{SET}"))
            else:
                wanted.append(_wanted(entry, place))
    refusals.raise_all()
    return wanted, sets


def _named_set(entry: dict[str, Any], place: str) -> NamedSet:
    name = _text(entry, SET, place.removesuffix(f".{SET}"), required=True)
    check_set(name, place)
    return NamedSet(name, place)


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


def _wanted(entry: Any, path: str) -> Wanted:
    if not isinstance(entry, dict):
        raise InvalidRequest("must be a mapping", field=path, remedy="Write fields as in `table: /data/orders`")
    refusals = Refusals()
    known = NAMING.keys() | ({"spec", "tags"} if "spec" in entry else _FLAT)
    for name in entry:
        if name not in known:
            refusals.add(unknown_field(name, path, known))
    texts = dict.fromkeys(("table", "name", "account"), "")
    for name in texts:
        with refusals.collect():
            texts[name] = _text(entry, name, path, required=name != "account")
    spec = _spec(entry, path, known, refusals)
    refusals.raise_all()
    job = JobName(absolute_table(texts["table"]), texts["name"], texts["account"] or DEFAULT_ACCOUNT)
    return Wanted(RegisterRequest(job, spec), path)


def _spec(entry: dict[str, Any], path: str, known: set[str], refusals: Refusals) -> str:
    """Return the job_spec of an entry, or note in `refusals` what is wrong with it."""
    tags = [entry["tags"]] if isinstance(entry.get("tags"), str) else entry.get("tags")
    if "spec" in entry:
        spec = entry["spec"]
        return _whole_spec(
            {**spec, "tags": tags} if tags is not None and isinstance(spec, dict) else spec, path, refusals
        )
    fields = {name: value for name, value in entry.items() if name in known - NAMING.keys()}
    fields |= {"consumer": fields.get("consumer") or _CONSUMER_DEFAULT, "tags": tags}
    with refusals.collect():
        # Some consumers can do without one; those that cannot say so.
        fields["target"] = absolute_target(
            _text(entry, "target", path, required=fields["consumer"] == _CONSUMER_DEFAULT)
        )
    if fields["consumer"] == VIEW_KIND:
        with refusals.collect():
            fields["options"] = _view_options(fields.get("options"), f"{path}.options")
    for names, read in (({"key", "columns"}, _columns), (DURATIONS, _duration_s)):
        for name in sorted(fields.keys() & names):
            with refusals.collect():
                fields[name] = read(entry, name, path)
    try:
        spec_json = to_spec_json(fields)
    except InvalidRequest as error:
        refusals.add(InvalidRequest.from_error(error, field=path))
        return ""
    except (TypeError, ValueError) as error:
        refusals.add(InvalidRequest(f"cannot be written as JSON: {error}", field=path, remedy=_PLAIN))
        return ""
    said = {error.field for error in refusals.found}
    for fault in spec_faults(spec_json):
        # Named as it was written, not as the spec nests it; what the file alone refuses is not said twice.
        place = path if fault.field == "spec" else f"{path}.{flat_name(fault.field)}"
        if place not in said:
            refusals.add(InvalidRequest.from_error(fault, field=place))
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


def _whole_spec(spec: Any, path: str, refusals: Refusals) -> str:
    try:
        found = spec_faults(json.dumps(spec, default=str))
        for error in found:
            refusals.add(InvalidRequest.from_error(error, field=f"{path}.{error.field}"))
        if found:
            return ""
        consumer = spec["iteration"]["consumer"]
        if target := consumer.get("target"):
            consumer["target"] = absolute_target(target)
        return json.dumps(spec, default=str)
    except (TypeError, ValueError) as error:
        refusals.add(InvalidRequest(f"cannot be written as JSON: {error}", field=f"{path}.spec", remedy=_PLAIN))
        return ""


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
