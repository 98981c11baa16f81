"""Files that change while they are in use: whole renewals are taken up, halves and junk are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from iscp.model.values.errors import ConfigurationError
from iscp.system.tls.certificate_watch import CHECK_S, CertificateWatch, days_left
from tests.fakes.certs import Certs


class Seconds:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def pass_check(self) -> None:
        self.now_s += CHECK_S


@pytest.fixture
def certs(tmp_path: Path) -> Certs:
    return Certs(tmp_path / "certs")


def test_a_renewal_is_taken_up_at_the_next_check_and_not_before(certs: Certs) -> None:
    clock = Seconds()
    watch = CertificateWatch(certs.files("node"), clock=clock)
    first = watch.current()
    certs.authority.renew("node")
    assert watch.current() is first
    clock.pass_check()
    second = watch.current()
    assert second.certificate != first.certificate
    assert second.key == first.key, "a renewal keeps the key"
    clock.pass_check()
    assert watch.current() is second, "the very same until the files change"


def test_of_a_pair_the_first_half_alone_is_not_used(certs: Certs) -> None:
    clock, files = Seconds(), certs.files("node")
    watch = CertificateWatch(files, clock=clock)
    first = watch.current()
    assert files.cert_file
    before = files.cert_file.read_bytes()
    certs.authority.renew("node", new_key=True)
    after = files.cert_file.read_bytes()
    files.cert_file.write_bytes(before)  # with the new key: as if the certificate were not written yet
    clock.pass_check()
    assert watch.current() is first
    files.cert_file.write_bytes(after)
    clock.pass_check()
    assert watch.current().key != first.key


def test_what_cannot_be_used_is_refused_at_first_and_ignored_later(certs: Certs, tmp_path: Path) -> None:
    clock, files = Seconds(), certs.files("node")
    watch = CertificateWatch(files, "security.tls.", clock)
    first = watch.current()
    assert files.cert_file
    files.cert_file.unlink()
    clock.pass_check()
    assert watch.current() is first
    with pytest.raises(ConfigurationError, match=r"security\.tls\.cert_file: .*cannot be read"):
        CertificateWatch(files, "security.tls.", clock)


def test_days_are_those_of_the_own_certificate(certs: Certs) -> None:
    assert days_left(certs.files("client").read()) == 364
