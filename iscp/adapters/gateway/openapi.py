"""The OpenAPI document of the gateway, made of the descriptors of the service `Admin`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor

_TEXT = {"type": "string"}
_LONG = {"type": "string", "format": "int64"}
_INT = {"type": "integer", "format": "int32"}
_TYPES: dict[int, dict[str, Any]] = {
    FieldDescriptor.TYPE_STRING: _TEXT,
    FieldDescriptor.TYPE_BYTES: {"type": "string", "format": "byte"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_DOUBLE: {"type": "number", "format": "double"},
    FieldDescriptor.TYPE_FLOAT: {"type": "number", "format": "float"},
    FieldDescriptor.TYPE_INT32: _INT,
    FieldDescriptor.TYPE_UINT32: {"type": "integer", "format": "int64", "minimum": 0},
    FieldDescriptor.TYPE_INT64: _LONG,
    FieldDescriptor.TYPE_UINT64: _LONG,
}

ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"code": _INT, "name": _TEXT, "field": _TEXT, "message": _TEXT, "remedy": _TEXT},
            "required": ["code", "name", "field", "message", "remedy"],
        }
    },
    "required": ["error"],
}


def document(methods: Iterable[MethodDescriptor], version: str) -> dict[str, Any]:
    """Return all methods as paths, and all messages that they use as schemas; 64-bit integers are strings, as in
    protobuf.
    """
    schemas: dict[str, Any] = {"Error": ERROR_SCHEMA}
    paths = {}
    for method in methods:
        for message in (method.input_type, method.output_type):
            _add_schema(message, schemas)
        paths[path_of(method)] = {"post": _operation(method)}
    return {
        "openapi": "3.0.3",
        "info": {"title": "iscp Admin", "version": version, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def path_of(method: MethodDescriptor) -> str:
    return f"/v1/{method.name}"


def media_type(method: MethodDescriptor) -> str:
    """Return the media type of the method's answers: a stream has a line for each message."""
    return "application/x-ndjson" if method.server_streaming else "application/json"


def _operation(method: MethodDescriptor) -> dict[str, Any]:
    answer = {media_type(method): {"schema": _reference(method.output_type.name)}}
    return {
        "operationId": method.name,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _reference(method.input_type.name)}},
        },
        "responses": {
            "200": {"description": method.output_type.name, "content": answer},
            "default": {"description": "An error", "content": {"application/json": {"schema": _reference("Error")}}},
        },
    }


def _add_schema(message: Descriptor, schemas: dict[str, Any]) -> None:
    if message.name in schemas:
        return
    properties: dict[str, Any] = {}
    schemas[message.name] = {"type": "object", "properties": properties, "additionalProperties": False}
    for each in message.fields:
        properties[each.name] = _field_schema(each, schemas)


def _field_schema(field: FieldDescriptor, schemas: dict[str, Any]) -> dict[str, Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value = field.message_type.fields_by_name["value"]
        return {"type": "object", "additionalProperties": _single(value, schemas)}
    single = _single(field, schemas)
    return {"type": "array", "items": single} if field.is_repeated else single


def _single(field: FieldDescriptor, schemas: dict[str, Any]) -> dict[str, Any]:
    if field.message_type is not None:
        _add_schema(field.message_type, schemas)
        return _reference(field.message_type.name)
    if field.enum_type is not None:
        return {"type": "string", "enum": [each.name for each in field.enum_type.values]}
    return _TYPES[field.type]


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}
