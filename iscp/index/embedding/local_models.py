"""Run models in a directory of the node, by the libraries sentence-transformers and model2vec, if these are installed.

Nothing is downloaded: `path` is a directory, and a name of a model in some hub is refused by the settings.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from iscp.index.embedding.embedder import Vectors
from iscp.model.settings.embedder_config import EmbedderConfig
from iscp.model.values.errors import InvalidRequest

MODEL_FILES_MAX = 1_000
"""Files in the directory of a model; one with more is refused."""

LOCAL_BATCH_MAX = 32
"""Texts that run through a model of sentence-transformers at once."""

STATIC_BATCH_MAX = 256
"""Texts that are given to a model of model2vec at once."""

LOCAL_CHARS_MAX = 100_000
"""Characters of a text that are given to a model of the node; the rest is left out, and more by the model's own rule.
"""

_CHUNK_BYTES = 1 << 20
_PROBE = "text"


class Encoding(Protocol):
    """A model that a library has loaded is called by one thread at a time."""

    def encode(self, texts: Sequence[str]) -> Any:
        """Return an array of numpy with a row for each of the texts."""


Load = Callable[[Path], Encoding]


class LocalModel:
    """The model is loaded from `path` when the embedder is made. One batch is computed at a time.

    Raises InvalidRequest where the library is not installed, or the directory has no model that it loads.
    """

    kind: ClassVar[str] = ""
    distribution: ClassVar[str] = ""
    batch_max = LOCAL_BATCH_MAX

    def __init__(self, config: EmbedderConfig, load: Load | None = None) -> None:
        self._lock = threading.Lock()
        place = Path(config.path)
        if not config.path.startswith("/") or not place.is_dir():
            raise InvalidRequest(
                f"{self.kind} has no model: {config.path!r} is no directory",
                remedy="Put the model there on every node, as its library saves it; nothing is downloaded",
            )
        try:
            library = "given" if load else version(self.distribution)
        except PackageNotFoundError:
            raise InvalidRequest(
                f"{self.kind} needs the Python package {self.distribution}, which is not installed",
                remedy=f"Run pip install {self.distribution} on every node",
            ) from None
        self._model = (load or self._load)(place)
        self.dimension = int(self.embed([_PROBE]).shape[1])
        self.fingerprint = f"{self.kind}/{library}/{_hash_of(place)[:32]}/{LOCAL_CHARS_MAX}"

    def embed(self, texts: Sequence[str], /) -> Vectors:
        """Return the vectors of `texts`."""
        with self._lock:
            found = self._model.encode([text[:LOCAL_CHARS_MAX] for text in texts])
        return np.ascontiguousarray(found, np.float32)

    def _load(self, place: Path) -> Encoding:
        raise TypeError(f"{type(self).__name__} loads no model")


class SentenceTransformersEmbedder(LocalModel):
    """The embedder `sentence_transformers` runs any model that the library loads without code of the model's own."""

    kind = "sentence_transformers"
    distribution = "sentence-transformers"

    def _load(self, place: Path) -> Encoding:
        return _SentenceModel(place)


class Model2VecEmbedder(LocalModel):
    """The embedder `model2vec` adds up static vectors of tokens: thousands of texts a second on one core."""

    kind = "model2vec"
    distribution = "model2vec"
    batch_max = STATIC_BATCH_MAX

    def _load(self, place: Path) -> Encoding:
        return _StaticModel(place)


class _SentenceModel:
    def __init__(self, place: Path) -> None:
        from sentence_transformers import SentenceTransformer

        self._model = SentenceTransformer(str(place), local_files_only=True, trust_remote_code=False)

    def encode(self, texts: Sequence[str]) -> Any:
        return self._model.encode(
            list(texts), batch_size=LOCAL_BATCH_MAX, show_progress_bar=False, convert_to_numpy=True
        )


class _StaticModel:
    def __init__(self, place: Path) -> None:
        from model2vec import StaticModel

        self._model = StaticModel.from_pretrained(str(place), force_download=False)

    def encode(self, texts: Sequence[str]) -> Any:
        return self._model.encode(list(texts), use_multiprocessing=False)


def _hash_of(place: Path) -> str:
    """Return the hash of all files' names and contents. Raises InvalidRequest where there are too many."""
    files = sorted(path for path in place.rglob("*") if path.is_file())
    if len(files) > MODEL_FILES_MAX:
        raise InvalidRequest(f"{place} has more than {MODEL_FILES_MAX} files", remedy="Name the directory of one model")
    whole = hashlib.sha256()
    for file in files:
        content = hashlib.sha256()
        with file.open("rb") as opened:
            while chunk := opened.read(_CHUNK_BYTES):
                content.update(chunk)
        name = file.relative_to(place).as_posix().encode("utf-8", "surrogateescape")
        whole.update(hashlib.sha256(name).digest() + content.digest())
    return whole.hexdigest()
