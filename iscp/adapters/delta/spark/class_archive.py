"""An archive of loaded classes (AppCDS), by which the JVM starts in a fraction of the time.

Decides where it lies and when it fits; a training run makes it, every later start maps it.
"""

from __future__ import annotations

import hashlib
import logging
import subprocess
from typing import TYPE_CHECKING

from iscp.core.values.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iscp.adapters.delta.spark.java import Java

log = logging.getLogger(__name__)

ARCHIVES_MAX = 4
"""Class archives of other Javas and jars that are retained, some 100 MB each; the oldest are deleted."""

BASE_TIMEOUT_S = 120.0
"""How long Java may take to write the archive of its own classes; then the warm-up fails."""


class ClassArchive:
    """The archive for one Java and one class path.

    The JVM ignores an archive whose jars have changed (path, size or time), so these make its name. A Java
    without an archive of its own classes gets one beside it (`base`), in the cache: its home may be read-only.
    """

    def __init__(self, cache_dir: Path, java: Java, class_path: Sequence[Path]) -> None:
        seen = hashlib.sha256(f"{java.home} {java.build}".encode())
        self._java = java
        self._base = None if java.has_class_archive else cache_dir / f"java-{seen.hexdigest()[:16]}.jsa"
        for jar in class_path:
            status = jar.stat()
            seen.update(f"{jar} {status.st_size} {int(status.st_mtime)}\n".encode())
        self.path = cache_dir / f"classes-{seen.hexdigest()[:16]}.jsa"

    def options(self) -> list[str]:
        """Return the JVM options that map the archive; none if it has not been made."""
        if not self.path.exists():
            return []
        both = f"{self._base}:{self.path}" if self._base else str(self.path)
        # An archive that does not fit is ignored without a word: it is an optimization.
        return [f"-XX:SharedArchiveFile={both}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]

    def training_options(self, target: Path) -> list[str]:
        """Return the JVM options that write the classes of a run to `target` at its orderly end."""
        if self._base is not None and not self._base.exists():
            self._make_base(self._base)
        base = [f"-XX:SharedArchiveFile={self._base}"] if self._base else []
        return [*base, f"-XX:ArchiveClassesAtExit={target}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]

    def publish(self, made: Path) -> None:
        """Puts a finished archive in its place, and removes the oldest of the others."""
        made.replace(self.path)
        others = sorted(
            (other for other in self.path.parent.glob("classes-*.jsa") if other != self.path),
            key=lambda other: other.stat().st_mtime,
            reverse=True,
        )
        for old in others[ARCHIVES_MAX:]:
            old.unlink(missing_ok=True)

    def _make_base(self, base: Path) -> None:
        scratch = base.with_suffix(".new")
        command = [str(self._java.executable), "-Xshare:dump", f"-XX:SharedArchiveFile={scratch}"]
        try:
            subprocess.run(command, capture_output=True, timeout=BASE_TIMEOUT_S, check=True)
        except (OSError, subprocess.SubprocessError) as fault:
            raise EngineError(f"{self._java.home}: no archive of Java's own classes ({fault})") from fault
        scratch.replace(base)
