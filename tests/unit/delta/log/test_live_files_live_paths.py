"""Files that are added again, or removed and not there, are found in any history, against a set as its model."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from iscp.delta.log.actions import key_of_file
from iscp.delta.log.commits import Commit, FileMoves, read_commit
from iscp.delta.log.live_files import LivePaths
from iscp.delta.log.readable_files import Named
from tests.fakes.commit_files import commit_path


def named(file: str) -> Named:
    """The path and vector of `PATH`, or of `PATH@OFFSET`."""
    path, _, offset = file.partition("@")
    vector = {"storageType": "u", "pathOrInlineDv": "x" * 20, "offset": int(offset)} if offset else None
    return path, vector


def keys(files: Iterable[str]) -> frozenset[int]:
    return frozenset(key_of_file(*named(each)) for each in files)


@dataclass
class History:
    """Commits, the files that a table has at each version, and which versions are odd."""

    uri: str
    files: dict[int, frozenset[str]] = field(default_factory=lambda: {-1: frozenset()})
    commits: list[Commit] = field(default_factory=list)
    odd: set[int] = field(default_factory=set)
    listed: list[int] = field(default_factory=list)

    def commit(self, added: set[str], removed: set[str], *, described: bool = False) -> None:
        version = len(self.commits)
        there = self.files[version - 1]
        come, gone = keys(added), keys(removed)
        moves = FileMoves(
            come, gone, frozenset() if described else come, come if described and not gone else frozenset()
        )
        self.commits.append(Commit(version, 0.0, "", None, "", None, True, False, None, 0, files=moves))
        self.files[version] = (there - removed) | added
        again = added & (there - removed)
        rows_from_nowhere = described and not removed and added - there
        if removed - there or (again and not described) or rows_from_nowhere:
            self.odd.add(version)
        path = commit_path(self.uri, version)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(version))

    def list_files(self, uri: str, version: int) -> Iterable[Named]:
        self.listed.append(version)
        return map(named, self.files[version])

    def check(self, live: LivePaths, after: int, to: int) -> None:
        found = live.find_odd(self.uri, after, self.commits[after + 1 : to + 1])
        expected = min((version for version in self.odd if after < version <= to), default=None)
        assert (found and found[0]) == expected


@pytest.mark.parametrize("seed", range(30))
def test_every_range_of_a_history_finds_its_first_odd_version(tmp_path: Path, seed: int) -> None:
    draw, history = random.Random(seed), History(str(tmp_path))
    names = [f"f{number % 6}" + ("@1" if number % 2 else "") for number in range(6)] + ["f0@1", "f1", "f1@2", "f2@1"]
    for _ in range(40):
        there = sorted(history.files[len(history.commits) - 1])
        free = [name for name in names if name not in there]
        added = set(draw.sample(free, draw.randint(0, min(2, len(free)))))
        removed = set(draw.sample(there, draw.randint(0, min(2, len(there)))))
        if draw.random() < 0.1:
            added |= {draw.choice(names)}
        if draw.random() < 0.1:
            removed |= {draw.choice(names)} - added
        history.commit(added, removed, described=draw.random() < 0.2)
    live = LivePaths(history.list_files)
    for _ in range(60):
        after = draw.randint(-1, 38)
        history.check(live, after, draw.randint(after + 1, 39))


def test_a_table_that_is_followed_is_listed_once(tmp_path: Path) -> None:
    history = History(str(tmp_path))
    history.commit({"a", "b"}, set())
    live = LivePaths(history.list_files)
    for number in range(1, 20):
        history.commit({f"c{number}"}, {"a"} if number == 3 else set())
        history.check(live, number - 1, number)
    assert history.listed == [0]


def test_commits_without_files_list_none(tmp_path: Path) -> None:
    history = History(str(tmp_path))
    history.commit({"a"}, set())
    for _ in range(3):
        history.commit(set(), set())
    history.check(LivePaths(history.list_files), 0, 3)
    assert history.listed == []


def test_another_log_in_the_same_place_is_listed_again(tmp_path: Path) -> None:
    history, live = History(str(tmp_path)), LivePaths(lambda *_: [("x", None)])
    history.commit({"a"}, set())
    history.commit({"b"}, set())
    assert live.find_odd(history.uri, 0, history.commits[1:]) is None
    commit_path(history.uri, 1).write_text("another commit of this version")
    history.commit({"b"}, set())
    assert live.find_odd(history.uri, 1, history.commits[2:]) is None, "the other table has no file b"


def test_no_more_names_are_remembered_than_allowed(tmp_path: Path) -> None:
    first, second = History(str(tmp_path / "a")), History(str(tmp_path / "b"))
    live = LivePaths(
        lambda uri, version: (first if uri == first.uri else second).list_files(uri, version), bytes_max=16
    )
    for history in (first, second, first, second):
        history.commit({f"f{len(history.commits)}"}, set())
    for number in range(2):
        for history in (first, second):
            history.commit({f"g{number}"}, set())
            history.check(live, number + 1, number + 2)
    assert (first.listed, second.listed) == ([1, 2], [1, 2])


def test_a_file_is_removed_with_the_vector_that_it_has_and_no_other(tmp_path: Path) -> None:
    history = History(str(tmp_path))
    history.commit({"a"}, set())
    for removed in ("a", "a@1", "a@9"):
        commit = Commit(1, 0.0, "", None, "", None, True, False, None, 0, files=FileMoves(went=keys([removed])))
        found = LivePaths(lambda *_: [named("a@1")]).find_odd(history.uri, 0, [commit])
        assert (found is None) is (removed == "a@1")


OF_FILE = {"path": "a", "partitionValues": {}, "size": 1}


def moves_of(uri: Path, *actions: tuple[str, str, bool]) -> FileMoves:
    """Of a commit that adds or removes files, each with whether data changes by it."""
    lines = []
    for kind, file, changes in actions:
        path, vector = named(file)
        about = OF_FILE | {"path": path, "dataChange": changes}
        marked = {"deletionVector": {**vector, "sizeInBytes": 1, "cardinality": 1}} if vector else {}
        lines.append(json.dumps({kind: about | marked}))
    commit_file = commit_path(str(uri), 1)
    commit_file.parent.mkdir(parents=True, exist_ok=True)
    commit_file.write_text("\n".join(lines))
    commit = read_commit(str(uri), 1)
    assert commit is not None
    return commit.files


def test_a_file_that_brings_no_rows_is_there_or_takes_the_place_of_another(tmp_path: Path) -> None:
    assert moves_of(tmp_path, ("add", "a", False)).described == keys(["a"])
    assert moves_of(tmp_path, ("add", "a@1", False)).described == keys(["a@1"])
    assert moves_of(tmp_path, ("remove", "b", False), ("add", "a", False)).described == keys([])
    assert moves_of(tmp_path, ("remove", "a", False), ("add", "a@1", False)).described == keys([])
    assert moves_of(tmp_path, ("remove", "b", False), ("add", "a@1", False)).described == keys(["a@1"])
    assert moves_of(tmp_path, ("remove", "a", True), ("add", "a@1", True)).bringing == keys(["a@1"])


def test_a_file_of_two_vectors_is_added_again_though_one_of_them_went(tmp_path: Path) -> None:
    history = History(str(tmp_path))
    history.commit({"a@1", "a@2"}, set())
    history.commit(set(), {"a@1"})
    history.commit({"a@2"}, set())
    assert history.odd == {2}
    history.check(LivePaths(history.list_files), 0, 2)
