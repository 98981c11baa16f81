"""`iscp-admin explain`: fields as they are written, without a node."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from iscp.cli.iscp_admin import cli
from iscp.cli.job.json_schema import DIALECT
from iscp.core.spec.spec_fields import PATHS


def explain(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["explain", *arguments])


def test_a_field_has_type_default_bounds_and_meaning() -> None:
    assert [line.split(maxsplit=1) for line in explain("job.priority").stdout.splitlines()] == [
        ["field", "job.priority"],
        ["type", "whole number (from -1000 to 1000)"],
        ["default", "0"],
        ["about", "Iterations of a higher one go first"],
        ["same_as", "job.spec.iteration.priority"],
    ]
    shown = json.loads(explain("job.spec.trigger.schedule.interval", "-o", "json").stdout)
    assert (shown["type"], shown["default"], shown["same_as"]) == ("duration", None, "job.every")


def test_a_file_has_all_flat_fields_and_a_spec_all_nested_ones() -> None:
    flat = json.loads(explain("-o", "json").stdout)
    assert [each["field"] for each in flat] == [f"job.{name}" for name in ("table", "name", "account", "tags", *PATHS)]
    nested = json.loads(explain("job.spec", "-o", "json").stdout)
    assert [each["field"] for each in nested] == ["job.spec." + ".".join(path) for path in PATHS.values()]
    trigger = explain("job.spec.trigger").stdout.splitlines()
    assert len(trigger) == 8
    assert trigger[1].split()[:4] == ["job.spec.trigger.job_type", "default", "|", "greedy"]


@pytest.mark.parametrize(
    ("path", "words"), [("job.prio", "priority"), ("spec", "would be job"), ("job.key.x", "no field")]
)
def test_a_path_that_is_none_is_refused_with_those_that_are(path: str, words: str) -> None:
    result = explain(path)
    assert result.exit_code == 2
    assert words in result.stderr


def test_the_schema_is_printed_whole() -> None:
    schema = json.loads(explain("--json-schema").stdout)
    assert schema["$schema"] == DIALECT
    assert schema["$defs"]["spec"]["properties"]["target_lag"]["exclusiveMinimum"] == 0


def test_defaults_are_shown_in_every_format() -> None:
    assert "default: dead_letter\n" in explain("job.on_duplicate", "-o", "yaml").stdout
