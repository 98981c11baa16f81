"""The ends of key prefixes, the encoding and layout of keys, and the settings of the client."""

from __future__ import annotations

from pathlib import Path

import pytest

from iscp.etcd.keys import EtcdSettings, Keys, KeyValue, Listing, key_bytes, key_text, prefix_end
from iscp.model.settings.config import EtcdConfig
from iscp.system.tls.tls_files import TlsFiles


@pytest.mark.parametrize(
    ("prefix", "end"),
    [(b"/a/", b"/a0"), (b"a\xff", b"b"), (b"\xff\xff", b"\x00"), (b"", b"\x00"), (b"a\xfe", b"a\xff")],
)
def test_the_end_of_a_prefix_is_the_first_key_after_it(prefix: bytes, end: bytes) -> None:
    assert prefix_end(prefix) == end


def test_a_key_that_is_not_text_survives() -> None:
    assert key_bytes(key_text(b"/a/\xff\x00")) == b"/a/\xff\x00"


@pytest.mark.parametrize("prefix", ["/iscp", "/iscp/"])
def test_keys_lie_below_the_prefix(prefix: str) -> None:
    keys = Keys(prefix)
    assert keys.node("a") == "/iscp/nodes/a"
    assert keys.epoch("a") == "/iscp/epochs/a"
    assert keys.candidate(255) == "/iscp/election/owner/00000000000000ff"


def test_settings_follow_the_configuration_and_show_no_password() -> None:
    config = EtcdConfig(endpoints=("h:1",), user="u", password="secret", ca_file="ca.pem", request_timeout_s=2.0)
    settings = EtcdSettings.of(config)
    assert settings == EtcdSettings(("h:1",), TlsFiles(ca_file=Path("ca.pem")), "u", "secret", 2.0)
    assert "secret" not in repr(settings)
    assert EtcdSettings.of(EtcdConfig()).tls is None


def test_a_queue_of_keys_is_in_the_order_of_their_creation() -> None:
    first, second, third = (KeyValue(key, b"", created, 9, 1, 0) for key, created in (("b", 3), ("c", 5), ("a", 7)))
    listing = Listing(9, (third, first, second))
    assert [listing.last_before(each.create_revision) for each in (first, second, third)] == [None, first, second]
    assert listing.holds("c", 5)
    assert not listing.holds("c", 4), "it was deleted and created again"
    assert not listing.holds("d", 5)
