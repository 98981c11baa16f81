"""Read a node's configuration: one TOML file, and `ISCP_*` variables, which win over it; and make Spark's settings of
it.

A variable's name is the setting's path in capitals, with two underscores for the dot: `ISCP_ETCD__LEASE_TTL_S`. This
module decides how values are written in files and variables; `iscp.model.settings.config` decides what is valid.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from iscp.app.registry import embedder_key_faults
from iscp.model.settings.config import NodeConfig, Setting, settings
from iscp.model.settings.config_faults import faults, range_fault
from iscp.model.settings.variables import NOT_SETTINGS, VARIABLE_PREFIX, is_service_link, setting_variable
from iscp.model.values.errors import ConfigurationError
from iscp.model.values.untrusted_values import SettingFault, name_hint
from iscp.spark.jvm_launch import SparkSettings
from iscp.storage.s3_settings import bucket_faults
from iscp.system.small_files import read_toml
from iscp.system.tls.certificate_watch import certificate_faults

# Of buckets and embedders too: somebody may write the key where its file is to be named.
_SECRET = frozenset({"embedders", "etcd.password", "notify.webhooks", "storage.s3.buckets"})
_UNKNOWN = "Remove it, or see docs/configuration.md"


@dataclass(slots=True)
class _Reading:
    """A `_Reading` is what was found so far: raw values by path, and everything that is wrong."""

    values: dict[str, Any] = field(default_factory=dict)
    faults: list[SettingFault] = field(default_factory=list)


def load_settings(file: Path | None, environ: Mapping[str, str]) -> NodeConfig:
    """Return the configuration from `file`, if there is one, and the variables of `environ`.

    Raises ConfigurationError with every fault there is, each by its path.
    """
    config, found = read_settings(file, environ)
    if found:
        raise _error(found)
    return config


def read_settings(file: Path | None, environ: Mapping[str, str]) -> tuple[NodeConfig, list[SettingFault]]:
    """Return the configuration, with the default for what is wrong or missing, and every fault there is.

    Raises ConfigurationError for a file that cannot be read at all.
    """
    known = {each.path: each for each in settings()}
    reading = _Reading()
    if file is not None:
        _read_table(_parse(file), "", known, reading)
    _read_variables(environ, known, reading)
    config: NodeConfig = _build(NodeConfig, "", _validate(known, reading))
    wrong = {fault.path for fault in reading.faults}
    reading.faults += [fault for fault in faults(config) if _setting_path(fault.path, known) not in wrong]
    return config, reading.faults


def check_files(config: NodeConfig, environ: Mapping[str, str]) -> NodeConfig:
    """Raises ConfigurationError where files that it names are unfit (certificates, keys), with every fault there is."""
    buckets = bucket_faults(config.storage.s3.buckets, environ)
    if found := [*certificate_faults(config), *buckets, *embedder_key_faults(config)]:
        raise _error(found)
    return config


def to_toml(config: NodeConfig) -> str:
    """Return a file that `load_settings` reads `config` from; what equals its default is left out."""
    sections: dict[str, list[str]] = {"": []}
    for setting in settings():
        section, _, name = setting.path.rpartition(".")
        value: Any = config
        for step in setting.path.split("."):
            value = getattr(value, step)
        if value == setting.default:
            continue
        if isinstance(value, Mapping):
            sections[setting.path] = [f"{_literal(key)} = {_literal(value[key])}" for key in sorted(value)]
        else:
            sections.setdefault(section, []).append(f"{name} = {_literal(value)}")
    plain = sections.pop("")
    lines = [*plain, *(line for name in sections for line in ("", f"[{name}]", *sections[name]))]
    return "\n".join(lines) + "\n"


def _literal(value: object) -> str:
    if is_dataclass(value) and not isinstance(value, type):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(key)} = {_literal(value[key])}" for key in sorted(value)) + "}"
    # For the other types of settings JSON is TOML, but for DEL, which no setting holds.
    return json.dumps(value, ensure_ascii=False)


def _parse(file: Path) -> dict[str, Any]:
    try:
        return read_toml(file)
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be read ({error.strerror})", remedy="Name a file that exists"
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"{file} {error}", remedy="See docs/configuration.md") from error


def _read_table(table: Mapping[str, Any], parent: str, known: Mapping[str, Setting], reading: _Reading) -> None:
    for name, value in table.items():
        path = parent + name
        if path in known:
            reading.values[path] = value
        elif not any(each.startswith(f"{path}.") for each in known):
            reading.faults.append(SettingFault(path, "is not a setting", name_hint(path, known) or _UNKNOWN))
        elif isinstance(value, Mapping):
            _read_table(value, f"{path}.", known, reading)
        else:
            reading.faults.append(
                SettingFault(path, "is a section, not a value", f"Write [{path}] and the settings below it")
            )


def _read_variables(environ: Mapping[str, str], known: Mapping[str, Setting], reading: _Reading) -> None:
    """Read the variables that begin with ISCP_, but for those that are known to be no settings."""
    by_name = {setting_variable(path): setting for path, setting in known.items()}
    for name in sorted(environ):
        if not name.startswith(VARIABLE_PREFIX) or name in NOT_SETTINGS:
            continue
        if setting := by_name.get(name):
            try:
                reading.values[setting.path] = _from_text(setting, environ[name])
            except (ValueError, RecursionError) as error:  # the last: nested too deep
                reading.faults.append(SettingFault(name, f"is not JSON: {error}", f"Write {_example(setting)}"))
                reading.values.pop(setting.path, None)
        elif not is_service_link(name):
            hint = name_hint(name, by_name, VARIABLE_PREFIX)
            reading.faults.append(SettingFault(name, "is not a setting", hint or _UNKNOWN))


def _from_text(setting: Setting, text: str) -> Any:
    """Lists may be written with commas between; sections like `spark.conf` as a JSON object."""
    match get_origin(setting.kind):
        case None:
            return text
        case kind if kind is tuple and not text.lstrip().startswith("["):
            return [part.strip() for part in text.split(",") if part.strip()]
        case _:
            return json.loads(text)


def _example(setting: Setting) -> str:
    return '["a:1", "b:2"]' if get_origin(setting.kind) is tuple else '{"name": "value"}'


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _validate(known: Mapping[str, Setting], reading: _Reading) -> dict[str, Any]:
    """Return a value for every setting: the default where it was not given or is wrong, so that the rest can be
    checked.
    """
    values = {}
    for path, setting in known.items():
        values[path] = "missing" if setting.required else setting.default
        if path not in reading.values:
            if setting.required and not any(fault.path == setting_variable(path) for fault in reading.faults):
                reading.faults.append(
                    SettingFault(path, "is missing", f"{setting.text}; {setting_variable(path)} sets it too")
                )
            continue
        try:
            value = _adapter(setting.kind).validate_python(reading.values[path])
        except ValidationError as error:
            reading.faults += _type_faults(path, error)
            continue
        if fault := range_fault(setting, value):
            reading.faults.append(fault)
        else:
            values[path] = value
    return values


def _type_faults(path: str, error: ValidationError) -> Iterator[SettingFault]:
    for each in error.errors(include_url=False, include_context=False):
        at = ".".join((path, *map(str, each["loc"])))
        # What was given is shown but for secrets; pydantic's own words say what would be right.
        given = "this value" if path in _SECRET else repr(each["input"])
        yield SettingFault.about(at, f"{given} will not do", each["msg"])


def _build(kind: Any, parent: str, values: Mapping[str, Any]) -> Any:
    hints = get_type_hints(kind)
    found = {}
    for each in fields(kind):
        path = parent + each.name
        section = is_dataclass(hints[each.name])
        found[each.name] = _build(hints[each.name], f"{path}.", values) if section else values[path]
    return kind(**found)


def _setting_path(path: str, known: Mapping[str, Setting]) -> str:
    """Return the path of the setting: `etcd.endpoints.0` is a part of the setting `etcd.endpoints`."""
    return path if path in known else path.rpartition(".")[0]


def _error(found: list[SettingFault]) -> ConfigurationError:
    if len(found) == 1:
        return found[0].error()
    lines = [str(fault.error()) for fault in found]
    return ConfigurationError("\n  ".join((f"{len(found)} settings are wrong:", *lines)))


def spark_settings(config: NodeConfig, work_dir: Path) -> SparkSettings:
    """Return the settings of Spark, made from those of a node."""
    catalog = {f"spark.sql.catalog.{name}": value for name, value in config.catalog.items()}
    return SparkSettings(
        work_dir=work_dir,
        master=config.spark.master,
        driver_memory_mb=config.spark.driver_memory_mb,
        conf={**catalog, **config.spark.conf},
        s3=config.storage.s3,
        insecure=config.security.insecure,
    )
