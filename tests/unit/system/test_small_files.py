"""Temporary directories: gone at the end, and where a process was killed, at the next start; those in use stay.

A file is what it was until it is what it is to be.

A file that a setting names is read within a bound, and one that is not there is said with its setting.

Files of TOML: what would cost minutes or gigabytes is refused before it is parsed.

Limits of open files are the operating system's: they are set for processes of their own, and tried there.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from iscp.model.values.errors import ConfigurationError
from iscp.model.values.ids import NODES_MAX
from iscp.system.small_files import (
    FILE_CHARS_MAX,
    KEY_PARTS_MAX,
    OPEN_FILES_BESIDE_NODES,
    SUFFIX,
    files_needed,
    read_named_file,
    read_toml,
    refuse_too_few_files,
    replace_file,
    scratch_directory,
)

_PROGRAM = """
import sys, time
from pathlib import Path
from iscp.system.small_files import scratch_directory
with scratch_directory("node-", Path(sys.argv[1])) as made:
    (made / "a").write_text("")
    print(made, flush=True)
    time.sleep(60)
"""


@contextmanager
def user_of(parent: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    with subprocess.Popen([sys.executable, "-c", _PROGRAM, str(parent)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def names(parent: Path) -> list[str]:
    return sorted(each.name for each in parent.iterdir())


def test_it_is_there_and_then_it_is_gone(tmp_path: Path) -> None:
    with scratch_directory("node-", tmp_path) as made:
        (made / "a").write_text("")
        assert made.parent == tmp_path
        assert made.name.startswith("node-")
        assert made.stat().st_mode & 0o777 == 0o700
    assert names(tmp_path) == []


def test_it_is_gone_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), scratch_directory("node-", tmp_path):
        raise RuntimeError
    assert names(tmp_path) == []


def test_what_a_killed_process_left_goes_at_the_next_start_and_what_is_in_use_stays(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with user_of(tmp_path) as (killed, left), user_of(tmp_path) as (_, used):
        assert left != used
        killed.kill()
        killed.wait()
        assert left.exists()
        with scratch_directory("node-", tmp_path) as made:
            assert names(tmp_path) == sorted(["other", used.name, made.name])
            assert names(used) == ["a"]


def test_files_and_links_of_such_a_name_stay(tmp_path: Path) -> None:
    file, link = f"node-file{SUFFIX}", f"node-link{SUFFIX}"
    (tmp_path / file).write_text("")
    (tmp_path / "kept").mkdir()
    (tmp_path / link).symlink_to(tmp_path / "kept")
    with scratch_directory("node-", tmp_path):
        pass
    assert names(tmp_path) == ["kept", file, link]


def test_directories_of_users_that_begin_alike_stay(tmp_path: Path) -> None:
    (tmp_path / "node-of-mine").mkdir()
    with scratch_directory("node-", tmp_path):
        pass
    assert names(tmp_path) == ["node-of-mine"]


def test_many_that_start_at_the_same_time_have_one_each(tmp_path: Path) -> None:
    def use(_: int) -> bool:
        with scratch_directory("node-", tmp_path) as made:
            (made / "a").write_text("")
            with scratch_directory("node-", tmp_path):
                return (made / "a").exists()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(200)))
    assert names(tmp_path) == []


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_it_has_the_new_content_and_who_may_read_it(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a.pem"
    path.write_bytes(b"before")
    replace_file(path, b"after", mode)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"after", mode)
    assert list(tmp_path.iterdir()) == [path]


def test_where_it_cannot_be_written_the_fault_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "missing" / "a.pem", b"after")


def test_of_a_large_file_one_byte_more_than_allowed_is_read(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"12345")
    assert read_named_file(str(tmp_path / "key"), "a.file", 5) == b"12345"
    assert read_named_file(str(tmp_path / "key"), "a.file", 3) == b"1234"


def test_a_missing_file_is_named_with_its_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="key cannot be read") as refused:
        read_named_file(str(tmp_path / "key"), "a.file", 5)
    assert refused.value.field == "a.file"


LONG = ".".join(["a"] * (KEY_PARTS_MAX + 1))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "iscp.toml"


def refused(file: Path, text: str) -> str:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"^(is|has) ") as refusal:
        read_toml(file)
    return str(refusal.value)


@pytest.mark.parametrize(
    "text",
    [
        f"{LONG} = 1",
        f"x = 1\n  {LONG.replace('.', ' . ')} = 1",
        f"[{LONG}]",
        f"[[ {LONG} ]]",
        f"x = {{ {LONG} = 1 }}",
        f"x = {{ y = 1, {LONG} = 1 }}",
        ".".join(['"a.\\" b"', "'c \"'"] * KEY_PARTS_MAX) + " = 1",
    ],
    ids=["a key", "a later line", "a table", "a list of tables", "in braces", "after a comma", "quoted"],
)
def test_a_key_of_too_many_parts_is_refused_by_its_line(file: Path, text: str) -> None:
    assert refused(file, text) == f"has a key of more than {KEY_PARTS_MAX} parts in line {text.count(chr(10)) + 1}"


def test_as_many_parts_and_texts_with_many_dots_are_read(file: Path) -> None:
    dots = "10.0.0.1:2379, " * KEY_PARTS_MAX + "." * 1000
    file.write_text(f'{LONG.removesuffix(".a")} = "{dots}"\n', encoding="utf-8")
    assert dots in str(read_toml(file))


def test_a_file_that_is_too_long_is_refused_without_reading_all_of_it() -> None:
    with pytest.raises(ValueError, match=f"^has more than {FILE_CHARS_MAX} characters$"):
        read_toml(Path("/dev/zero"))


@pytest.mark.parametrize("text", ["x = " + "[" * 90_000, f"x = {'9' * 5_000}", "x =", "x = 1\nx = 2"])
def test_what_is_no_toml_says_so(file: Path, text: str) -> None:
    assert refused(file, text).startswith("is not TOML: ")


def test_what_is_no_text_says_so(file: Path) -> None:
    file.write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"^is not TOML: "):
        read_toml(file)


@pytest.mark.parametrize(
    "piece",
    ["a.", "a", ",", "{a.", ",a.'", ',"\\', '["a,"', "'", "[a.b]\n", f"{LONG[4:]} = 1\n"],
)
def test_a_file_of_the_greatest_length_takes_a_moment(file: Path, piece: str) -> None:
    text = piece * (FILE_CHARS_MAX // len(piece))
    began_s = time.process_time()
    refused(file, text)
    assert time.process_time() - began_s < 5


ROOT = Path(__file__).parents[3]

LIMIT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
"""
RAISE = "from iscp.system.small_files import raise_open_files_limit; print(raise_open_files_limit())"
START = """
from dataclasses import replace

from iscp.system.threads import SystemClock
from iscp.app.compose import refuse_misfit
from iscp.model.settings.config import JobLogConfig, NodeConfig
from iscp.model.values.errors import ConfigurationError
from tests.fakes.etcd import FakeEtcd, FakeMembership
from tests.fakes.prompt_nodes import node_records

etcd = FakeEtcd(SystemClock())
records = node_records(100)
for record in records:
    FakeMembership(etcd).register(record)
try:
    config = NodeConfig(node_id="n-0", log=JobLogConfig(uri="missing"), listen="127.0.0.1:1")
    refuse_misfit(config, replace(records[0], address="127.0.0.1:1"), FakeMembership(etcd), None)
except ConfigurationError as error:
    print(error.field, error)
"""


def run_limited(code: str, soft: int, hard: int) -> str:
    """What it prints, in a process with these limits."""
    command = [sys.executable, "-c", LIMIT.format(soft=soft, hard=hard) + code]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    assert run_limited(RAISE, 128, 2_000).strip() == "2000"
    assert run_limited(RAISE, 300, 300).strip() == "300"


def test_a_node_that_could_not_lead_its_cluster_is_refused_before_anybody_knows_it() -> None:
    said = run_limited(START, 600, 600)
    assert "ulimit -n" in said
    assert "may have 600 files open" in said
    assert "owner of 100 nodes needs 612" in said
    assert "ulimit" not in run_limited(START, 612, 612)


@pytest.mark.parametrize("nodes", [1, 100, NODES_MAX])
def test_each_node_takes_a_file(nodes: int) -> None:
    refuse_too_few_files(files_needed(nodes), nodes)
    with pytest.raises(ConfigurationError, match=f"{nodes} nodes needs {nodes + OPEN_FILES_BESIDE_NODES}"):
        refuse_too_few_files(files_needed(nodes) - 1, nodes)
