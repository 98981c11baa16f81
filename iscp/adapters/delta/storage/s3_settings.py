"""Gives the settings of S3 to its users: to delta-rs and obstore by the environment, to Spark by its settings.

Credentials are not written down here: they come from the environment, a web identity, a container or an instance, which
all three understand. The environment names the file of each bucket that has a key of its own; Spark gets the key
itself.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from iscp.adapters.delta.storage.bucket_keys import BUCKETS_VARIABLE, ENDPOINT, buckets_variable, key_of, read_key
from iscp.core.settings.session_needs import S3_LOG_STORE, S3_NEEDS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from iscp.adapters.delta.storage.bucket_keys import BucketKey
    from iscp.core.settings.config import S3Config

LOG_STORE = S3_LOG_STORE
_HADOOP = "spark.hadoop.fs.s3a."


def enter_s3(config: S3Config) -> None:
    """Have this process, and children that it starts from now on, find S3. Raises ConfigurationError."""
    bucket_keys(config, os.environ)
    os.environ.pop(BUCKETS_VARIABLE, None)  # of whoever started it
    os.environ.update(s3_environ(config))
    for name in config.buckets:
        key_of(f"s3://{name}")  # cached from now on, as in the JVM: a file may be replaced


def bucket_keys(config: S3Config, environ: Mapping[str, str]) -> dict[str, BucketKey]:
    """Return the keys of buckets that have their own. Raises ConfigurationError where a file has none."""
    return {name: read_key(name, bucket, environ) for name, bucket in config.buckets.items()}


def s3_environ(config: S3Config) -> dict[str, str]:
    """Return variables for delta-rs and obstore, of this process and of its children; none where S3 is not used."""
    if not config.used:
        return {}
    found = {"AWS_REGION": config.region, "AWS_CONDITIONAL_PUT": "etag"}
    if config.endpoint:
        plain = config.endpoint.startswith("http://")
        found |= {"AWS_ENDPOINT_URL": config.endpoint.rstrip("/"), "AWS_ALLOW_HTTP": str(plain).lower()}
    return found | buckets_variable(config.buckets)


def static_keys(environ: Mapping[str, str], *, by_conf: bool = False) -> dict[str, str]:
    """Return the keys in the environment as settings of Spark, where its JVM must not find them there; else nothing.

    Spark notes beside such keys from which machine they are, and ends if that machine's name does not resolve.
    `by_conf`: always, as executors elsewhere have Spark's settings, and not this environment.
    """
    if "AWS_ACCESS_KEY_ID" not in environ or (_own_name_resolves() and not by_conf):
        return {}
    token = environ.get("AWS_SESSION_TOKEN", "")
    keys = _key_conf(environ["AWS_ACCESS_KEY_ID"], environ.get("AWS_SECRET_ACCESS_KEY", ""), token)
    return {f"{_HADOOP}{name}": value for name, value in keys.items()}


def _key_conf(access_key_id: str, secret: str, token: str) -> dict[str, str]:
    """Return the settings of a key, which belong below `fs.s3a.`, or below that of a bucket."""
    provider = f"{'Temporary' if token else 'Simple'}AWSCredentialsProvider"
    return {
        "aws.credentials.provider": f"org.apache.hadoop.fs.s3a.{provider}",
        "access.key": access_key_id,
        "secret.key": secret,
        **({"session.token": token} if token else {}),
    }


def _bucket_conf(name: str, key: BucketKey) -> dict[str, str]:
    """Return settings of Hadoop for one bucket, which win over those for all."""
    conf = _key_conf(key.access_key_id, key.secret, key.token)
    if key.region:
        conf["endpoint.region"] = key.region
    if key.endpoint:
        conf |= {"endpoint": key.endpoint, "path.style.access": "true"}
    return {f"{_HADOOP}bucket.{name}.{setting}": value for setting, value in conf.items()}


def _own_name_resolves() -> bool:
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:
        return False
    return True


def s3_conf(
    config: S3Config, environ: Mapping[str, str], buffer_dir: Path | None, *, by_conf: bool = False
) -> dict[str, str]:
    """Return settings of Spark; none where S3 is not used. `buffer_dir`: where uploads are gathered (None: Hadoop's).

    `by_conf` as in `static_keys`. Raises ConfigurationError where a bucket's file has no key. `s3` is the one spelling
    inside, so Hadoop is configured to take it for its `s3a`.
    """
    if not config.used:
        return {}
    hadoop = {
        "fs.s3a.endpoint.region": config.region,
        "fs.s3a.aws.credentials.provider": "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
    }
    if endpoint := config.endpoint or environ.get(ENDPOINT):
        # Buckets by path, as delta-rs has it too.
        hadoop |= {"fs.s3a.endpoint": endpoint.rstrip("/"), "fs.s3a.path.style.access": "true"}
    if buffer_dir is not None:
        hadoop |= {"fs.s3a.buffer.dir": str(buffer_dir)}
    conf = {f"spark.hadoop.{name}": value for name, value in hadoop.items()} | static_keys(environ, by_conf=by_conf)
    for name, key in bucket_keys(config, environ).items():
        conf |= _bucket_conf(name, key)
    return conf | S3_NEEDS
