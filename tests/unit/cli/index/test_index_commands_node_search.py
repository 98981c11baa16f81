"""`iscp-admin search`: what a node is given, and how its answer is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from iscp.cli.iscp_admin import cli
from iscp.model.api.api_requests import SearchWeights
from iscp.model.values.errors import InvalidRequest, TimedOut
from iscp.server.admin.admin_server import AdminServer, SearchServer
from tests.fakes.admin import FakeAdmin
from tests.fakes.searches import FakeSearches


@pytest.fixture
def searches() -> FakeSearches:
    return FakeSearches()


@pytest.fixture
def endpoint(searches: FakeSearches) -> Iterator[str]:
    server = AdminServer(FakeAdmin(), "127.0.0.1:0", services=[SearchServer(searches)])
    server.start()
    yield server.address
    server.stop(grace_s=0)


def run(endpoint: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["search", "--endpoint", endpoint, *arguments])


def test_a_node_is_given_all_that_the_line_says(endpoint: str, searches: FakeSearches) -> None:
    more = ("-k", "3", "--filter", "year > 1990", "--columns", "title,year", "--min-version", "12", "--wait", "2s")
    flags = ("--highlight", "--explain", "--vector", "[0.5]", "--vector-weight", "2", "--account", "acme")
    done = run(endpoint, "/lake/index", "fox", *more, *flags, "-o", "json")
    assert done.exit_code == 0, done.output
    ((wanted, account),) = searches.calls
    assert (wanted.uri, wanted.text, wanted.vector, account) == ("/lake/index", "fox", (0.5,), "acme")
    assert (wanted.k, wanted.filter, wanted.columns, wanted.min_version) == (3, "year > 1990", ("title", "year"), 12)
    assert (wanted.highlight, wanted.explain, wanted.weights) == (True, True, SearchWeights(1.0, 2.0))
    assert 1.0 < wanted.wait_s <= 2.0
    answer = json.loads(done.stdout)
    assert answer["hits"][0]["key"] == {"id": 2**60}
    assert (answer["version"], answer["index_version"]) == (12, 40)


def test_an_answer_is_a_table_with_fragments_and_explanations_below(endpoint: str) -> None:
    done = run(endpoint, "/lake/index", "fox")
    assert done.exit_code == 0, done.output
    assert [line.rstrip() for line in done.stdout.splitlines()] == [
        "_score  id                   title  year",
        "2.5000  1152921504606846976  a fox  1999",
        "1.2500  7",
        "",
        "id=1152921504606846976",
        "  body: a <b>fox</b>",
        "  2.5 = bm25",
    ]
    assert "fo* stands for more words" in done.stderr
    assert "2 hits at version 12 of the source, in 1.5 ms" in done.stderr


def test_refusals_name_the_option(endpoint: str, searches: FakeSearches) -> None:
    searches.answer = InvalidRequest(
        "names colour, which the index does not store", field="columns", remedy="Name year"
    )
    done = run(endpoint, "/lake/index", "fox", "--columns", "colour")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[1:] == ["  field: --columns", "  remedy: Name year"]
    searches.answer = TimedOut("version 12 was not applied")
    assert run(endpoint, "/lake/index", "fox", "--min-version", "12", "--wait", "0s").exit_code == 3
    absent = run(endpoint, "/lake/none", "fox")
    assert absent.exit_code == 1
    assert "/lake/none is the target of no job that maintains an index" in absent.stderr
