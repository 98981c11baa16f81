"""Accounts are held to their roots on a real file system: no spelling and no link leads elsewhere.

Through its catalog an account learns nothing of what lies elsewhere than its tables may, whatever it requests.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from iscp.delta.source.delta_catalog import DeltaCatalog
from iscp.engine.account_turns import ANYWHERE, PlaceGuard, RootedCatalog
from iscp.model.access.authorization import AccountRoots
from iscp.model.values.errors import EngineError, ErrorCode, InvalidRequest, TableNotFound
from iscp.model.values.progress import TableSize
from iscp.ports.source import Catalog, TableDescription
from iscp.storage.locations import DATASET_DIRECTORIES, VERSIONS, followed_places, followed_root
from tests.fakes.catalog import FakeCatalog

FIELD = "spec.iteration.consumer.target"


def guard(*roots: str) -> PlaceGuard:
    return PlaceGuard(AccountRoots({"acme": roots, "b": ("/nowhere",)}, "system"), followed_places, followed_root)


def passes(guard: PlaceGuard, place: str, account: str = "acme") -> bool:
    try:
        guard.require(account, place, FIELD)
    except InvalidRequest as error:
        return error.field != FIELD
    return True


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory for each of two accounts, `a` and `ab`, each with a table `t`."""
    top = tmp_path.resolve() / "data"
    for name in ("a", "ab"):
        write_deltalake(str(top / name / "t"), pa.table({"id": [1]}))
    return top


def test_spellings_of_what_lies_below_pass_and_those_of_what_does_not_do_not(data: Path) -> None:
    held = guard(f"{data}/a")
    inside = ("a/t", "a/new", "a/x/y/z", "a/t/", "a//t", "a/./t", "a/x/../t", "ab/../a/t", "../data/a/t")
    outside = ("ab/t", "ab", "a", "a/", "a/.", "a/t/../..", "a/../ab/t", "a/x/../../ab/t", "", "A/t", "a/../../data/ab")
    for form in ("{}", "file://{}", "file:{}", "//{}"):
        spelled = [form.format(f"{data}/{each}") for each in (*inside, *outside)]
        assert [each for each in spelled if passes(held, each)] == spelled[: len(inside)]


ODD = "{}/a/%2e%2e/ab/t {}/a\\..\\ab FILE://{}/a/t file://localhost{}/a/t a/t .. s3://a/t s3a://a/t gs://a/t ~/t"


@pytest.mark.parametrize("place", [*ODD.split(), "{}/a/t\0", "{}/a/\ud800", "", " "])
def test_odd_spellings_do_not_pass(data: Path, place: str) -> None:
    assert not passes(guard(f"{data}/a"), place.format(data))


def test_links_are_followed_also_those_of_a_root_and_of_a_log(data: Path) -> None:
    held = guard(f"{data}/root")
    (data / "root").symlink_to(data / "a")
    (data / "a" / "out").symlink_to(data / "ab")
    (data / "a" / "in").symlink_to(data / "a" / "t")
    (data / "a" / "loop").symlink_to(data / "a" / "loop")
    (data / "elsewhere").symlink_to(data / "a" / "t")
    (data / "a" / "copy").mkdir()
    (data / "a" / "copy" / "_delta_log").symlink_to(data / "ab" / "t" / "_delta_log")
    names = (
        "root/t",
        "a/t",
        "root/in",
        "elsewhere",
        "root/out/t",
        "a/out/new",
        "root/copy",
        "a/out",
        "/proc/self/root/x",
    )
    assert [name for name in names if passes(held, posixpath.join(str(data), name))] == list(names[:4])


def test_what_becomes_a_link_to_elsewhere_is_refused_from_then_on(data: Path) -> None:
    held = guard(f"{data}/a")
    assert passes(held, f"{data}/a/later")
    (data / "a" / "later").symlink_to(data / "ab" / "t")
    assert not passes(held, f"{data}/a/later")


@pytest.mark.parametrize("name", DATASET_DIRECTORIES)
def test_an_index_one_of_whose_directories_leads_elsewhere_is_refused(data: Path, name: str) -> None:
    held, index = guard(f"{data}/a"), data / "a" / "index"
    for each in (VERSIONS, name):
        (index / each).mkdir(parents=True, exist_ok=True)
    assert passes(held, str(index))
    (index / name).rmdir()
    (index / name).symlink_to(data / "ab" / "t")
    assert not passes(held, str(index))


def test_what_is_kept_beside_a_target_is_held_too(data: Path) -> None:
    held = guard(f"{data}/a")
    held.require_target("acme", f"{data}/a/new", FIELD)
    held.require_target("acme", "", FIELD)
    (data / "a" / "new_dead_letter").symlink_to(data / "ab" / "t")
    with pytest.raises(InvalidRequest, match="new does not lie below a root"):
        held.require_target("acme", f"{data}/a/new", FIELD)


def test_roots_on_s3_and_in_other_stores() -> None:
    held = guard("s3a://lake/acme/", "kafka://host:9092")
    inside = ["s3://lake/acme/t", "s3a://lake/acme/t/", "s3://lake//acme//t", "kafka://host:9092/t"]
    outside = ["s3://lake/acme", "s3://lake/acme2/t", "s3://lake/acme/../b/t", "s3://lake/acme/%2e%2e/b"]
    outside += ["s3://LAKE/acme/t", "S3://lake/acme/t", "s3n://lake/acme/t", "s3://lake/acme /t", "s3:/lake/acme/t"]
    outside += ["/lake/acme/t", "kafka://host:9092", "kafka://host:90921/t", "kafka://host:9092/../x"]
    outside += ["kafka://host:9092@evil/t"]
    assert [place for place in (*inside, *outside) if passes(held, place)] == inside
    assert passes(guard("s3://"), "s3://any/t")


def test_each_account_has_its_own_and_one_without_has_none() -> None:
    held = guard("/data/a")
    assert [each for each in ("acme", "b", "c", "system") if passes(held, "/data/a/t", each)] == ["acme", "system"]
    with pytest.raises(InvalidRequest, match=r"Have accounts\.c\.roots say"):
        held.require("c", "/data/a/t", FIELD)
    assert passes(ANYWHERE, "/data/a/t")


def test_a_refusal_is_the_same_whether_or_not_something_is_there(data: Path) -> None:
    """Of a table, a directory, nothing, a link, and names in a catalog that are there, and are not."""
    located = {"sales.orders": f"{data}/ab/t", "sales.own": f"{data}/a/t"}

    def resolve(name: str) -> str:
        if name == "sales.view":
            raise EngineError("a view is no table")
        if name not in located:
            raise TableNotFound("is not there")
        return located[name]

    catalog = guard(f"{data}/a").catalog("acme", DeltaCatalog(resolve))
    (data / "ab" / "loop").symlink_to(data / "ab" / "loop")
    (data / "ab" / "link").symlink_to(data / "ab" / "t")
    seen = set()
    tables = [f"{data}/ab/{name}" for name in ("t", "_delta_log", "none", "none/x", "loop", "loop/x", "link")]
    for table in (*tables, "sales.orders", "sales.none", "sales.view"):
        for call in (
            catalog.describe,
            catalog.locate,
            catalog.refuse_links,
            catalog.newest_version,
            catalog.size,
            catalog.table_around,
        ):
            with pytest.raises(InvalidRequest) as refused:
                call(table)
            error = refused.value
            seen.add((type(error), error.message.replace(table, ""), error.field, error.remedy, error.code))
    ((_, message, field, _, code),) = seen
    assert (field, code) == ("table", ErrorCode.OUTSIDE_ROOTS)
    assert "ab" not in message
    assert catalog.describe("sales.own").name == "sales.own"
    with pytest.raises(TableNotFound):
        catalog.describe(f"{data}/a/none")


def test_a_link_below_a_root_is_refused_where_a_table_is_to_be_read(data: Path) -> None:
    (data / "a" / "link").symlink_to(data / "a" / "t")
    catalog = guard(f"{data}/a").catalog("acme", DeltaCatalog())
    catalog.refuse_links(f"{data}/a/t")
    with pytest.raises(InvalidRequest, match=f"leads through the link {data}/a/link to {data}/a/t; "):
        catalog.refuse_links(f"{data}/a/link")


def test_a_table_around_a_root_is_not_named(data: Path) -> None:
    write_deltalake(str(data), pa.table({"id": [1]}))
    catalog = DeltaCatalog()
    assert catalog.table_around(f"{data}/a/new") == str(data)
    assert guard(f"{data}/a").catalog("acme", catalog).table_around(f"{data}/a/new") == f"{data}/a/new"
    assert guard(f"{data}/a").catalog("acme", catalog).table_around(f"{data}/a/t/below") == f"{data}/a/t"
    assert guard(f"{data}/a").catalog("system", catalog) is catalog


LINKS = {"/top/a/out": "/top/ab", "/top/a/in": "/top/a/x", "/top/ab/back": "/top/a", "/top/a/up": "/top/a/.."}


def modelled(path: str) -> str:
    """Where a path leads: dots count as they are written, then links are followed from the front."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    at = ""
    for part in parts:
        at = f"{at}/{part}"
        while at in LINKS:
            at = posixpath.normpath(LINKS[at])
    return at


@given(st.lists(st.sampled_from(["top", "a", "ab", "x", "out", "in", "back", "up", "..", ".", ""]), max_size=8))
def test_it_decides_as_a_simple_model_of_paths_does(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    base = tmp_path_factory.getbasetemp().resolve() / "modelled"
    if not base.exists():
        for name in ("top/a/x", "top/ab"):
            (base / name).mkdir(parents=True)
        for link, to in LINKS.items():
            Path(f"{base}{link}").symlink_to(f"{base}{to}")
    depth = 0
    for part in parts:  # what leaves the model's own top is elsewhere in any case
        depth += 0 if part in ("", ".") else -1 if part == ".." else 1
        if depth < 0:
            return
    path = "/" + "/".join(["top", *parts])
    assert passes(guard(f"{base}/top/a"), f"{base}{path}") is modelled(path).startswith("/top/a/")


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


def test_a_table_around_a_root_is_not_named_of_place_guard_rooted_catalog() -> None:
    rooted = RootedCatalog(FakeCatalog(described("/lake"), described(INSIDE)), require, outside)
    assert rooted.table_around(f"{OURS}/new") == f"{OURS}/new"
    rooted = RootedCatalog(FakeCatalog(described(INSIDE)), require, outside)
    assert rooted.table_around(f"{INSIDE}/new") == INSIDE
    assert rooted.table_around(f"{OURS}/new") == ""
