"""A batch is tried again for a bounded time, at the embedder's pace, and ends as soon as the work does."""

from __future__ import annotations

import pytest

from iscp.core.values.errors import Canceled, IscpError, PermanentError, Unavailable
from iscp.index.embedding.embedder import EmbedderBusy
from iscp.index.embedding.embedding_attempts import EmbeddingTimes
from tests.fakes.embedders import Bed, FakeEmbedder, vector_of
from tests.fakes.guards import EndingGuard

TIMES = EmbeddingTimes(attempts_max=4, retry_for_s=60.0, pause_first_s=1.0, pause_max_s=3.0)


def test_a_temporary_error_is_tried_again_after_growing_pauses() -> None:
    bed, embedder = Bed(), FakeEmbedder(faults=[Unavailable("off"), ValueError("v"), Unavailable("off")])
    (vector,) = bed.attempts(embedder, times=TIMES).embed(["a"], None)
    assert (vector == vector_of("a")).all()
    assert len(embedder.calls) == 4
    assert sum(bed.slept) == pytest.approx(1.0 + 2.0 + 3.0)


@pytest.mark.parametrize(("chance", "pause_s"), [(0.0, 0.5), (0.999, 1.499)])
def test_half_of_a_pause_is_by_chance(chance: float, pause_s: float) -> None:
    bed = Bed(chance=chance)
    bed.attempts(FakeEmbedder(faults=[Unavailable("off")]), times=TIMES).embed(["a"], None)
    assert sum(bed.slept) == pytest.approx(pause_s)


def test_attempts_are_bounded_and_the_last_error_is_reported() -> None:
    bed, embedder = Bed(), FakeEmbedder(faults=[Unavailable(f"off {number}") for number in range(9)])
    with pytest.raises(IscpError, match="off 3"):
        bed.attempts(embedder, times=TIMES).embed(["a"], None)
    assert len(embedder.calls) == 4


def test_an_embedder_that_says_when_is_waited_for() -> None:
    bed, embedder = Bed(), FakeEmbedder(faults=[EmbedderBusy("full", retry_after_s=7.0)])
    bed.attempts(embedder, times=TIMES).embed(["a"], None)
    assert sum(bed.slept) == pytest.approx(7.0)


def test_one_that_says_a_time_too_far_away_is_not_waited_for() -> None:
    bed, embedder = Bed(), FakeEmbedder(faults=[EmbedderBusy("full", retry_after_s=61.0)])
    with pytest.raises(EmbedderBusy):
        bed.attempts(embedder, times=TIMES).embed(["a"], None)
    assert bed.slept == []


def test_the_time_counts_from_the_first_failure() -> None:
    bed, embedder = Bed(), FakeEmbedder(faults=[EmbedderBusy("full", retry_after_s=40.0)] * 3)
    with pytest.raises(EmbedderBusy):
        bed.attempts(embedder, times=TIMES).embed(["a"], None)
    assert len(embedder.calls) == 2


def test_a_permanent_error_is_not_tried_again() -> None:
    bed, embedder = Bed(), FakeEmbedder(faults=[PermanentError("wrong model")])
    with pytest.raises(PermanentError, match="wrong model"):
        bed.attempts(embedder, times=TIMES).embed(["a"], None)
    assert (len(embedder.calls), bed.slept) == (1, [])


def test_each_attempt_takes_its_place_in_the_pace() -> None:
    bed, embedder = Bed(chance=0.0), FakeEmbedder(faults=[Unavailable("off")])
    attempts = bed.attempts(embedder, per_s=0.1, times=TIMES)
    attempts.embed(["a"], None)
    attempts.embed(["b"], None)
    assert bed.clock.monotonic_s() - 100.0 == pytest.approx(20.0), "three requests, ten seconds apart"


def test_work_that_was_ended_is_not_begun() -> None:
    embedder = FakeEmbedder()
    with pytest.raises(Canceled):
        Bed().attempts(embedder).embed(["a"], EndingGuard(1, Canceled("stop")))
    assert embedder.calls == []


def test_work_that_was_ended_is_not_waited_for() -> None:
    bed, embedder = Bed(), FakeEmbedder(faults=[EmbedderBusy("full", retry_after_s=50.0)])
    with pytest.raises(Canceled):
        bed.attempts(embedder, times=TIMES).embed(["a"], EndingGuard(4, Canceled("stop")))
    assert sum(bed.slept) < 2.0
