"""Makes a release: `scripts/release prepare VERSION`, then `scripts/release build`, and `verify` for who gets it."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.releasing.building import ROOT, ReleaseError, build, sign, verify
from tests.releasing.changelog import FOLDER, read_fragments, released, with_fragments
from tests.releasing.versions import set_version


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/release", description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command")
    commands.add_parser("draft", help="print CHANGELOG.md with the fragments in it")
    prepare = commands.add_parser("prepare", help="write the version everywhere, and the fragments into CHANGELOG.md")
    prepare.add_argument("version")
    prepare.add_argument("--date", default=f"{datetime.now(UTC):%Y-%m-%d}")
    made = commands.add_parser("build", help="build the files of a release from a commit")
    made.add_argument("--out", type=Path, default=ROOT / "dist")
    made.add_argument("--commit", default="HEAD")
    made.add_argument("--key", type=Path, help="an SSH key that signs the sums; none: they are not signed")
    checked = commands.add_parser("verify", help="check the signature and the sums of a folder")
    checked.add_argument("folder", type=Path)
    checked.add_argument("--signers", type=Path, required=True, help="a file of allowed signers (ssh-keygen(1))")
    checked.add_argument("--signer", required=True, help="who has to have signed, as that file names them")
    options = parser.parse_args()
    try:
        _carry_out(options)
    except (ReleaseError, ValueError) as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    return 0


def _carry_out(options: argparse.Namespace) -> None:
    match options.command:
        case "draft":
            sys.stdout.write(_drafted(ROOT))
        case "prepare":
            prepare_release(ROOT, options.version, options.date)
        case "build":
            files = build(options.out, options.commit)
            if options.key is not None:
                files.append(sign(options.out, options.key))
            sys.stdout.write("".join(f"{each}\n" for each in files))
        case _:
            verify(options.folder, options.signers, options.signer)
            sys.stdout.write(f"{options.folder} is signed by {options.signer}\n")


def _drafted(root: Path) -> str:
    return with_fragments((root / "CHANGELOG.md").read_text(), read_fragments(root / FOLDER))


def prepare_release(root: Path, version: str, date: str) -> None:
    """Change the tree into that of the release; nothing where it cannot be. Raises ValueError."""
    changelog = released(_drafted(root), version, date)
    set_version(root, version)
    (root / "CHANGELOG.md").write_text(changelog)
    for path in (root / FOLDER).glob("*"):
        path.unlink()


if __name__ == "__main__":
    sys.exit(main())
