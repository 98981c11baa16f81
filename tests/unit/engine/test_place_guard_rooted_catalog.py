"""Through its catalog an account learns nothing of what lies elsewhere than its tables may, whatever it requests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from iscp.engine.place_guard import RootedCatalog
from iscp.model.values.errors import EngineError, InvalidRequest, TableNotFound
from iscp.model.values.progress import TableSize
from iscp.ports.catalog import Catalog, TableDescription
from tests.fakes.catalog import FakeCatalog

OURS, THEIRS = "/lake/ours", "/lake/theirs"
INSIDE, OUTSIDE, MISSING = f"{OURS}/t", f"{THEIRS}/t", f"{THEIRS}/none"

REQUESTS: dict[str, Callable[[Catalog, str], object]] = {
    "describe": lambda catalog, place: catalog.describe(place),
    "locate": lambda catalog, place: catalog.locate(place),
    "normalize": lambda catalog, place: catalog.normalize(place),
    "refuse_links": lambda catalog, place: catalog.refuse_links(place),
    "logs_at": lambda catalog, place: catalog.logs_at(place),
    "table_around": lambda catalog, place: catalog.table_around(place),
    "missing_parent": lambda catalog, place: catalog.missing_parent(place),
    "has_version": lambda catalog, place: catalog.has_version(place, 1),
    "newest_version": lambda catalog, place: catalog.newest_version(place),
    "size": lambda catalog, place: catalog.size(place),
}


class NamedCatalog(FakeCatalog):
    """A catalog with names, which fails with `fault` for one that it has not."""

    def __init__(self, fault: TableNotFound | EngineError, *tables: TableDescription) -> None:
        super().__init__(*tables)
        self.fault = fault

    def locate(self, table: str) -> str:
        if table.startswith("/"):
            return super().locate(table)
        if table == "sales.theirs":
            return OUTSIDE
        if table == "sales.ours":
            return INSIDE
        raise self.fault


def outside(table: str) -> InvalidRequest:
    return InvalidRequest(f"{table} lies elsewhere", about="table", remedy="Choose another place")


def require(place: str, shown: str) -> None:
    if not place.startswith(f"{OURS}/"):
        raise outside(shown)


def described(uri: str) -> TableDescription:
    return TableDescription(f"id-{uri}", uri, uri, 3, 1.0)


@pytest.fixture(params=[TableNotFound("there is none"), EngineError("the catalog does not answer")])
def whole(request: pytest.FixtureRequest) -> NamedCatalog:
    catalog = NamedCatalog(request.param, described(INSIDE), described(OUTSIDE))
    catalog.sizes[INSIDE] = TableSize(1, 2)
    catalog.missing.add(THEIRS)
    return catalog


@pytest.fixture
def rooted(whole: NamedCatalog) -> RootedCatalog:
    return RootedCatalog(whole, require, outside)


def test_each_request_for_a_place_is_covered() -> None:
    """A method that the port gets has to be added here, unless its argument is no place."""
    methods = {name for name in vars(Catalog) if not name.startswith("_")}
    assert methods - {"query_shape", "condition_fault"} == REQUESTS.keys()


@pytest.mark.parametrize("name", REQUESTS)
def test_what_lies_elsewhere_is_refused_the_same_whether_or_not_it_is_there(
    rooted: RootedCatalog, whole: NamedCatalog, name: str
) -> None:
    whole.links[f"{OURS}/link"] = OUTSIDE
    for place in (OUTSIDE, MISSING):
        with pytest.raises(InvalidRequest, match=f"^table: {place} lies elsewhere"):
            REQUESTS[name](rooted, place)


@pytest.mark.parametrize("name", REQUESTS)
def test_what_lies_below_a_root_is_as_the_catalog_says(rooted: RootedCatalog, whole: NamedCatalog, name: str) -> None:
    assert REQUESTS[name](rooted, INSIDE) == REQUESTS[name](whole, INSIDE)


@pytest.mark.parametrize("name", ["describe", "locate", "normalize"])
def test_a_link_to_elsewhere_is_refused_by_the_name_that_was_given(
    rooted: RootedCatalog, whole: NamedCatalog, name: str
) -> None:
    link = whole.links[f"{OURS}/link"] = OUTSIDE
    with pytest.raises(InvalidRequest) as refused:
        REQUESTS[name](rooted, f"{OURS}/link")
    assert link not in str(refused.value)


@pytest.mark.parametrize("name", ["sales.theirs", "sales.none"])
@pytest.mark.parametrize("request_", ["describe", "locate", "refuse_links"])
def test_a_name_of_a_table_elsewhere_is_refused_as_one_that_is_not_there(
    rooted: RootedCatalog, request_: str, name: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"^table: {name} lies elsewhere"):
        REQUESTS[request_](rooted, name)


def test_a_table_is_described_by_the_name_that_the_account_gave(rooted: RootedCatalog) -> None:
    found = rooted.describe("sales.ours")
    assert (found.name, found.uri) == ("sales.ours", INSIDE)


def test_a_table_around_a_root_is_not_named() -> None:
    rooted = RootedCatalog(FakeCatalog(described("/lake"), described(INSIDE)), require, outside)
    assert rooted.table_around(f"{OURS}/new") == f"{OURS}/new"
    rooted = RootedCatalog(FakeCatalog(described(INSIDE)), require, outside)
    assert rooted.table_around(f"{INSIDE}/new") == INSIDE
    assert rooted.table_around(f"{OURS}/new") == ""
