"""What a release is made of: one version, a changelog of fragments, a bill that is the same each time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import iscp
from tests.releasing.__main__ import prepare_release
from tests.releasing.bill import settle_bill
from tests.releasing.changelog import FOLDER, KINDS, fault_of, notes_of, read_fragments, with_fragments
from tests.releasing.versions import PLACES, one_version, set_version, stated_versions

ROOT = Path(__file__).parents[2]
CHANGELOG = """# Changelog

What a reader has to know.

## [Unreleased]

### Fixed

- An older fix.

## [0.1.0] - 2026-11-27

The first.
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files of the project that state its version, with a changelog and a fragment."""
    for place in PLACES:
        name = place.partition(" ")[0]
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "faster.changed.md").write_text("It is faster.\n")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    return tmp_path


def test_wheel_image_and_chart_have_one_version() -> None:
    assert one_version(ROOT) == iscp.__version__
    assert "sed -n 's/^version = " in (ROOT / "scripts/image").read_text(), "the image's tag is the first place's"


def test_the_fragments_of_the_project_can_be_released() -> None:
    fragments = read_fragments(ROOT / FOLDER)
    drafted = with_fragments((ROOT / "CHANGELOG.md").read_text(), fragments)
    assert all(text.splitlines()[0] in drafted for texts in fragments.values() for text in texts)
    assert drafted.count("\n## ") == (ROOT / "CHANGELOG.md").read_text().count("\n## ")


def test_a_version_is_set_in_all_places_at_once(tree: Path) -> None:
    before = {place: (tree / place.partition(" ")[0]).read_text() for place in PLACES}
    set_version(tree, "0.2.0rc1")
    assert set(stated_versions(tree).values()) == {"0.2.0rc1"}
    for place, text in before.items():
        assert (tree / place.partition(" ")[0]).read_text().count("\n") == text.count("\n")
    set_version(tree, "0.1.0")
    assert {place: (tree / place.partition(" ")[0]).read_text() for place in PLACES} == before


@pytest.mark.parametrize("version", ["", "1", "v0.2.0", "0.2", "0.2.0-rc1", "0.2.0\n", "0.2.0.dev1"])
def test_what_is_no_version_changes_nothing(tree: Path, version: str) -> None:
    with pytest.raises(ValueError, match="is no version"):
        set_version(tree, version)
    assert one_version(tree) == iscp.__version__


def test_places_that_differ_are_named(tree: Path) -> None:
    chart = tree / "deploy/helm/iscp/Chart.yaml"
    chart.write_text(chart.read_text().replace(f"\nversion: {iscp.__version__}", "\nversion: 9.9.9"))
    with pytest.raises(ValueError, match=r"Chart\.yaml': '9\.9\.9'"):
        one_version(tree)
    chart.write_text("name: iscp\n")
    with pytest.raises(ValueError, match=r"Chart\.yaml states 0 versions"):
        one_version(tree)


def test_a_release_takes_the_fragments_and_what_stood_there_before(tree: Path) -> None:
    prepare_release(tree, "0.2.0", "2027-01-02")
    text = (tree / "CHANGELOG.md").read_text()
    assert text == CHANGELOG.replace(
        "## [Unreleased]\n\n",
        "## [Unreleased]\n\n## [0.2.0] - 2027-01-02\n\n### Changed\n\n- It is faster.\n\n",
    )
    assert notes_of(text, "0.2.0") == "### Changed\n\n- It is faster.\n\n### Fixed\n\n- An older fix.\n"
    assert notes_of(text, "0.1.0") == "The first.\n"
    assert list((tree / FOLDER).iterdir()) == []
    assert not any(read_fragments(tree / "elsewhere").values())
    assert one_version(tree) == "0.2.0"


def test_a_release_of_nothing_or_of_a_version_that_is_there_changes_nothing(tree: Path) -> None:
    with pytest.raises(ValueError, match=r"has 0\.1\.0 already"):
        prepare_release(tree, "0.1.0", "2027-01-02")
    assert (tree / FOLDER / "faster.changed.md").exists()
    prepare_release(tree, "0.2.0", "2027-01-02")
    after = (tree / "CHANGELOG.md").read_text()
    with pytest.raises(ValueError, match="nothing has changed"):
        prepare_release(tree, "0.3.0", "2027-01-03")
    assert (tree / "CHANGELOG.md").read_text() == after
    assert one_version(tree) == "0.2.0"


def test_fragments_stand_in_the_order_of_kinds_and_names(tree: Path) -> None:
    for name in ("b.added.md", "a.added.md", "z.security.md"):
        (tree / FOLDER / name).write_text(f"Text of\n{name}.\n")
    drafted = with_fragments(CHANGELOG, read_fragments(tree / FOLDER))
    unreleased = drafted[drafted.index("## [Unreleased]") : drafted.index("## [0.1.0]")]
    headings = [line[4:].lower() for line in unreleased.splitlines() if line.startswith("### ")]
    assert headings == [kind for kind in KINDS if kind in headings] == ["added", "changed", "fixed", "security"]
    assert "- Text of\n  a.added.md.\n- Text of\n  b.added.md.\n" in unreleased


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("faster.md", "It is.", "is not named NAME.KIND.md"),
        ("faster.quicker.md", "It is.", "is not named NAME.KIND.md"),
        ("Faster.added.md", "It is.", "is not named NAME.KIND.md"),
        ("a.added.md", " \n", "is empty"),
        ("a.added.md", "- It is.", "begins with a sign"),
        ("a.added.md", "It is", "is no whole sentence"),
        ("a.added.md", "x" * 400 + ".", "has a line of more than"),
    ],
)
def test_a_fragment_that_cannot_be_released_is_named(tree: Path, name: str, text: str, fault: str) -> None:
    (tree / FOLDER / name).write_text(text)
    with pytest.raises(ValueError, match=fault) as refused:
        read_fragments(tree / FOLDER)
    assert name in str(refused.value)


def test_a_fragment_may_end_with_a_link_or_in_bold() -> None:
    assert fault_of("It is faster ([figures](docs/performance.md)).") == fault_of("**Act now.**") == ""


def bill(serial: str, at: str, names: list[str]) -> str:
    components = [{"bom-ref": name, "name": name} for name in names]
    depends = [{"ref": name} for name in reversed(names)]
    metadata = {"timestamp": at, "component": {"name": "iscp-delta"}}
    return json.dumps({"serialNumber": serial, "metadata": metadata, "components": components, "dependencies": depends})


def test_a_bill_is_the_same_each_time_and_another_one_for_other_parts() -> None:
    first = settle_bill(bill("urn:uuid:1", "now", ["a", "b"]), 1_800_000_000)
    assert settle_bill(bill("urn:uuid:2", "later", ["b", "a"]), 1_800_000_000) == first
    found = json.loads(first)
    assert found["metadata"]["timestamp"] == "2027-01-15T08:00:00Z"
    assert [each["name"] for each in found["components"]] == ["a", "b"]
    other = json.loads(settle_bill(bill("urn:uuid:1", "now", ["a", "c"]), 1_800_000_000))
    assert other["serialNumber"] != found["serialNumber"]
