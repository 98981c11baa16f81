"""Which URLs of webhooks are refused at a node's start, by which setting, and without repeating them."""

from __future__ import annotations

import pytest

from iscp.model.settings.config import JobLogConfig, NodeConfig, NotifyConfig
from iscp.model.settings.config_faults import WEBHOOKS_MAX, faults

VALID = "https://hooks.example/iscp?key=t0ken"


def paths(*urls: str, secret_file: str = "") -> list[str]:
    notify = NotifyConfig(webhooks=urls, secret_file=secret_file)
    found = faults(NodeConfig(node_id="n", log=JobLogConfig(uri="/log"), notify=notify))
    assert not any(url in f"{each.message} {each.remedy}" for each in found for url in urls if len(url) > 8)
    return [each.path for each in found]


@pytest.mark.parametrize(
    "url", [VALID, "http://127.0.0.1:8080", "http://[::1]:80/x", "https://u.example/a/b?c=d&e=%20", "http://h_1.local/"]
)
def test_what_can_be_posted_to_is_taken(url: str) -> None:
    assert paths(url) == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://u.example/s3cr3t",
        "file:///etc/s3cr3t",
        "u.example/s3cr3t",
        "https:///s3cr3t",
        "https://user:s3cr3t@u.example/",
        "https://s3cr3t@u.example/",
        "https://u.example:0/s3cr3t",
        "https://u.example:65536/s3cr3t",
        "https://u.example:x/s3cr3t",
        "https://u.example:/s3cr3t",
        "https://u.example:-1/s3cr3t",
        "https://[::1/s3cr3t",
        "https://u.example/s3cr3t#part",
        "https://u.example/s3cr3t\r\nhost: x",
        "https://u.example/s3 cr3t",
        "https://u.exämple/s3cr3t",
        "https://u.example\\@x/s3cr3t",
    ],
)
def test_what_cannot_is_refused_by_its_place(url: str) -> None:
    assert paths(VALID, url) == ["notify.webhooks.1"]


def test_one_that_is_there_twice_too_many_and_a_secret_for_nobody_are_refused() -> None:
    assert paths(VALID, VALID) == ["notify.webhooks.1"]
    assert paths(*(f"{VALID}{n}" for n in range(WEBHOOKS_MAX + 1))) == ["notify.webhooks"]
    assert paths(secret_file="/run/secret") == ["notify.webhooks"]


def test_urls_are_not_shown() -> None:
    assert "t0ken" not in repr(NotifyConfig(webhooks=(VALID,)))
