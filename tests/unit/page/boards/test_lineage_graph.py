"""The lineage of targets: places that are one, lags that add up, the way to what holds a table up."""

from __future__ import annotations

import time
from typing import Any

from iscp.core.job.job_row import JobState
from iscp.page.boards.job_facts import JobFacts, facts_of
from iscp.page.boards.lineage_graph import key_of, lineage_graph, neighbourhood, way_to_the_reason
from tests.fakes.viewed_cluster import job_view


def job(target: str, *tables: str, lag_s: float = 0.0, **changes: Any) -> JobFacts:
    options = {"tables": {str(number): table for number, table in enumerate(tables)}}
    spec = {"iteration": {"consumer": {"kind": "view", "target": target, "options": options}}}
    named = {"table": tables[0], "table_id": f"id of {key_of(tables[0])}", "job_id": target or tables[0]}
    return facts_of(job_view(0, spec, lag_s=lag_s, **named, **changes))


def test_a_place_is_one_however_it_is_written() -> None:
    assert key_of("file:///lake/t/") == key_of("/lake/t") == "/lake/t"
    assert key_of("s3a://b/t") == key_of("s3://b/t//") == "s3://b/t"
    assert key_of("/") == "/"
    graph = lineage_graph([job("/b", "/a/"), job("/c/", "file:///b"), job("/d", "/c", "/a")])
    assert {key: node.inputs for key, node in graph.nodes.items()} == {
        "/a": (),
        "/b": ("/a",),
        "/c": ("/b",),
        "/d": ("/c", "/a"),
    }
    assert (graph.nodes["/a"].kind, graph.nodes["/d"].kind) == ("source", "view")


def test_lags_add_up_along_the_longest_way() -> None:
    graph = lineage_graph(
        [job("/b", "/a", lag_s=10.0), job("/c", "/a", lag_s=100.0), job("/d", "/b", "/c", lag_s=1.0), job("/e", "/x")]
    )
    assert {key: node.global_s for key, node in graph.nodes.items() if node.jobs} == {
        "/b": 10.0,
        "/c": 100.0,
        "/d": 101.0,
        "/e": 0.0,
    }
    assert graph.nodes["/d"].local_s == 1.0


def test_what_is_made_of_an_unknown_lag_has_none() -> None:
    graph = lineage_graph([job("/b", "/a", lag_s=-1.0), job("/c", "/b", lag_s=5.0)])
    assert graph.nodes["/c"].global_s == -1.0


def test_circles_and_a_table_that_is_made_of_itself_end() -> None:
    graph = lineage_graph([job("/a", "/b", lag_s=2.0), job("/b", "/a", lag_s=3.0), job("/c", "/c", lag_s=4.0)])
    assert graph.nodes["/c"].inputs == ()
    assert all(node.global_s >= node.local_s for node in graph.nodes.values())
    assert set(way_to_the_reason(graph, "/a")) == {"/a", "/b"}


def test_a_chain_of_thousands_of_views_is_no_matter() -> None:
    graph = lineage_graph(job(f"/t{n + 1}", f"/t{n}", lag_s=1.0) for n in range(5000))
    assert graph.nodes["/t5000"].global_s == 5000.0
    assert len(way_to_the_reason(graph, "/t5000")) == 5000


def test_a_long_way_through_much_takes_no_longer_than_it_is() -> None:
    """Each of these views reads the 60 before it; the way leads through all of them."""
    jobs = [
        job(f"/t{n + 1}", *(f"/t{each}" for each in range(n, max(-1, n - 60), -1)), lag_s=1.0) for n in range(6_000)
    ]
    graph, begun_s = lineage_graph(jobs), time.process_time()
    assert len(way_to_the_reason(graph, "/t6000")) == 6_000
    assert time.process_time() - begun_s < 3.0


def test_the_way_leads_to_what_is_not_fresh() -> None:
    jobs = [
        job("/b", "/a", state=JobState.ERROR, lag_s=10.0),
        job("/c", "/a", lag_s=500.0, late=True),
        job("/d", "/b", "/c"),
        job("/e", "/d"),
        job("/f", "/a"),
    ]
    graph = lineage_graph(jobs)
    # What has failed holds it up for longer than what is late.
    assert way_to_the_reason(graph, "/e") == ["/e", "/d", "/b"]
    assert way_to_the_reason(graph, "/f") == ["/f"]
    assert way_to_the_reason(graph, "/a") == ["/a"]


def test_several_jobs_of_one_target_are_one_node_and_one_without_a_target_is_its_own() -> None:
    graph = lineage_graph([job("/b", "/a", lag_s=1.0), job("/b", "/c", lag_s=9.0), job("", "/a")])
    assert [each.lag_s for each in graph.nodes["/b"].jobs] == [9.0, 1.0]
    assert set(graph.nodes["/b"].inputs) == {"/a", "/c"}
    assert graph.nodes["job /a"].inputs == ("/a",)


def test_the_nearest_are_around_a_node() -> None:
    graph = lineage_graph(job(f"/t{n + 1}", f"/t{n}") for n in range(100))
    assert neighbourhood(graph, "/t50", 5) == ["/t50", "/t49", "/t51", "/t48", "/t52"]
    assert len(neighbourhood(graph, "/t50", 1000)) == 101
