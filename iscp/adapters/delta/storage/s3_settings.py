"""Where those who use S3 find it: delta-rs and obstore by the environment, Spark by its settings.

Credentials are never written down here: they come from the environment, a web identity, a container or an instance,
which all three understand.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from iscp.core.config import S3Config

LOG_STORE = "io.iscp.delta.ConditionalPutLogStore"
_SCHEMES = ("s3", "s3a")


def s3_environ(config: S3Config) -> dict[str, str]:
    """Variables for delta-rs and obstore, of this process and of its children; none where S3 is not used."""
    if not config.used:
        return {}
    found = {"AWS_REGION": config.region, "AWS_CONDITIONAL_PUT": "etag"}
    if config.endpoint:
        plain = config.endpoint.startswith("http://")
        found |= {"AWS_ENDPOINT_URL": config.endpoint.rstrip("/"), "AWS_ALLOW_HTTP": str(plain).lower()}
    return found


def static_keys(environ: Mapping[str, str], *, by_conf: bool = False) -> dict[str, str]:
    """The keys in the environment as settings of Spark, where its JVM must not find them there; else nothing.

    Spark notes beside such keys from which machine they are, and ends if that machine's name does not resolve.
    `by_conf`: always, as executors elsewhere have Spark's settings, and not this environment.
    """
    if "AWS_ACCESS_KEY_ID" not in environ or (_own_name_resolves() and not by_conf):
        return {}
    token = environ.get("AWS_SESSION_TOKEN")
    provider = f"{'Temporary' if token else 'Simple'}AWSCredentialsProvider"
    keys = {
        "fs.s3a.aws.credentials.provider": f"org.apache.hadoop.fs.s3a.{provider}",
        "fs.s3a.access.key": environ["AWS_ACCESS_KEY_ID"],
        "fs.s3a.secret.key": environ.get("AWS_SECRET_ACCESS_KEY", ""),
        **({"fs.s3a.session.token": token} if token else {}),
    }
    return {f"spark.hadoop.{name}": value for name, value in keys.items()}


def _own_name_resolves() -> bool:
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:
        return False
    return True


def s3_conf(
    config: S3Config, environ: Mapping[str, str], buffer_dir: Path | None, *, by_conf: bool = False
) -> dict[str, str]:
    """Settings of Spark; none where S3 is not used. `buffer_dir`: where what is uploaded is gathered (None: Hadoop's).

    `by_conf` as in `static_keys`.
    `s3` is the one spelling inside, so Hadoop is configured to take it for its `s3a`.
    """
    if not config.used:
        return {}
    hadoop = {
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.AbstractFileSystem.s3.impl": "org.apache.hadoop.fs.s3a.S3A",
        "fs.s3a.endpoint.region": config.region,
        "fs.s3a.aws.credentials.provider": "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
    }
    if endpoint := config.endpoint or environ.get("AWS_ENDPOINT_URL"):
        # Buckets by path, as delta-rs has it too.
        hadoop |= {"fs.s3a.endpoint": endpoint.rstrip("/"), "fs.s3a.path.style.access": "true"}
    if buffer_dir is not None:
        hadoop |= {"fs.s3a.buffer.dir": str(buffer_dir)}
    conf = {f"spark.hadoop.{name}": value for name, value in hadoop.items()} | static_keys(environ, by_conf=by_conf)
    return conf | {f"spark.delta.logStore.{scheme}.impl": LOG_STORE for scheme in _SCHEMES}
