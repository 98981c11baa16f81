"""The files of a release, built by scripts/release from a commit: whole, signed, and the same bytes each time.

What builds the wheel is in uv's cache since scripts/setup; nothing is fetched.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.releasing.__main__ import prepare_release
from tests.releasing.building import SUMS, ReleaseError, build, sign, sum_of, verify

ROOT = Path(__file__).parents[2]
VERSION = "9.8.7"


def git(tree: Path, *words: str) -> None:
    who = ("-c", "user.name=Release", "-c", "user.email=release@example.org")
    subprocess.run(["git", "-C", str(tree), *who, *words], check=True, capture_output=True)


def prepared(place: Path) -> Path:
    """A clone of the project with a release of VERSION, not tagged."""
    git(ROOT, "clone", "--quiet", "--no-hardlinks", str(ROOT), str(place))
    (place / "changelog.d").mkdir(exist_ok=True)
    (place / "changelog.d" / "tried.added.md").write_text("It is tried.\n")
    prepare_release(place, VERSION, "2030-01-02")
    git(place, "add", "--all")
    git(place, "commit", "--quiet", "--message", "release", "--date", "2030-01-02T00:00:00Z")
    return place


@pytest.fixture(scope="module", autouse=True)
def offline() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UV_OFFLINE", "1")
        patch.setenv("SOURCE_DATE_EPOCH", "1893542400")
        yield


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("tree") / "iscp")


@pytest.fixture(scope="module")
def release(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("release")
    build(out, root=tree)
    return out


def test_a_release_is_whole(release: Path) -> None:
    names = [
        f"iscp-{VERSION}.cdx.json",
        f"iscp-{VERSION}.md",
        f"iscp-{VERSION}.tgz",
        f"iscp_delta-{VERSION}-py3-none-any.whl",
        f"iscp_delta-{VERSION}.tar.gz",
        f"iscp-{VERSION}.oci.tar",
    ]
    assert sorted(path.name for path in release.iterdir()) == sorted([SUMS, *names])
    sums = dict(line.split("  ")[::-1] for line in (release / SUMS).read_text().splitlines())
    assert sums == {name: sum_of(release / name) for name in names}
    subprocess.run(["sha256sum", "--check", "--quiet", SUMS], cwd=release, check=True)

    with ZipFile(release / names[3]) as wheel:
        assert f"Version: {VERSION}" in wheel.read(f"iscp_delta-{VERSION}.dist-info/METADATA").decode()
        assert f'__version__ = "{VERSION}"' in wheel.read("iscp/__init__.py").decode()
    with tarfile.open(release / names[2]) as chart:
        described = chart.extractfile("iscp/Chart.yaml")
        assert described is not None
        assert f"version: {VERSION}\n" in described.read().decode()
    with tarfile.open(release / names[4]) as source:
        assert f"iscp_delta-{VERSION}/CHANGELOG.md" in source.getnames()
    assert "- It is tried." in (release / names[1]).read_text()


def test_the_bill_names_what_users_install_and_nothing_of_developers(release: Path) -> None:
    found = json.loads((release / f"iscp-{VERSION}.cdx.json").read_text())
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.5")
    assert found["metadata"]["component"]["version"] == VERSION
    names = {each["name"] for each in found["components"]}
    assert {"grpcio", "pyspark", "delta-spark", "deltalake", "duckdb", "pylance", "onnxruntime"} <= names
    assert names.isdisjoint({"pytest", "ruff", "mypy", "hypothesis"})
    assert all(each["purl"].startswith("pkg:pypi/") for each in found["components"])


@pytest.mark.slow
def test_another_build_elsewhere_gives_the_same_bytes(release: Path, tree: Path, tmp_path: Path) -> None:
    """From another folder whose files are of another time, without what lies about in it."""
    other = tmp_path / "a deeper" / "folder"
    other.parent.mkdir()
    git(ROOT, "clone", "--quiet", "--no-hardlinks", str(tree), str(other))
    (other / "iscp" / "left_over.py").write_text("")
    again = tmp_path / "again"
    build(again, root=other)
    assert {path.name: sum_of(path) for path in again.iterdir()} == {
        path.name: sum_of(path) for path in release.iterdir()
    }


def test_what_is_not_prepared_is_not_built(tree: Path, release: Path, tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="has files"):
        build(release, root=tree)
    (tree / "changelog.d" / "more.fixed.md").write_text("There is more.\n")
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "more")
    try:
        with pytest.raises(ReleaseError, match=r"changelog\.d has fragments"):
            build(tmp_path, root=tree)
    finally:
        git(tree, "reset", "--quiet", "--hard", "HEAD~1")


def test_the_command_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    command = [sys.executable, "-m", "tests.releasing", "build", "--out", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"release: {tmp_path} has files: name an empty directory\n"


@pytest.mark.full  # needs ssh-keygen, which a bare machine has not
def test_a_signature_is_of_one_signer_and_of_these_files(release: Path, tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(tmp_path / name)]
        subprocess.run(key, check=True)
    signers = tmp_path / "signers"
    public = (tmp_path / "ours.pub").read_text()
    signers.write_text(f'releases@example.org namespaces="iscp-release" {public}')
    signature = sign(release, tmp_path / "ours")
    verify(release, signers, "releases@example.org")
    with pytest.raises(ReleaseError, match="is not signed by somebody"):
        verify(release, signers, "somebody@example.org")

    wheel = next(release.glob("*.whl"))
    whole = wheel.read_bytes()
    wheel.write_bytes(whole + b"\0")
    with pytest.raises(ReleaseError, match="is not the file that was signed"):
        verify(release, signers, "releases@example.org")
    wheel.write_bytes(whole)

    sign(release, tmp_path / "theirs")
    with pytest.raises(ReleaseError, match="is not signed by releases"):
        verify(release, signers, "releases@example.org")
    signature.unlink()
