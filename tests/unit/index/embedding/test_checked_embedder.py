"""Whatever an embedder answers or raises is either right, or its own fault by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from iscp.core.settings.embedder_faults import BATCH_MAX, DIMENSION_MAX
from iscp.core.values.errors import ErrorCode, IscpError, LeaseLost, PermanentError, StorageError, TemporaryError
from iscp.index.embedding.checked_embedder import BATCH_DEFAULT, FINGERPRINT_CHARS_MAX, CheckedEmbedder
from iscp.index.embedding.embedder import EmbedderBusy, TextsRefusedError
from tests.fakes.embedders import DIMENSION, FakeEmbedder, vector_of


def answering(answer: Any) -> CheckedEmbedder:
    return CheckedEmbedder("theirs", FakeEmbedder(answers=lambda texts: answer))


def raising(error: BaseException) -> CheckedEmbedder:
    return CheckedEmbedder("theirs", FakeEmbedder(faults=[error]))


class Quiet(FakeEmbedder):
    """Its attributes raise when they are read."""

    @property
    def dimension(self) -> int:
        raise SystemExit("gone")

    @dimension.setter
    def dimension(self, value: int) -> None: ...


def test_right_vectors_go_through_as_they_are() -> None:
    vectors = CheckedEmbedder("theirs", FakeEmbedder()).embed(["a", "b"])
    assert (vectors == [vector_of("a"), vector_of("b")]).all()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "None, which is no array"),
        ([[0.0] * DIMENSION] * 2, "no array of numpy"),
        (np.zeros((2, DIMENSION), np.float64), "float64, and not float32"),
        (np.zeros((2, DIMENSION), object), "object, and not float32"),
        (np.zeros((2, DIMENSION + 1), np.float32), f"vectors of {DIMENSION + 1} numbers"),
        (np.zeros((1, DIMENSION), np.float32), "for 2 texts"),
        (np.zeros((3, DIMENSION), np.float32), "for 2 texts"),
        (np.zeros(2 * DIMENSION, np.float32), "for 2 texts"),
        (np.zeros((), np.float32), "for 2 texts"),
        (np.array([[0.0] * DIMENSION, [np.nan] * DIMENSION], np.float32), "text 2 of 2 has a number that is not"),
        (np.array([[np.inf] * DIMENSION, [0.0] * DIMENSION], np.float32), "text 1 of 2"),
    ],
)
def test_a_wrong_answer_is_refused_by_what_is_wrong(answer: Any, words: str) -> None:
    with pytest.raises(PermanentError, match="'theirs' does not keep to its contract") as refused:
        answering(answer).embed(["a", "b"])
    assert words in refused.value.message
    assert refused.value.code is ErrorCode.EMBEDDER_BROKEN
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dimension", 0),
        ("dimension", DIMENSION_MAX + 1),
        ("dimension", True),
        ("dimension", "4"),
        ("fingerprint", ""),
        ("fingerprint", None),
        ("fingerprint", "f" * (FINGERPRINT_CHARS_MAX + 1)),
        ("batch_max", 0),
        ("batch_max", BATCH_MAX + 1),
        ("batch_max", 2.5),
    ],
)
def test_an_embedder_that_is_wrong_of_itself_is_refused(field: str, value: Any) -> None:
    with pytest.raises(PermanentError, match=field) as refused:
        CheckedEmbedder("theirs", FakeEmbedder(**{field: value}))
    assert refused.value.code is ErrorCode.EMBEDDER_BROKEN


def test_one_whose_attributes_raise_fails_by_its_name() -> None:
    with pytest.raises(TemporaryError, match="'theirs' failed when it said what it is: SystemExit: gone"):
        CheckedEmbedder("theirs", Quiet())


@pytest.mark.parametrize("error", [ValueError("v"), SystemExit(3), KeyboardInterrupt(), MemoryError(), LeaseLost("l")])
def test_foreign_exceptions_are_tried_again(error: BaseException) -> None:
    with pytest.raises(TemporaryError, match="the embedder 'theirs' failed when it embedded texts") as failed:
        raising(error).embed(["a"])
    assert failed.value.code is ErrorCode.EMBEDDER_FAILED
    assert type(error).__name__ in failed.value.message


@pytest.mark.parametrize("error", [StorageError("full", remedy="wait"), PermanentError("wrong", remedy="repair")])
def test_errors_of_iscp_stay_what_they_are(error: IscpError) -> None:
    with pytest.raises(IscpError) as failed:
        raising(error).embed(["a"])
    assert failed.value.message == f"the embedder 'theirs': {error.message}"
    assert (failed.value.code, failed.value.remedy) == (error.code, error.remedy)


@pytest.mark.parametrize(
    ("given", "taken"), [(3.5, 3.5), (0, 0.0), (1e9, 86_400.0), (-1.0, 0.0), ("soon", 0.0), (float("nan"), 0.0)]
)
def test_a_busy_embedder_says_for_how_long_within_bounds(given: Any, taken: float) -> None:
    with pytest.raises(EmbedderBusy, match="full up") as failed:
        raising(EmbedderBusy("full up", retry_after_s=given)).embed(["a"])
    assert failed.value.retry_after_s == taken


def test_refused_texts_are_not_a_fault_of_the_embedder() -> None:
    with pytest.raises(TextsRefusedError, match=r"^too long$"):
        raising(TextsRefusedError("too long")).embed(["a"])


def test_a_definition_lowers_the_batch_and_never_raises_it() -> None:
    assert CheckedEmbedder("e", FakeEmbedder(batch_max=8)).batch == 8
    assert CheckedEmbedder("e", FakeEmbedder(batch_max=8), batch=3).batch == 3
    assert CheckedEmbedder("e", FakeEmbedder(batch_max=8), batch=100).batch == 8


def test_a_class_need_not_say_its_batch() -> None:
    class Short:
        dimension = 1
        fingerprint = "short"

        def embed(self, texts: Sequence[str], /) -> Any: ...

    assert CheckedEmbedder("e", Short()).batch == BATCH_DEFAULT


def test_a_revision_changes_the_fingerprint() -> None:
    plain, revised = (CheckedEmbedder("e", FakeEmbedder(), revision=each) for each in ("", "2"))
    assert plain.fingerprint == "fake/1"
    assert revised.fingerprint not in ("", plain.fingerprint)
    renamed = CheckedEmbedder("other", FakeEmbedder())
    assert renamed.fingerprint == plain.fingerprint, "a name says nothing of vectors"
