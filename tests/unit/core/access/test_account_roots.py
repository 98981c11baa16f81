"""Below which roots an account's tables lie: how roots are written, what lies below one, and whose account has any."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.core.access.account_roots import AccountRoots, is_plain_uri, is_root, lies_below, places_of
from iscp.core.job.job_row import JobRow
from iscp.core.spec.spec import ConsumerSpec, JobSpec
from iscp.core.sql.sql_names import VIEW_STATE_SUFFIX
from iscp.core.values.ids import JobKey

LOCAL = ("/", "/data/a", "/data/a/", "/data/with blank", "/data/ü", "file:///data/a", "/data/a.b..c")
ELSEWHERE = ("s3://", "s3://lake", "s3://lake/", "s3://lake/a/b=1", "s3a://lake/a", "kafka://host:9092/topics")
ODD_LOCAL = (
    "data/a ./data /data/../a /data/./a //data/a /data//a /data/%61 /data\\a file:/data file://data/a file:///data/.."
)
ODD_S3 = (
    "s3:/lake/a s3://UPPER/a s3://lake//a s3://lake/../a s3://lake/%2e s3://lake/a* S3://lake/a s3n://lake/a s3:///a"
)


@pytest.mark.parametrize("root", [*LOCAL, *ELSEWHERE])
def test_a_root_is_a_directory_or_a_uri(root: str) -> None:
    assert is_root(root)


@pytest.mark.parametrize(
    "root", ["", " ", "/a\0", "s3://lake/a b", "http://h/?a", "kafka://", *ODD_LOCAL.split(), *ODD_S3.split()]
)
def test_what_could_be_read_in_two_ways_is_no_root(root: str) -> None:
    assert not is_root(root)


@pytest.mark.parametrize(
    ("place", "root", "below"),
    [
        ("/data/a/t", "/data/a", True),
        ("/data/a/x/t", "/data/a/", True),
        ("/data/a", "/data/a", False),  # what is kept beside a target would lie elsewhere
        ("/data/ab", "/data/a", False),
        ("/data/ab/t", "/data/a", False),
        ("/data", "/data/a", False),
        ("/DATA/a/t", "/data/a", False),
        ("/t", "/", True),
        ("s3://lake/t", "/", False),
        ("s3://lake/a/t", "s3://lake/a", True),
        ("s3://lake/ab", "s3://lake/a", False),
        ("s3://lake-b/a/t", "s3://lake", False),
        ("s3://lake/t", "s3://lake", True),
        ("s3://lake/t", "s3://", True),
        ("/s3://lake/t", "s3://", False),
    ],
)
def test_what_lies_below_a_root(place: str, root: str, below: bool) -> None:
    assert lies_below(place, root) is below


PARTS = st.lists(st.sampled_from(["a", "b", "ab", "A", "a b", "."]), max_size=4)


@given(PARTS, PARTS)
def test_a_place_is_below_where_its_first_parts_are_all_those_of_the_root(place: list[str], root: list[str]) -> None:
    below = lies_below("/" + "/".join(place), "/" + "/".join(root))
    assert below is (len(place) > len(root) and place[: len(root)] == root)


def test_once_an_account_has_roots_one_without_has_no_place_but_the_cluster_wide_one() -> None:
    roots = AccountRoots({"acme": ("/data/acme", "s3://lake/acme")}, "system")
    assert roots.of("acme") == ("/data/acme", "s3://lake/acme")
    assert roots.of("other") == roots.of("") == roots.of("ACME") == ()
    assert roots.of("system") is None
    assert AccountRoots({"system": ("/data",)}, "system").of("system") == ("/data",)


def test_without_any_roots_all_go_on_as_they_were() -> None:
    assert AccountRoots({}, "system").of("acme") is None


def test_a_job_has_its_source_its_further_tables_its_target_and_what_is_kept_beside_it() -> None:
    options = {"sql": "…", "tables": {"o": "/d/orders", "i": "/d/items"}}
    spec = JobSpec(ConsumerSpec("view", "/d/v", options=options)).to_json()
    places = list(places_of(JobRow(JobKey("acme", "t", "j"), "1", spec, "orders", "/d/orders")))
    target = "spec.iteration.consumer.target"
    assert places == [
        ("table", "/d/orders"),
        ("spec.iteration.consumer.options.tables.o", "/d/orders"),
        ("spec.iteration.consumer.options.tables.i", "/d/items"),
        *((target, place) for place in ("/d/v", "/d/v_dead_letter", f"/d/v{VIEW_STATE_SUFFIX}")),
    ]


@pytest.mark.parametrize(
    ("target", "plain"),
    [
        ("kafka://host:9092/topics/a", True),
        ("kafka://host/topics/../b", False),
        ("kafka://host/topics/%2e%2e/b", False),
        ("kafka://host/a?b", False),
        ("s3://lake/a", False),
        ("file:///a", False),
        ("topic", False),
    ],
)
def test_targets_in_other_stores_are_compared_as_they_are_written(target: str, plain: bool) -> None:
    assert is_plain_uri(target) is plain
