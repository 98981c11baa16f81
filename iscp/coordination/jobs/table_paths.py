"""Find the places that jobs write and read, by path: what lies above and below one is found without reading all the
others.

A VACUUM of a table deletes what lies in its directory and is not its own, so that no target is ever above or below a
place that another job writes or reads.
"""

from __future__ import annotations

from collections.abc import Iterator

from iscp.core.sql.sql_names import DEAD_LETTER_SUFFIX

_PATHS = ("/", "s3://")


class Places:
    """The jobs of each place, by their ids. A change or a lookup costs with a path's depth, not with the number of
    jobs.

    A place may be any text; only paths lie above or below one another. If `letters` is set, each place stands for the
    table of its dead letters too.
    """

    def __init__(self, *, letters: bool = False) -> None:
        self._letters = letters
        self._here: dict[str, tuple[str, ...]] = {}
        self._below: dict[str, set[str]] = {}  # directory: the names in it that are places, or lead to some

    def at(self, place: str) -> tuple[str, ...]:
        """Return the ids of the jobs that have this very place."""
        return self._here.get(place, ())

    def add(self, place: str, job_id: str) -> None:
        if not place:
            return
        self._here[place] = (*self.at(place), job_id)
        for directory, name in _above(place):
            names = self._below.setdefault(directory, set())
            if name in names:
                return
            names.add(name)

    def remove(self, place: str, job_id: str) -> None:
        """Remove a place that was added."""
        if not place:
            return
        self._here[place] = tuple(each for each in self._here[place] if each != job_id)
        if self._here[place]:
            return
        del self._here[place]
        if place in self._below:
            return
        for directory, name in _above(place):
            self._below[directory].remove(name)
            if self._below[directory]:
                return
            del self._below[directory]
            if directory in self._here:
                return

    def around(self, path: str) -> Iterator[str]:
        """Return the places strictly above and below `path`."""
        for directory, _ in _above(path):
            yield from self._standing_for(directory)
        yield from self._under(path)

    def _standing_for(self, path: str) -> Iterator[str]:
        if path in self._here:
            yield path
        if self._letters and path.endswith(DEAD_LETTER_SUFFIX):
            target = path.removesuffix(DEAD_LETTER_SUFFIX)
            if target in self._here:
                yield target

    def _under(self, path: str) -> Iterator[str]:
        waiting = [path]
        while waiting:
            directory = waiting.pop()
            for name in self._below.get(directory, ()):
                found = f"{directory}/{name}"
                if found in self._here:
                    yield found
                waiting.append(found)


def _above(path: str) -> Iterator[tuple[str, str]]:
    """Return each directory above a path, the nearest first, and the name in it that leads to the path."""
    if not path.startswith(_PATHS):
        return
    while (at := path.rfind("/")) > 0:
        yield path[:at], path[at + 1 :]
        path = path[:at]


def with_letters(target: str) -> tuple[str, str]:
    """Return a target, and where the table of its dead letters is, or would be."""
    return target, target + DEAD_LETTER_SUFFIX
