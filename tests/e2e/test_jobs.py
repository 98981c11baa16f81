"""What users do with jobs, by `iscp-admin` and `iscp.Client`, on a real node that serves all of these tests."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

import iscp
from iscp.cli.demo.lake import differences
from iscp.cli.shell.root_group import ExitStatus
from iscp.model.job.iteration import UsagePart
from iscp.model.values.errors import JobFailed, TimedOut
from iscp.spark.session import SparkRuntime, SparkSettings
from iscp.system.http_exchange import free_port
from tests.e2e.evidence import Answer, admin, admin_process, assert_in_order, sink_commits
from tests.e2e.harness import Cluster, Job, Reader, append, assert_equal, delete, read, upsert, wait_for
from tests.fakes.packages import install
from tests.fakes.webhooks import HttpReceiver

EXAMPLE = Path(__file__).parents[2] / "examples" / "iscp_sqlite.py"
GROUP = "iscp.consumers"
WAKE_MEDIAN_MAX_S = 0.3
PAUSED_LOOK_S = 4.0
"""Twice the longest interval at which sources are probed here: what has not moved by then, is not going to."""


def rows(first: int, count: int, text: str = "a") -> pa.Table:
    return pa.table({"id": list(range(first, first + count)), "text": [text] * count})


@pytest.fixture(scope="module")
def receiver() -> Iterator[HttpReceiver]:
    """Of the notifications that the node posts."""
    made = HttpReceiver()
    yield made
    made.close()


@pytest.fixture(scope="module")
def gateway() -> str:
    """Where the node serves JSON."""
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, receiver: HttpReceiver, gateway: str) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    site = cluster.root / "site"
    install(site, "iscp_sqlite", EXAMPLE.read_text(), GROUP, sqlite="SqliteTable", forbidden="SqliteTable")
    try:
        cluster.start(
            PYTHONPATH=str(site),
            ISCP_CONSUMERS__ALLOW="sqlite",
            ISCP_GATEWAY__LISTEN=gateway,
            ISCP_NOTIFY__WEBHOOKS=receiver.url,
        )
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def source(node: Cluster, request: pytest.FixtureRequest) -> str:
    """A table of the test's own."""
    return node.table(request.node.name, rows(0, 50))


@pytest.fixture
def job(node: Cluster, source: str) -> Job:
    """A full replica of `source`, built."""
    made = node.replica(f"{Path(source).name}_copy", source, key=("id",))
    node.settle(made)
    return made


def ask(node: Cluster, *arguments: str) -> Answer:
    return admin(node.endpoint, *arguments, "-o", "json")


def by_command(node: Cluster, *arguments: str) -> Answer:
    return admin_process(node.endpoint, *arguments, "-o", "json")


def by_gateway(gateway: str, method: str, request: object) -> Any:
    with closing(HTTPConnection(gateway, timeout=60)) as connection:
        connection.request("POST", f"/v1/{method}", json.dumps(request), {"content-type": "application/json"})
        return json.loads(connection.getresponse().read())


@pytest.mark.spark
def test_one_job_from_register_to_delete_by_the_command_line(
    node: Cluster, source: str, gateway: str, receiver: HttpReceiver
) -> None:
    target = str(node.lake / "derived" / "by_command")
    create = ("job", "create", "--table", source, "--name", "copy", "--target", target, "--key", "id")
    created = by_command(node, *create).json
    assert created["created"] is True
    again = by_command(node, *create).json
    assert again == created | {"created": False}

    assert by_command(node, "job", "wait", source, "copy").json["applied_version"] == 0
    version = upsert(source, rows(40, 20, "b"), ("id",))
    assert by_command(node, "notify", source).json == {"jobs": 1}
    waited = by_command(node, "job", "wait", source, "copy").json
    assert waited["applied_version"] == version
    assert_equal(target, read(source))

    status = by_command(node, "job", "status", source, "copy").json
    assert (status["state"], status["reason"], status["applied_version"]) == ("completed", "none", version)
    assert status["job_id"] == created["job_id"]
    assert status["status"]["error_code"] == 0
    assert status["lag_least_s"] == 0.0
    assert by_gateway(gateway, "GetJob", {"job": {"table": source, "name": "copy"}})["job_id"] == created["job_id"]
    assert json.loads(receiver.received[0].body)["kind"] == "owner_changed"
    history = by_command(node, "job", "history", source, "copy").json
    assert [(each["from_version"], each["to_version"]) for each in history] == [(0, version), (-1, 0)]
    assert [each["data_type"] for each in history] == ["tail", "snapshot"]
    assert [each["rows"] for each in history] == [20, 50]
    assert history[0]["seq"] > history[1]["seq"]
    for each in history:
        usage = each["usage"]
        assert min(usage[f"{part}_s"] for part in UsagePart) > 0.0
        assert 0 < usage["bytes_written"] == each["bytes"]
        assert (usage["rows_read"], usage["rows_written"]) == (each["rows"], each["rows"])

    logged = [json.loads(line) for line in by_command(node, "job", "logs", source, "copy").out.splitlines()]
    assert {"iteration.done"} <= {each["event"] for each in logged if each.get("table") == source}
    own = by_command(node, "node", "logs", logged[0]["node"], "--tail", "10000")
    assert [each for each in map(json.loads, own.out.splitlines()) if each in logged] == logged

    jobs = by_command(node, "job", "list", "--table", source).json
    assert [(each["name"], each["table"]) for each in jobs] == [("copy", source)]
    assert by_command(node, "job", "count", "--state", "completed", "--table", source).json == {"count": 1}
    assert by_command(node, "job", "count", "--state", "error", "--table", source).json == {"count": 0}
    (member,) = by_command(node, "status").json["nodes"]
    assert (member["pid"], member["address"]) == (node.node.pid, node.endpoint)

    assert by_command(node, "job", "delete", source, "copy").json == {"deleted": True}
    assert by_command(node, "job", "delete", source, "copy").json == {"deleted": False}
    assert by_command(node, "job", "status", source, "copy").status == 1
    assert_equal(target, read(source))


@pytest.mark.spark
def test_a_resync_follows_a_source_recreated_and_readers_see_the_old_rows_or_the_new_ones(
    node: Cluster, source: str, job: Job
) -> None:
    first, old = node.status(job), Reader.rows(read(job.target))
    shutil.rmtree(source)
    assert node.table(Path(source).name, rows(20, 60, "anew")) == source
    append(source, rows(80, 10, "anew"))
    with Reader(job.target) as reader:
        answer = ask(node, "job", "resync", source, job.name).json
        assert answer["table_id"] != first.table_id
        waited = node.settle(job)
    assert (waited.job_id, waited.table_id, waited.applied_version) == (answer["job_id"], answer["table_id"], 1)
    assert reader.seen == [old, Reader.rows(read(source))]
    # The same again under another spec, in the middle of an iteration, of a paused job.
    upsert(source, rows(0, 5, "b"), ("id",))
    node.client.notify(source)
    node.client.pause(source, job.name)
    spec = {"iteration": {"consumer": {"kind": "replica", "target": job.target, "key": ["id"], "where": "id < 50"}}}
    node.client.resync(source, job.name, spec=spec)
    assert node.status(job).reason == "paused"
    node.client.resume(source, job.name)
    node.settle(job)
    assert_equal(job.target, read(source).filter(pc.field("id") < 50))
    assert_in_order(job.target)
    assert len({commit.job_id for commit in sink_commits(job.target)}) == 3


@pytest.mark.further  # each time: tests/integration/pipeline/test_adopt.py
@pytest.mark.spark
def test_a_table_is_taken_over_by_the_command_line_or_the_difference_is_reported(node: Cluster, source: str) -> None:
    target = str(node.lake / "derived" / "taken_over")
    write_deltalake(target, read(source))
    upsert(source, rows(40, 20, "b"), ("id",))
    command = ("job", "create", "--table", source, "--name", "copy", "--target", target, "--key", "id")
    wrong = ask(node, *command, "--adopt", "--from-version", "1")
    assert wrong.status == 1
    assert "10 rows are missing, 0 are too many, 10 are different" in wrong.err
    assert ask(node, "job", "delete", source, "copy").json == {"deleted": True}
    assert DeltaTable(target).version() == 0
    assert ask(node, *command, "--adopt", "--from-version", "0").json["created"] is True
    assert ask(node, "job", "wait", source, "copy").json["applied_version"] == 1
    assert_equal(target, read(source))
    assert [commit.kind for commit in sink_commits(target)] == ["adopt", "tail"]


@pytest.mark.spark
def test_a_wait_ends_soon_after_the_commit(node: Cluster, source: str, job: Job) -> None:
    took_s = []
    for turn in range(5):
        version = upsert(source, rows(turn, 5, f"turn {turn}"), ("id",))
        node.settle(job, version)
        ended_s = time.time()
        commit = max(Path(job.target, "_delta_log").glob("*.json"))
        took_s.append(ended_s - commit.stat().st_mtime)
    # Some milliseconds; the bound leaves room for a machine that does other work beside.
    assert median(took_s) < WAKE_MEDIAN_MAX_S


@pytest.mark.spark
def test_deleted_and_created_again_at_once_the_job_is_another_and_its_target_right(
    node: Cluster, source: str, job: Job
) -> None:
    first = node.status(job).job_id
    for turn in range(3):
        # Right after a change: the iteration over it may be at any point when the registration ends.
        upsert(source, rows(turn, 30, f"turn {turn}"), ("id",))
        node.client.notify(source)
        time.sleep(0.4 * turn)
        assert node.client.unregister(source, job.name) is True
        assert node.replica(job.name, source, key=("id",)) == job
    node.settle(job)
    last = node.status(job)
    assert last.job_id > first
    assert_equal(job.target, read(source))
    assert_in_order(job.target)
    # Whatever was still on its way for a registration that had ended came to nothing.
    order = [commit.job_id for commit in sink_commits(job.target)]
    assert order == sorted(order)
    assert next(entry.job_id for entry in node.client.history(source, job.name)) == last.job_id


@pytest.mark.spark
def test_a_paused_job_applies_nothing_until_it_is_resumed(node: Cluster, source: str, job: Job) -> None:
    before = read(job.target)
    assert ask(node, "job", "pause", source, job.name).json == {"changed": True}
    assert ask(node, "job", "pause", source, job.name).json == {"changed": False}
    version = append(source, rows(100, 10))
    node.client.notify(source)
    time.sleep(PAUSED_LOOK_S)
    assert_equal(job.target, before)
    paused = ask(node, "job", "status", source, job.name).json
    assert (paused["reason"], paused["applied_version"]) == ("paused", version - 1)
    assert paused["lag_s"] > 0, "a paused job lags, and says so"
    assert ask(node, "job", "list", "--reason", "paused").json[0]["name"] == job.name

    waited = ask(node, "job", "wait", source, job.name, "--timeout", "30s")
    assert waited.status == 1
    assert "is paused" in waited.err
    assert "job resume" in waited.err
    with pytest.raises(JobFailed, match="is paused"):
        node.settle(job)

    assert ask(node, "job", "resume", source, job.name).json == {"changed": True}
    assert ask(node, "job", "resume", source, job.name).json == {"changed": False}
    assert node.settle(job).applied_version == version
    assert_equal(job.target, read(source))


@pytest.mark.spark
def test_a_set_of_files_prunes_what_it_has_made_alone(node: Cluster, source: str, job: Job, tmp_path: Path) -> None:
    """A directory with a replica in YAML, which another set reads until that is gone, and an index in SQL."""
    root = node.lake / "derived" / "sets"
    root.mkdir(parents=True)
    (tmp_path / "set.yaml").write_text("set: mine")
    copy, other = tmp_path / "copy.yaml", tmp_path.with_name("other.yaml")
    copy.write_text(f"{{table: {source}, name: kept, target: {root}/kept, key: id}}")
    (tmp_path / "words.SQL").write_text("CREATE FULLTEXT INDEX words ON items (text) KEY (id)")
    places = ("--table", f"items={source}", "--target-root", str(root))

    def applied(*more: str) -> Answer:
        return ask(node, "apply", "-f", str(tmp_path), *places, *more)

    def counts(done: Answer) -> dict[str, int]:
        assert done.status == 0, done.err
        return {action: number for action, number in done.json["counts"].items() if number}

    def there() -> set[str]:
        return {each["name"] for each in ask(node, "job", "list", source, "*").json}

    assert counts(applied()) == {"create": 2}
    assert counts(applied("--prune", "--yes")) == {"unchanged": 2}
    ask(node, "job", "wait", source, "kept")
    other.write_text(f"{{table: {root}/kept, name: reader, target: {root}/reader, set: theirs}}")
    assert counts(ask(node, "apply", "-f", str(other))) == {"create": 1}
    copy.unlink()
    refused = applied("--prune", "--yes")
    assert (refused.status, "reader would go on to read" in refused.err) == (1, True)
    assert there() == {job.name, "kept", "words"}
    ask(node, "job", "delete", f"{root}/kept", "reader")
    done = applied("--prune", "--yes")
    assert counts(done) == {"unchanged": 1, "delete": 1}
    assert "kept on " in done.err
    assert there() == {job.name, "words"}, "what no set has made stays"
    assert ask(node, "job", "status", source, "words").json["spec"]["set"] == "mine"


@pytest.mark.spark
def test_a_wait_ends_when_its_time_is_over_and_when_the_job_goes(node: Cluster, source: str, job: Job) -> None:
    begun_s = time.monotonic()
    late = ask(node, "job", "wait", source, job.name, "--version", "99", "--timeout", "1500ms")
    assert late.status == 3
    assert "version 99 was not applied within 1.5 s" in late.err
    assert 1.5 <= time.monotonic() - begun_s < 20
    with pytest.raises(TimedOut):
        node.settle(job, version=99, timeout_s=0.5)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(node.settle, job, 99)
        time.sleep(0.5)
        node.client.unregister(source, job.name)
        with pytest.raises(JobFailed, match="was dropped"):
            waiting.result(10)


@pytest.mark.spark
def test_who_has_waited_reads_what_he_wrote(node: Cluster, source: str, job: Job) -> None:
    for turn in range(4):
        upsert(source, rows(turn * 20, 30, f"turn {turn}"), ("id",))
        delete(source, f"id = {turn}")
        with iscp.Client(node.endpoint) as client:
            client.wait(source, job.name)
        assert_equal(job.target, read(source))


@pytest.mark.spark
def test_jobs_of_a_table_share_iterations_and_read_each_change_once(node: Cluster, source: str, job: Job) -> None:
    other = node.replica("sharing", source, key=("id",), where="text <> 'gone'")
    node.settle(other)
    for turn in range(3):
        upsert(source, rows(turn, 30, "gone" if turn == 1 else f"turn {turn}"), ("id",))
        node.settle(job)
        node.settle(other)
    ours, others = (
        {(each.from_version, each.to_version, each.start_at_s) for each in history if each.data_type == "tail"}
        for history in (node.client.history(source, each.name) for each in (job, other))
    )
    assert ours == others, "they were in the same iterations, from the same start"
    assert len(ours) == 3
    assert_equal(job.target, read(source))
    kept = read(source)
    assert_equal(other.target, kept.filter(pa.compute.not_equal(kept["text"], "gone")))


@pytest.mark.further  # each time: test_damaged_targets.py
@pytest.mark.spark
def test_a_target_that_was_damaged_is_repaired_though_its_source_does_not_move(
    node: Cluster, source: str, job: Job
) -> None:
    damages: tuple[Callable[[], object], ...] = (
        lambda: append(job.target, rows(7, 3, "foreign")),
        lambda: delete(job.target, "id < 9"),
    )
    for damage in damages:
        damage()
        node.client.notify(source)
        wait_for("the target is as it was", lambda: differences(read(source), read(job.target)).num_rows == 0)
    assert_in_order(job.target)


@pytest.mark.further  # each time: tests/integration/pipeline/test_verify.py
@pytest.mark.spark
def test_a_target_is_compared_with_its_source_and_repaired_where_it_differs(
    node: Cluster, source: str, job: Job
) -> None:
    verify = ("job", "verify", source, job.name)
    equal = ask(node, *verify).json
    assert (equal["equal"], equal["version"], equal["rows_source"], equal["rows_target"]) == (True, 0, 50, 50)
    delete(job.target, "id < 3")
    node.client.pause(source, job.name)
    told = ask(node, *verify)
    assert (told.status, json.loads(told.out)["missing"]) == (ExitStatus.DIFFERS, 3)
    refused = admin(node.endpoint, *verify, "--repair")
    assert refused.status == 1
    assert "is paused, and a repair writes" in refused.err
    node.client.resume(source, job.name)
    mended = node.client.verify(source, job.name, repair=True)
    assert mended.repaired
    assert_equal(job.target, read(source))
    assert node.client.history(source, job.name)[0].seq == mended.seq
    upsert(source, rows(40, 20, "b"), ("id",))
    node.settle(job)
    assert_equal(job.target, read(source))
    assert node.client.verify(source, job.name).equal
    assert_in_order(job.target)


@pytest.mark.spark
def test_a_copied_table_has_jobs_and_a_lag_of_its_own(node: Cluster, source: str, job: Job) -> None:
    node.settle(job)
    copied = shutil.copytree(source, f"{source}_moved_elsewhere")
    on_copy = Job(str(copied), job.name, f"{job.target}_of_copy")
    with ThreadPoolExecutor(2) as pool:  # the same name, at once
        made = pool.map(
            lambda each: node.client.register(each.source, "both", target=f"{each.target}_both", key=["id"]),
            [job, on_copy],
        )
    assert [result.created for result in made] == [True, True]
    assert node.client.register(on_copy.source, on_copy.name, target=on_copy.target, key=["id"]).created
    versions = [append(source, rows(1_000 + number, 1)) for number in range(3)]
    node.settle(job)
    node.settle(on_copy)
    ahead, there = node.status(job), node.status(on_copy)
    assert (ahead.source_version, there.source_version, there.applied_version) == (versions[-1], 0, 0)
    assert (ahead.lag_least_s, there.lag_least_s) == (0.0, 0.0)
    assert_equal(job.target, read(source))
    assert_equal(on_copy.target, read(on_copy.source))
    append(on_copy.source, rows(5_000, 1))
    node.settle(on_copy)
    assert_equal(on_copy.target, read(on_copy.source))


@pytest.mark.spark
def test_a_burst_of_changes_and_wishes_ends_where_the_last_of_them_said(node: Cluster, source: str, job: Job) -> None:
    """Pauses, resumes, notifications and changes from several clients at once."""

    def wish(turn: int) -> None:
        with iscp.Client(node.endpoint) as client:
            (client.pause if turn % 2 else client.resume)(source, job.name)
            client.notify(source)

    with ThreadPoolExecutor(4) as pool:
        wishes = [pool.submit(wish, turn) for turn in range(12)]
        for turn in range(4):
            append(source, rows(1_000 * (turn + 1), 10))
        for each in wishes:
            each.result(60)
    node.client.resume(source, job.name)
    node.settle(job)
    assert_equal(job.target, read(source))
    assert_in_order(job.target)
    wait_for("the job says that it is in order", lambda: node.status(job).state.value == "completed", 20.0)


@pytest.mark.spark
@pytest.mark.full
def test_a_table_is_found_by_its_name_in_a_catalog(cluster: Cluster) -> None:
    """A catalog that outlives the node: Hive's, in a Derby database, in which another program has made the table."""
    source = cluster.table("orders", rows(0, 50))
    conf = {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={cluster.root}/metastore;create=true",
        "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
        "spark.sql.warehouse.dir": f"{cluster.root}/warehouse",
    }
    runtime = SparkRuntime.start(SparkSettings(work_dir=cluster.root / "spark", conf=conf))
    runtime.root.sql("CREATE DATABASE sales")
    runtime.root.sql(f"CREATE TABLE sales.orders USING delta LOCATION '{source}'")
    runtime.stop()
    cluster.start(ISCP_SPARK__CONF=json.dumps(conf))

    target = str(cluster.lake / "derived" / "by_name")
    create = ("job", "create", "--table", "sales.orders", "--name", "copy", "--target", target, "--key", "id")
    assert ask(cluster, *create).json["created"] is True
    assert ask(cluster, "job", "wait", "sales.orders", "copy").json["applied_version"] == 0
    version = upsert(source, rows(40, 20, "b"), ("id",))
    assert ask(cluster, "notify", "sales.orders").json == {"jobs": 1}
    assert ask(cluster, "job", "wait", source, "copy").json["applied_version"] == version
    assert_equal(target, read(source))
    assert ask(cluster, "job", "status", "sales.orders", "copy").json["table"] == "sales.orders"
    unknown = ask(cluster, "job", "create", "--table", "sales.nothing", *create[4:])
    assert unknown.status == 1
    assert "sales.nothing is not a table of the catalog" in unknown.err


@pytest.mark.spark
def test_a_consumer_of_ones_own_keeps_what_it_wants_if_it_is_allowed(node: Cluster, source: str) -> None:
    file = str(node.root / "mirror.db")
    create = ("job", "register", "--table", source, "--target", file, "--key", "id", "--options", '{"table": "copies"}')
    assert ask(node, *create, "--name", "mirror", "--consumer", "sqlite").json["created"] is True
    upsert(source, rows(40, 20, "b"), ("id",))
    ask(node, "job", "wait", source, "mirror")
    with closing(sqlite3.connect(file)) as db:
        kept = db.execute("SELECT id, text FROM copies ORDER BY id").fetchall()
    assert kept == [(number, "b" if number >= 40 else "a") for number in range(60)]

    refused = admin(node.endpoint, *create, "--name", "another", "--consumer", "forbidden")
    assert refused.status != 0
    assert "field: --consumer" in refused.err
    assert "consumers.allow" in refused.err


def test_a_damaged_source_holds_up_no_neighbour(node: Cluster, source: str, job: Job) -> None:
    damaged = node.replica("damaged", node.table("damaged", rows(0, 5)), key=("id",))
    node.settle(damaged)
    torn = Path(damaged.source, "_delta_log", f"{1:020d}.json")
    torn.write_text('{"add":')

    def tries() -> int:
        log = node.node.log.read_text().splitlines()
        return sum('"iteration.failed"' in line and str(torn) in line for line in log)

    applied = 0
    while tries() < 3:
        append(source, rows(100 + applied, 1))
        node.settle(job)
        applied += 1
    assert applied >= 3, "it is tried again after longer than a neighbour's iteration takes"
    assert_equal(job.target, read(source))
    assert (node.status(damaged).state, node.status(damaged).applied_version) == ("error", 0)
    torn.unlink()
    append(damaged.source, rows(5, 5))
    node.settle(damaged)
    assert_equal(damaged.target, read(damaged.source))


@pytest.mark.spark
def test_the_page_shows_a_job_and_pauses_it(node: Cluster, job: Job) -> None:
    def answer(method: str, path: str, body: str = "", **headers: str) -> tuple[int, str]:
        with closing(HTTPConnection("127.0.0.1", node.ports.pages[0], timeout=60)) as connection:
            form = {"content-type": "application/x-www-form-urlencoded"} if body else {}
            connection.request(method, path, body or None, {"accept": "text/html", **form, **headers})
            got = connection.getresponse()
            return got.status, got.read().decode() + str(got.headers)

    name = Path(job.target).name
    assert f">{name}</a>" in answer("GET", f"/?words={name}")[1]
    named = urlencode({"table": job.source, "name": job.name})
    shown = answer("GET", f"/job?{named}")[1]
    assert "All changes are applied" in shown
    assert 'aria-label="' in shown.partition('class="bar"')[2]  # its first iteration, as a bar
    origin = {"origin": f"http://127.0.0.1:{node.ports.pages[0]}", "cookie": "iscp_form=key"}
    assert answer("POST", "/act", f"form_key=key&verb=pause&{named}", **origin)[0] == 303
    assert "It is paused" in answer("GET", f"/job?{named}")[1]
    for path in ("/lineage", "/timeline", "/builds", "/trouble", "/cluster", "/search"):
        assert answer("GET", path)[0] == 200
