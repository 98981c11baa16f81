"""`iscp run` as far as it goes without Spark: faults of files and options, and the status that it ends with."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from iscp.cli.iscp import iscp


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(iscp, ["run", *map(str, arguments)])


def jobs_file(root: Path, *jobs: tuple[str, str, str]) -> Path:
    """Write replicas, each as (table, name, target)."""
    lines = [f"- {{table: {root}/{table}, name: {name}, target: {root}/{to}, key: [id]}}" for table, name, to in jobs]
    path = root / "jobs.yaml"
    path.write_text("\n".join(lines))
    return path


def test_no_file_is_wrong_usage() -> None:
    assert run().exit_code == 2


@pytest.mark.parametrize("option", ["--dry-run", "--fail-fast"])
def test_a_watch_goes_with_no_option_of_runs_that_end(tmp_path: Path, option: str) -> None:
    result = run(jobs_file(tmp_path, ("t", "a", "a")), "--watch", option)
    assert result.exit_code == 2
    assert "--watch goes with neither" in result.output


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--page"], "--page goes with --watch alone"),
        (["--watch", "--page=7432"], "'7432' is not HOST:PORT"),
        (["--watch", "--page", "more.yaml"], "or --page behind all else"),
    ],
)
def test_a_page_is_of_a_watch_alone_and_has_an_address(tmp_path: Path, options: list[str], fault: str) -> None:
    result = run(jobs_file(tmp_path, ("t", "a", "a")), *options)
    assert result.exit_code == 2
    assert fault in result.output


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "lake.example:0"])
def test_a_page_is_for_this_machine_alone(tmp_path: Path, address: str) -> None:
    """Nothing that has to be stopped has begun by then."""
    result = run(jobs_file(tmp_path, ("t", "a", "a")), "--watch", f"--page={address}")
    assert result.exit_code == 1
    assert f"is reached from other machines at {address}" in result.output
    assert "field: --page" in result.output


def test_the_port_of_a_page_may_be_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = run(jobs_file(tmp_path, ("t", "a", "a")), "--watch", f"--page=127.0.0.1:{port}")
    assert result.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in result.output
    assert "field: --page" in result.output


@pytest.mark.parametrize("count", ["0", "65", "x"])
def test_a_number_of_units_that_makes_no_sense_is_wrong_usage(tmp_path: Path, count: str) -> None:
    assert run(jobs_file(tmp_path, ("t", "a", "a")), "--parallel", count).exit_code == 2


def test_a_missing_table_fails_its_job_and_skips_its_readers(tmp_path: Path) -> None:
    result = run(jobs_file(tmp_path, ("missing", "a", "a"), ("a", "b", "b")))
    assert result.exit_code == 1
    assert "1 failed, 1 skipped" in result.output
    assert f"{tmp_path}/missing" in result.output
    assert "reads the target of 'a', which failed" in result.output
    assert sorted(each.name for each in tmp_path.iterdir()) == ["jobs.yaml"]


def test_programs_get_an_object_for_each_job(tmp_path: Path) -> None:
    result = run(jobs_file(tmp_path, ("missing", "a", "a"), ("a", "b", "b")), "-o", "json")
    assert result.exit_code == 1
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(each["name"], each["state"]) for each in found] == [("a", "failed"), ("b", "skipped")]


def test_a_dry_run_says_what_would_be_refused(tmp_path: Path) -> None:
    result = run(jobs_file(tmp_path, ("missing", "a", "a")), "--dry-run")
    assert result.exit_code == 1
    assert "would be: 1 refused" in result.output


def test_a_circle_is_named_before_anything_is_begun(tmp_path: Path) -> None:
    result = run(jobs_file(tmp_path, ("b", "a", "a"), ("a", "b", "b")))
    assert result.exit_code == 1
    assert "is in a circle" in result.output
    assert "failed" not in result.output


def test_two_jobs_with_one_target_are_refused(tmp_path: Path) -> None:
    result = run(jobs_file(tmp_path, ("t", "a", "x"), ("t", "b", "x")))
    assert result.exit_code == 1
    assert "has the target of 'a'" in result.output


def test_names_that_no_job_can_have_are_all_said_before_anything_is_begun(tmp_path: Path) -> None:
    path = jobs_file(tmp_path, ("missing", '"a*b"', "a"), ("missing", "good", "b"), ("missing", '"-c"', "c"))
    result = run(path)
    assert result.exit_code == 1
    for number, name in ((0, "a*b"), (2, "-c")):
        assert f"{path}[{number}].job.name is {name!r}, which commands would take for a pattern" in result.output
    assert "failed" not in result.output


def test_a_trigger_that_is_not_allowed_is_said_before_anything_is_begun(tmp_path: Path) -> None:
    path = tmp_path / "jobs.yaml"
    job = f"{{table: {tmp_path}/missing, name: a, target: {tmp_path}/a, key: [id]"
    path.write_text(f"- {job}, trigger: custom, trigger_name: nightly}}")
    result = run(path)
    assert result.exit_code == 1
    assert "'nightly' is not allowed" in result.output
    assert "failed" not in result.output


def test_a_pattern_that_fits_no_job_is_refused(tmp_path: Path) -> None:
    result = run(jobs_file(tmp_path, ("t", "a", "a")), "--select", "b*")
    assert result.exit_code == 1
    assert "fits no job of these files" in result.output


def test_only_jobs_that_are_selected_are_run(tmp_path: Path) -> None:
    path = jobs_file(tmp_path, ("t", "sales.a", "a"), ("t", "sales.b", "b"), ("t", "c", "c"))
    result = run(path, "--select", "sales.*", "--exclude", "*.b", "-o", "json")
    assert [json.loads(line)["name"] for line in result.stdout.splitlines()] == ["sales.a"]
