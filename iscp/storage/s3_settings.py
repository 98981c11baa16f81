"""Gives the settings of S3 to its users: to delta-rs and obstore by the environment, to Spark by its settings; buckets
with a key of their own among them.
"""

from __future__ import annotations

import configparser
import json
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from iscp.model.settings.config import BUCKETS_MAX, BucketConfig
from iscp.model.settings.session_needs import S3_LOG_STORE, S3_NEEDS
from iscp.model.settings.variables import BUCKETS_VARIABLE
from iscp.model.values.errors import ConfigurationError
from iscp.model.values.untrusted_values import SettingFault
from iscp.storage.locations import on_s3
from iscp.system.small_files import read_named_file

if TYPE_CHECKING:
    from pathlib import Path

    from iscp.model.settings.config import S3Config


# --- buckets with a key of their own ----------------------------------------------------------------------------------
# The environment says which buckets these are (`ISCP_S3_BUCKETS`, JSON), as it says all else of S3, and where the files
# with their keys lie: so a child finds them too, and no secret is in the environment. A bucket that the variable does
# not name is reached as `AWS_*` say; a bucket that it names never is.

ENDPOINT = "AWS_ENDPOINT_URL"
FILE_BYTES_MAX = 65_536
"""Bytes of a file with a key; a longer one is refused."""

_SECTION = "default"
_ID, _SECRET, _TOKEN = "aws_access_key_id", "aws_secret_access_key", "aws_session_token"
_REMEDY = f"Write [{_SECTION}] and below it {_ID} and {_SECRET}, as in ~/.aws/credentials"


@dataclass(frozen=True, slots=True)
class BucketKey:
    """A key, and where its bucket is. Empty region and endpoint: as of all other buckets."""

    access_key_id: str
    secret: str = field(repr=False)
    token: str = field(repr=False)
    region: str
    endpoint: str

    @property
    def options(self) -> dict[str, str]:
        """Return the options for deltalake and obstore, which then read nothing of a key from the environment."""
        found = {"AWS_ACCESS_KEY_ID": self.access_key_id, "AWS_SECRET_ACCESS_KEY": self.secret}
        if self.token:
            found["AWS_SESSION_TOKEN"] = self.token
        if self.region:
            found["AWS_REGION"] = self.region
        if self.endpoint:
            found["AWS_ENDPOINT_URL"] = self.endpoint
            found["AWS_ALLOW_HTTP"] = str(self.endpoint.startswith("http://")).lower()
        return found


def buckets_variable(buckets: Mapping[str, BucketConfig]) -> dict[str, str]:
    """Return the variable that names the buckets, or nothing where there are none; it has no secret."""
    if not buckets:
        return {}
    return {BUCKETS_VARIABLE: json.dumps({name: asdict(each) for name, each in sorted(buckets.items())})}


def key_of(uri: str) -> BucketKey | None:
    """Return the key for a place on S3; None where `AWS_*` have it, or where the place is local and needs none.

    A file is read once in a process. Raises ConfigurationError where it has no key.
    """
    named = os.environ.get(BUCKETS_VARIABLE)
    if not named or not on_s3(uri):
        return None
    return _key_in(named, uri.partition("://")[2].partition("/")[0])


def table_options(uri: str) -> dict[str, str] | None:
    """Return the options that deltalake needs beside a table's URI. Raises ConfigurationError."""
    key = key_of(uri)
    return key.options if key else None


def endpoint_of(uri: str) -> str:
    """Return the endpoint of a place on S3, or an empty string for AWS. Raises ConfigurationError."""
    key = key_of(uri)
    return (key.endpoint if key else "") or os.environ.get(ENDPOINT, "")


@lru_cache(maxsize=BUCKETS_MAX)
def _key_in(named: str, bucket: str) -> BucketKey | None:
    config = _buckets_in(named).get(bucket)
    return read_key(bucket, config, os.environ) if config else None


@lru_cache(maxsize=1)
def _buckets_in(named: str) -> Mapping[str, BucketConfig]:
    try:
        return {name: BucketConfig(**each) for name, each in json.loads(named).items()}
    except (ValueError, TypeError, AttributeError):
        raise ConfigurationError(
            "says no buckets",
            field=BUCKETS_VARIABLE,
            remedy='Write {"BUCKET": {"credentials_file": "/PATH"}}, and "region" and "endpoint" where they differ',
        ) from None


def read_key(bucket: str, config: BucketConfig, environ: Mapping[str, str]) -> BucketKey:
    """Return the key in the bucket's file. Raises ConfigurationError, whose text shows nothing of the file's
    content.
    """
    setting, file = f"storage.s3.buckets.{bucket}.credentials_file", config.credentials_file
    found = _section_of(file, setting)
    if lacking := [name for name in (_ID, _SECRET) if not found.get(name)]:
        raise ConfigurationError(f"{file} has no {' and no '.join(lacking)}", about=setting, remedy=_REMEDY)
    token = found.get(_TOKEN, "")
    if environ.get("AWS_SESSION_TOKEN") and not token:
        # Both read it from the environment where they are not given another, and would send it with this key.
        raise ConfigurationError(
            f"{file} has no {_TOKEN}, and AWS_SESSION_TOKEN is set, which would be sent with its key",
            about=setting,
            remedy="Reach the other buckets by a key without a token, a web identity or a role",
        )
    return BucketKey(found[_ID], found[_SECRET], token, config.region, config.endpoint.rstrip("/"))


def bucket_faults(buckets: Mapping[str, BucketConfig], environ: Mapping[str, str]) -> Iterator[SettingFault]:
    """Yield a fault for every file without a key."""
    for name, config in buckets.items():
        try:
            read_key(name, config, environ)
        except ConfigurationError as error:
            yield SettingFault.from_error(error)


def _section_of(file: str, setting: str) -> Mapping[str, str]:
    content = read_named_file(file, setting, FILE_BYTES_MAX)
    if len(content) > FILE_BYTES_MAX:
        raise ConfigurationError(f"{file} has more than {FILE_BYTES_MAX} bytes", about=setting, remedy=_REMEDY)
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        parser.read_string(content.decode())
    except (configparser.Error, UnicodeDecodeError):  # which repeat what they do not understand
        raise ConfigurationError(f"{file} is no file of keys", about=setting, remedy=_REMEDY) from None
    return parser[_SECTION] if parser.has_section(_SECTION) else {}


# --- settings for the environment and for Spark -----------------------------------------------------------------------
# Credentials are not written down here: they come from the environment, a web identity, a container or an instance,
# which delta-rs, obstore and Spark all understand. The environment names the file of each bucket that has a key of its
# own; Spark gets the key itself.

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
