"""What the page refuses: names that are not its own, forms of other sites, paths that lead away."""

from __future__ import annotations

import pytest

from iscp.model.values.errors import InvalidRequest, NotAuthorized
from iscp.server.page.page_security import (
    HEADERS,
    new_form_key,
    own_path,
    refuse_foreign_host,
    refuse_other_origin,
)

HOST = "lake.example:7432"
OWN = {"host": HOST, "origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}


@pytest.mark.parametrize(
    "host", ["127.0.0.1:7432", "localhost", "LOCALHOST:1", "a.localhost", "[::1]:7432", "10.0.0.1", "Lake.Example:80"]
)
def test_addresses_and_known_names_are_the_pages(host: str) -> None:
    refuse_foreign_host(host, {"lake.example"})


@pytest.mark.parametrize("host", ["", "evil.example", "lake.example.evil", "127.0.0.1.evil", "[", "localhost.evil:1"])
def test_a_name_that_another_site_may_give_this_address_is_refused(host: str) -> None:
    with pytest.raises(NotAuthorized) as caught:
        refuse_foreign_host(host, {"lake.example"})
    assert "page.hosts" in caught.value.remedy


def test_a_form_of_this_page_is_taken() -> None:
    key = new_form_key()
    refuse_other_origin(OWN, key, key)
    refuse_other_origin({"host": HOST, "origin": f"https://{HOST}".upper()}, key, key)
    refuse_other_origin({"host": HOST, "sec-fetch-site": "same-origin"}, key, key)


@pytest.mark.parametrize(
    ("changes", "given", "words"),
    [
        ({"sec-fetch-site": "cross-site"}, "k", "another site"),
        ({"sec-fetch-site": "same-site"}, "k", "another site"),
        ({"origin": "http://evil.example"}, "k", "another origin"),
        ({"origin": "null"}, "k", "another origin"),
        ({"origin": "http://["}, "k", "another origin"),
        ({"origin": "", "sec-fetch-site": ""}, "k", "does not say"),
        ({}, "", "no longer valid"),
        ({}, "ä", "no longer valid"),
    ],
)
def test_a_form_of_another_site_is_refused(changes: dict[str, str], given: str, words: str) -> None:
    with pytest.raises(NotAuthorized) as caught:
        refuse_other_origin({**OWN, **changes}, given, "k")
    assert words in str(caught.value)


def test_without_a_cookie_no_form_is_taken() -> None:
    with pytest.raises(NotAuthorized):
        refuse_other_origin(OWN, "", "")


@pytest.mark.parametrize("path", ["//evil.example", "http://evil.example", "", "job", "/\\evil", "/a b", "/a\nb", "/é"])
def test_a_login_leads_nowhere_else(path: str) -> None:
    with pytest.raises(InvalidRequest):
        own_path(path)


def test_a_login_leads_back_to_a_board() -> None:
    assert own_path("/job?table=%2Flake%2Ft&name=copy") == "/job?table=%2Flake%2Ft&name=copy"


def test_browsers_run_no_script_but_the_pages_file() -> None:
    policy = dict(each.strip().split(" ", 1) for each in HEADERS["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
