"""The JSON Schema of the chart's values: a wrong name or value fails at the install, by its name.

The chart's own values have the types of their defaults, and what `RULES` adds. `config` has those of the node's
settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

from iscp.model.settings.config import Setting, settings
from tests.chart.values_file import Value

SET_BY_THE_CHART = frozenset(
    {
        *(
            "node_id",
            "listen",
            "advertise",
            "data_dir",
            "gateway.listen",
            "page.listen",
            "health.listen",
            "metrics.listen",
        ),
        *("security.tls.ca_file", "security.tls.cert_file", "security.tls.key_file"),
        *("etcd.endpoints", "etcd.user", "etcd.password", "etcd.ca_file", "etcd.cert_file", "etcd.key_file"),
    }
)
"""Settings of the node that are no values: the chart gives them."""

Schema = dict[str, Any]

_TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
_PORT: Schema = {"minimum": 1, "maximum": 65535}
_QUANTITY: Schema = {"type": ["string", "number"], "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"}
_QUANTITIES: Schema = {"type": "object", "additionalProperties": _QUANTITY}
_RESOURCES: Schema = {
    "additionalProperties": False,
    "properties": {"requests": _QUANTITIES, "limits": _QUANTITIES, "claims": {"type": "array"}},
}


def _items(required: Iterable[str], properties: Mapping[str, Any], *, others: bool = False) -> Schema:
    item = {
        "type": "object",
        "required": [*required],
        "properties": dict(properties),
        "additionalProperties": others,
    }
    return {"items": item}


_NAME: Schema = {"type": "string", "minLength": 1}
_TOLERATIONS = _items(
    (),
    {
        "key": {"type": "string"},
        "operator": {"enum": ["Exists", "Equal"]},
        "value": {"type": "string"},
        "effect": {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
        "tolerationSeconds": {"type": "integer"},
    },
)
_PEERS = {"podSelector": {"type": "object"}, "namespaceSelector": {"type": "object"}, "ipBlock": {"type": "object"}}
_DIGEST: Schema = {"pattern": "^(sha256:[0-9a-f]{64})?$"}
_ISSUER_KIND: Schema = {"enum": ["Issuer", "ClusterIssuer"]}
_HOURS: Schema = {"pattern": "^[0-9]+h$"}
_PULL_POLICY: Schema = {"enum": ["Always", "IfNotPresent", "Never"]}

RULES: Mapping[str, Schema] = {
    "replicas": {"minimum": 1, "maximum": 1000},
    "image.digest": _DIGEST,
    "image.pullPolicy": _PULL_POLICY,
    "image.pullSecrets": {"items": _NAME},
    "extraEnv": _items(["name"], {"name": _NAME, "value": {"type": "string"}, "valueFrom": {"type": "object"}}),
    "extraEnvFrom": _items(
        (), {"prefix": {"type": "string"}, "configMapRef": {"type": "object"}, "secretRef": {"type": "object"}}
    ),
    "extraVolumes": _items(["name"], {"name": _NAME}, others=True),
    "extraVolumeMounts": _items(
        ["name", "mountPath"],
        {
            "name": _NAME,
            "mountPath": {"type": "string", "pattern": "^/"},
            "subPath": {"type": "string"},
            "subPathExpr": {"type": "string"},
            "readOnly": {"type": "boolean"},
            "mountPropagation": {"enum": ["None", "HostToContainer", "Bidirectional"]},
        },
    ),
    "scratch.sizeLimit": _QUANTITY,
    "initContainers": _items(["name", "image"], {"name": _NAME, "image": _NAME}, others=True),
    "tls.certManager.issuerKind": _ISSUER_KIND,
    "tls.certManager.duration": _HOURS,
    "s3.bucketSecrets": {
        "patternProperties": {r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$": _NAME},
        "additionalProperties": False,
    },
    "s3.webIdentity.roleArn": {"pattern": r"^(arn:\S+)?$"},
    "s3.webIdentity.audience": {"minLength": 1},
    "s3.webIdentity.tokenSeconds": {"minimum": 600},
    "etcd.endpoints": {"items": {"type": "string", "pattern": r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$"}},
    "etcd.replicas": {"enum": [1, 3, 5]},
    "etcd.tls.certManager.issuerKind": _ISSUER_KIND,
    "etcd.tls.certManager.duration": _HOURS,
    "etcd.image.digest": _DIGEST,
    "etcd.image.repository": {"minLength": 1},
    "etcd.image.tag": {"minLength": 1},
    "etcd.image.pullPolicy": _PULL_POLICY,
    "etcd.storage.size": _QUANTITY,
    "etcd.quotaBytes": {"minimum": 64 * 1024**2},
    "etcd.resources": _RESOURCES,
    "etcd.nodeSelector": _TEXTS,
    "etcd.tolerations": _TOLERATIONS,
    "service.type": {"enum": ["ClusterIP", "LoadBalancer", "NodePort"]},
    "service.port": _PORT,
    "service.annotations": _TEXTS,
    "gateway.port": _PORT,
    "page.port": _PORT,
    "metrics.clients": _items((), _PEERS),
    "metrics.serviceMonitor.interval": {"pattern": "^[0-9]+(s|m)$"},
    "metrics.serviceMonitor.labels": _TEXTS,
    "metrics.rules.labels": _TEXTS,
    "metrics.dashboard.labels": _TEXTS,
    "ingress.port": {"enum": ["grpc", "http", "page"]},
    "ingress.annotations": _TEXTS,
    "jobs": _items(["table", "name"], {"table": _NAME, "name": _NAME}, others=True),
    "views.tables": _TEXTS,
    "apply.timeoutSeconds": {"minimum": 30},
    "serviceAccount.annotations": _TEXTS,
    "networkPolicy.clients": _items((), _PEERS),
    "networkPolicy.egress": _items(
        (), {"to": {"type": "array", **_items((), _PEERS)}, "ports": {"type": "array", "items": {"type": "object"}}}
    ),
    "podDisruptionBudget.maxUnavailable": {"minimum": 1},
    "spread": {"enum": ["soft", "hard"]},
    "probes.startupSeconds": {"minimum": 30},
    "probes.livenessSeconds": {"minimum": 10},
    "resources": _RESOURCES,
    "runAsUser": {"type": ["integer", "null"], "minimum": 1},
    "affinity": {
        "additionalProperties": False,
        "properties": {each: {"type": "object"} for each in ("nodeAffinity", "podAffinity", "podAntiAffinity")},
    },
    "nodeSelector": _TEXTS,
    "tolerations": _TOLERATIONS,
    "podLabels": _TEXTS,
    "podAnnotations": _TEXTS,
}
"""What the type of a value's default does not say of it."""


def values_schema(values: Iterable[Value]) -> Schema:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_section(values, {"global": {"type": "object"}}),  # Helm gives it to every chart
    }


def _section(values: Iterable[Value], others: Mapping[str, Schema] | None = None) -> Schema:
    properties = {value.path.rpartition(".")[2]: _value(value) for value in values}
    return {"type": "object", "additionalProperties": False, "properties": {**properties, **(others or {})}}


def _value(value: Value) -> Schema:
    described = {"description": value.text} if value.text else {}
    if value.path == "config":
        return {**described, **_settings()}
    if value.parts:
        return {**described, **_section(value.parts)}
    return {**described, **_json_type(value.default), **RULES.get(value.path, {"minimum": 0})}


def _json_type(default: Any) -> Schema:
    match default:
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case str():
            return {"type": "string"}
        case list():
            return {"type": "array"}
        case _:
            return {"type": "object"}


def _settings() -> Schema:
    root: Schema = {"type": "object", "additionalProperties": False, "properties": {}}
    for setting in settings():
        if setting.path in SET_BY_THE_CHART:
            continue
        section = root
        *sections, name = setting.path.split(".")
        for each in sections:
            empty: Schema = {"type": "object", "additionalProperties": False, "properties": {}}
            section = section["properties"].setdefault(each, empty)
        section["properties"][name] = _setting(setting)
    return root


def _setting(setting: Setting) -> Schema:
    bounds: Schema = {}
    if setting.least is not None:
        bounds["minimum"] = setting.least
    if setting.above is not None:
        bounds["exclusiveMinimum"] = setting.above
    return {"description": setting.text, **_setting_type(setting.kind), **bounds}


def _names_of(kind: Any) -> frozenset[str]:
    return frozenset(each.name for each in fields(kind))


def _setting_type(kind: Any) -> Schema:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [each.value for each in kind]}
    if get_origin(kind) is tuple:
        return {"type": "array", "items": _setting_type(get_args(kind)[0])}
    if is_dataclass(kind):
        parts = {name: _setting_type(each) for name, each in get_type_hints(kind).items() if name in _names_of(kind)}
        return {"type": "object", "additionalProperties": False, "properties": parts}
    if get_origin(kind) is not None:
        return {"type": "object", "additionalProperties": _setting_type(get_args(kind)[1])}
    return {"type": {str: "string", int: "integer", float: "number", bool: "boolean"}[kind]}
