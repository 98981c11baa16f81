"""The files of a release, from what is committed alone, the same bytes each time."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from iscp.spark.jvm_launch import default_cache_dir
from tests.chart.rendering import tool
from tests.releasing.bill import settle_bill
from tests.releasing.changelog import notes_of, read_fragments
from tests.releasing.oci_layout import write_layout
from tests.releasing.versions import one_version

ROOT = Path(__file__).parents[2]
SUMS = "SHA256SUMS"
NAMESPACE = "iscp-release"
"""What a signature is for: one that the same key made for anything else does not pass."""

EXTRAS = ("node", "search", "embed")
"""The extras whose packages are in the bill: all that is meant for production."""

COMMAND_TIMEOUT_S = 600.0


class ReleaseError(Exception):
    """A release that cannot be made, and why."""


def build(out: Path, commit: str = "HEAD", root: Path = ROOT) -> list[Path]:
    """Write wheel, source distribution, chart (as an OCI layout too), bill, notes and their sums into `out`; return
    the files.

    Raises ReleaseError where `out` has files, the versions differ, or changes are not yet in the changelog.
    """
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise ReleaseError(f"{out} has files: name an empty directory")
    epoch_s = int(os.environ.get("SOURCE_DATE_EPOCH") or _run("git", "log", "-1", "--format=%ct", commit, cwd=root))
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch, "tree")
        _check_out(root, commit, tree, epoch_s)
        try:
            version = one_version(tree)
            notes = notes_of((tree / "CHANGELOG.md").read_text(), version)
            if any(read_fragments(tree / "changelog.d").values()):
                raise ReleaseError("changelog.d has fragments: prepare the release first, and commit it")
        except ValueError as error:
            raise ReleaseError(str(error)) from error
        _build_distributions(tree, out, epoch_s)
        _run(str(tool("helm")), "package", str(tree / "deploy/helm/iscp"), "--destination", str(out))
        write_layout(out / f"iscp-{version}.tgz", out / f"iscp-{version}.oci.tar", epoch_s)
        (out / f"iscp-{version}.cdx.json").write_text(settle_bill(_export_bill(tree), epoch_s))
        (out / f"iscp-{version}.md").write_text(notes)
    files = sorted(out.iterdir())
    (out / SUMS).write_text("".join(f"{sum_of(each)}  {each.name}\n" for each in files))
    return [*files, out / SUMS]


def sum_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def sign(out: Path, key: Path) -> Path:
    """Sign the sums with an SSH key (one on a token or in an agent by its public part), and return the signature."""
    signature = out / f"{SUMS}.sig"
    signature.unlink(missing_ok=True)
    _run("ssh-keygen", "-Y", "sign", "-q", "-n", NAMESPACE, "-f", str(key), str(out / SUMS))
    return signature


def verify(out: Path, signers: Path, signer: str) -> None:
    """Raise ReleaseError unless the sums are signed by `signer`, whom the file `signers` names, and all files match."""
    sums, signature = out / SUMS, str(out / f"{SUMS}.sig")
    arguments = ["-Y", "verify", "-n", NAMESPACE, "-f", str(signers), "-I", signer, "-s", signature]
    with sums.open("rb") as signed:
        ended = subprocess.run(["ssh-keygen", *arguments], stdin=signed, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise ReleaseError(f"{sums} is not signed by {signer}: {(ended.stderr or ended.stdout).strip()}")
    for line in sums.read_text().splitlines():
        digest, _, name = line.partition("  ")
        if sum_of(out / name) != digest:
            raise ReleaseError(f"{name} is not the file that was signed")


def _check_out(root: Path, commit: str, tree: Path, epoch_s: int) -> None:
    """Write what is committed into `tree`, all of it as of the one time."""
    archive = tree.with_suffix(".tar")
    _run("git", "archive", "--format=tar", "--output", str(archive), commit, cwd=root)
    with tarfile.open(archive) as packed:
        packed.extractall(tree, filter="data")
    for path in [*tree.rglob("*"), tree]:
        os.utime(path, (epoch_s, epoch_s), follow_symlinks=False)


def _build_distributions(tree: Path, out: Path, epoch_s: int) -> None:
    environ = {"SOURCE_DATE_EPOCH": str(epoch_s)}
    _run(str(find_uv()), "build", "--quiet", "--out-dir", str(out), str(tree), environ=environ)
    (out / ".gitignore").unlink(missing_ok=True)


def _export_bill(tree: Path) -> str:
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    options = ("--frozen", "--no-default-groups", "--preview-features", "sbom-export", "--format", "cyclonedx1.5")
    return _run(str(find_uv()), "export", "--quiet", *options, *extras, cwd=tree)


def find_uv() -> Path:
    """Return uv of the version that scripts/setup installs. Raises ReleaseError if there is none."""
    pinned = re.search(r"(?m)^uv==([\d.]+)", (ROOT / "scripts/uv.txt").read_text())
    assert pinned is not None
    own = default_cache_dir(os.environ) / f"uv-{pinned[1]}" / "bin" / "uv"
    for each in filter(None, (shutil.which("uv"), str(own) if own.exists() else None)):
        if _run(each, "--version").startswith(f"uv {pinned[1]}"):
            return Path(each)
    raise ReleaseError(f"uv {pinned[1]} is not there: run scripts/setup")


def _run(*command: str, cwd: Path | None = None, environ: Mapping[str, str] | None = None) -> str:
    """Return what the command prints. Raises ReleaseError with what it says where it fails."""
    ended = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | (environ or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_TIMEOUT_S,
    )
    if ended.returncode:
        raise ReleaseError(f"{' '.join(command)}: {(ended.stderr or ended.stdout).strip()}")
    return ended.stdout
