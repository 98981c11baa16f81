"""Buckets with a key of their own: what is read of their files, and that whoever opens a table there is given it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import iscp
from iscp.model.settings.config import BucketConfig
from iscp.model.settings.variables import BUCKETS_VARIABLE
from iscp.model.values.errors import ConfigurationError
from iscp.storage import files
from iscp.storage.s3_settings import (
    FILE_BYTES_MAX,
    endpoint_of,
    key_of,
    read_key,
    table_options,
)

KEY = "[default]\naws_access_key_id = who\naws_secret_access_key = hush%h=\n"
SETTING = "storage.s3.buckets.acme.credentials_file"
HOME = Path(iscp.__file__).parent
ON_HANDLES = {"delta/sink/target_write.py", "delta/joblog/delta_job_log.py"}
"""Where `write_deltalake` writes to a table that is open."""


def bucket(tmp_path: Path, text: str = KEY, **others: str) -> BucketConfig:
    file = tmp_path / "keys"
    file.write_text(text)
    return BucketConfig(credentials_file=str(file), **others)


def test_a_key_is_read_as_others_read_such_files(tmp_path: Path) -> None:
    key = read_key("acme", bucket(tmp_path, f"# ours\n{KEY}aws_session_token=now\n[other]\nregion = x\n"), {})
    assert (key.access_key_id, key.secret, key.token) == ("who", "hush%h=", "now")
    assert "hush" not in repr(key)
    assert "now" not in repr(key)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no aws_access_key_id and no aws_secret_access_key"),
        ("[default]\naws_access_key_id = hush\n", "has no aws_secret_access_key"),
        ("[default]\naws_access_key_id =\naws_secret_access_key = hush\n", "has no aws_access_key_id"),
        ("[other]\naws_access_key_id = hush\naws_secret_access_key = hush\n", "has no aws_access_key_id"),
        ("hush", "is no file of keys"),
        ("[default]\nhush\n", "is no file of keys"),
        (f"{KEY}{KEY}", "is no file of keys"),
        ("#" * (FILE_BYTES_MAX + 1), f"has more than {FILE_BYTES_MAX} bytes"),
    ],
)
def test_a_file_without_a_whole_key_is_refused_and_not_repeated(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_key("acme", bucket(tmp_path, text), {})
    assert said in refused.value.message
    assert refused.value.field == SETTING
    assert "aws_secret_access_key" in refused.value.remedy
    assert "hush" not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None, "a log would show what was read"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nothing cannot be read \(No such file") as refused:
        read_key("acme", BucketConfig(credentials_file=f"{tmp_path}/nothing"), {})
    assert refused.value.field == SETTING


def test_a_token_of_the_environment_does_not_go_with_another_key(tmp_path: Path) -> None:
    environ = {"AWS_SESSION_TOKEN": "of another"}
    with pytest.raises(ConfigurationError, match="AWS_SESSION_TOKEN is set") as refused:
        read_key("acme", bucket(tmp_path), environ)
    assert "of another" not in str(refused.value)
    assert read_key("acme", bucket(tmp_path, f"{KEY}aws_session_token = now\n"), environ).token == "now"


def test_only_what_lies_in_the_bucket_is_reached_with_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = bucket(tmp_path).credentials_file
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://store")
    named = {"acme": {"credentials_file": file, "endpoint": "http://own/"}, "b": {"credentials_file": file}}
    monkeypatch.setenv(BUCKETS_VARIABLE, json.dumps(named))
    own = {"AWS_ACCESS_KEY_ID": "who", "AWS_SECRET_ACCESS_KEY": "hush%h="}
    assert table_options("s3://acme/t") == own | {"AWS_ENDPOINT_URL": "http://own", "AWS_ALLOW_HTTP": "true"}
    assert key_of("s3a://acme/t") == key_of("s3://acme")
    assert table_options("s3://b/t") == own
    assert [table_options(uri) for uri in ("s3://acme2/t", "s3://x/acme", "/acme/t", "file:///acme")] == [None] * 4
    assert [endpoint_of(f"s3://{name}/t") for name in ("acme", "b", "c")] == [
        "http://own",
        "https://store",
        "https://store",
    ]
    assert "hush" not in repr(files._client_of("s3://acme/t"))


@pytest.mark.parametrize("text", ["x", "[]", '{"acme": 1}', '{"acme": {"secret": "hush"}}'])
def test_a_variable_that_says_no_buckets_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BUCKETS_VARIABLE, text)
    with pytest.raises(ConfigurationError) as refused:
        table_options("s3://acme/t")
    assert refused.value.field == BUCKETS_VARIABLE
    assert "hush" not in str(refused.value)
    assert table_options("/acme/t") is None


def test_nobody_opens_a_table_by_its_uri_without_its_buckets_key() -> None:
    """By the environment's key it would be another's, in silence."""
    found = dict(_openings())
    assert len(found) >= 8, "the search finds what there is"
    assert [at for at, given in found.items() if not given and at.partition(":")[0] not in ON_HANDLES] == []


def _openings() -> Iterator[tuple[str, bool]]:
    """Each call that opens or makes a table, by file and line, and whether it is given options."""
    for path in sorted(HOME.rglob("*.py")):
        where = path.relative_to(HOME).as_posix()
        if where.startswith("cli/demo/"):  # whose tables are in its own directory
            continue
        text = path.read_text()
        for call in ast.walk(ast.parse(text)) if re.search("deltalake|obstore", text) else ():
            if isinstance(call, ast.Call) and _opens(call):
                yield f"{where}:{call.lineno}", any(each.arg in _GIVEN for each in call.keywords)


_GIVEN = ("storage_options", "options", "config")


def _opens(call: ast.Call) -> bool:
    called = call.args[0] if ast.unparse(call.func) == "partial" and call.args else call.func
    name = ast.unparse(called)
    return name in ("DeltaTable", "DeltaTable.create", "DeltaTable.is_deltatable", "write_deltalake") or name in (
        "DeltaStorageHandler",
        "S3Store",
    )
