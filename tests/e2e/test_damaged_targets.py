"""Targets that are deleted or damaged while their sources stand still: noticed, reported, and rebuilt."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError

from tests.e2e.evidence import admin, admin_process
from tests.e2e.harness import Cluster, Job, append, assert_equal, read, upsert, wait_for

SEEN_S = 90.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


def built(cluster: Cluster, name: str) -> Job:
    rows = pa.table({"id": list(range(50)), "text": ["a"] * 50})
    job = cluster.replica(name, cluster.table(f"{name}_source", rows), key=["id"])
    cluster.settle(job)
    return job


def last_commit(job: Job) -> Path:
    return max(Path(job.target, "_delta_log").glob("*.json"))


def right(job: Job) -> bool:
    try:
        assert_equal(job.target, read(job.source))
    except (AssertionError, DeltaError, OSError):  # it is gone, or being built
        return False
    return True


@pytest.mark.spark
@pytest.mark.slow
def test_a_wait_does_not_say_applied_before_a_deleted_target_is_rebuilt(cluster: Cluster) -> None:
    job = built(cluster, "waited")
    rebuilt = cluster.node_events("target.rebuilt")
    shutil.rmtree(job.target)
    answer = admin(cluster.endpoint, "job", "wait", job.source, job.name, "--timeout", "90s")
    assert (answer.status, "is applied" in answer.out) == (0, True)
    assert_equal(job.target, read(job.source))
    assert cluster.node_events("target.rebuilt") == rebuilt + 1
    view = cluster.status(job)
    assert "rebuilt" in view.status.warning
    assert (view.state.value, view.lag_least_s) == ("completed", 0.0)


@pytest.mark.spark
def test_a_deleted_target_is_noticed_though_nobody_probes(cluster: Cluster) -> None:
    job = built(cluster, "idle")
    shutil.rmtree(job.target)
    wait_for("it is rebuilt", lambda: right(job), SEEN_S)
    assert cluster.node_events("target.doubted") > 0


@pytest.mark.spark
def test_a_job_that_is_deleted_with_its_target_is_there_until_that_is_gone(cluster: Cluster) -> None:
    job = built(cluster, "dropped")
    Path(job.target, "notes.txt").write_text("mine")
    command = ("job", "delete", job.source, job.name, "--delete-target")
    asked = admin_process(cluster.endpoint, *command)
    assert (asked.status, job.target in asked.err, len(read(job.target))) == (1, True, 50)
    assert admin(cluster.endpoint, *command, "--yes", "-o", "json").json == {"deleting": True}
    wait_for("the job is gone", lambda: not any(each["name"] == job.name for each in _listed(cluster)))
    assert [path.name for path in Path(job.target).iterdir()] == ["notes.txt"]
    again = cluster.replica(job.name, job.source, key=["id"])
    cluster.settle(again)
    assert right(again)


@pytest.mark.spark
def test_a_target_that_others_have_written_to_is_not_deleted(cluster: Cluster) -> None:
    job = built(cluster, "written_to")
    cluster.client.pause(job.source, job.name)
    append(job.target, read(job.source).slice(0, 1))
    assert cluster.client.unregister(job.source, job.name, delete_target=True)
    wait_for("the refusal", lambda: cluster.status(job).status.error_code)
    view = cluster.status(job)
    assert f"others have written to {job.target}, so that nothing was deleted" in view.status.error_msg
    assert (len(read(job.target)), view.status.deletion) == (51, "wanted")
    assert cluster.client.unregister(job.source, job.name)


@pytest.mark.spark
def test_a_corrupt_commit_of_a_target_is_named_and_the_job_goes_on_when_it_is_gone(cluster: Cluster) -> None:
    job = built(cluster, "corrupt")
    broken = last_commit(job)
    broken.write_bytes(broken.read_bytes()[:40])

    def told() -> bool:
        view = cluster.status(job)
        return view.status.error_code == 17 and str(broken) in view.status.error_msg and view.lag_s > 0

    wait_for("it is reported", told, SEEN_S)
    answer = admin(cluster.endpoint, "job", "wait", job.source, job.name, "--timeout", "1s")
    assert answer.status != 0
    assert str(broken) in answer.err
    (shown,) = [each for each in _listed(cluster) if each["name"] == job.name]
    assert shown["lag_s"] > 0
    Path(job.target).rename(Path(job.target).with_name("moved_away"))
    wait_for("it is rebuilt", lambda: right(job), SEEN_S)
    upsert(job.source, pa.table({"id": [1], "text": ["b"]}), ["id"])
    cluster.settle(job)
    assert_equal(job.target, read(job.source))


def _listed(cluster: Cluster) -> list[dict[str, Any]]:
    shown = admin(cluster.endpoint, "job", "list", "-o", "json").json
    return list(shown if isinstance(shown, list) else json.loads(json.dumps(shown))["jobs"])


@pytest.mark.further  # each time: a table that is rebuilt above
@pytest.mark.spark
def test_a_deleted_changefeed_is_rebuilt(cluster: Cluster) -> None:
    source = cluster.table("fed", pa.table({"id": [1, 2], "text": ["a", "b"]}))
    job = Job(source, "feed", f"{cluster.derived}/feed")
    cluster.client.register(source, job.name, consumer="changefeed", target=job.target, key=["id"])
    cluster.settle(job)
    shutil.rmtree(job.target)
    cluster.settle(job)
    assert read(job.target).num_rows == 2
