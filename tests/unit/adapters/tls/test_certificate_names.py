"""Which names of a certificate count: DNS names, addresses and the common name, each by its type."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from iscp.adapters.tls.certificate_names import ShownNames, shown_names
from tests.fakes.certificates import certificate_of
from tests.fakes.certs import NODE_NAME, spelled_as


def test_dns_names_addresses_and_the_common_name_count() -> None:
    pem = certificate_of("ana", x509.DNSName("a.example"), x509.IPAddress(ip_address("2001:db8::1")))
    found = ShownNames(frozenset({"a.example"}), frozenset({"ana", "2001:db8::1"}))
    assert shown_names(pem) == found
    assert shown_names(x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)) == found


@pytest.mark.parametrize("kind", spelled_as(NODE_NAME))
def test_no_other_type_counts(kind: str) -> None:
    assert shown_names(certificate_of("", spelled_as(NODE_NAME)[kind])) == ShownNames()
    beside = certificate_of("ana", x509.DNSName("a.example"), spelled_as(NODE_NAME)[kind])
    assert shown_names(beside) == ShownNames(frozenset({"a.example"}), frozenset({"ana"}))


def test_what_cannot_be_read_is_of_nobody() -> None:
    """Not even the common name counts beside alternative names that are unreadable."""
    der = x509.load_pem_x509_certificate(certificate_of("ana", x509.DNSName("a.example"))).public_bytes(Encoding.DER)
    broken = der.replace(b"a.example", b"\xff.example")
    assert broken != der
    for given in (b"", b"x", b"-----BEGIN CERTIFICATE-----\n", broken):
        assert shown_names(given) == ShownNames()
