"""Embedders are found by definition or entry point and made once; only those that are allowed, and what fits.

Whatever an embedder answers or raises is either right, or its own fault by name.

The texts that an embedder refuses are found with few requests, and the others get their vectors.

The class in docs/embedders.md does what it says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import iscp.index.embedding as exported
from iscp.index.embedding.embedder_registry import (
    BATCH_DEFAULT,
    EMBED_FIELD,
    FINGERPRINT_CHARS_MAX,
    GROUP,
    PROBE_TEXT,
    CheckedEmbedder,
    EmbedderBusy,
    EmbedderRegistry,
    TextsRefusedError,
    Vectors,
    embed_apart,
)
from iscp.model.settings.embedder_config import BATCH_MAX, DIMENSION_MAX, OWN_KINDS, EmbedderConfig
from iscp.model.values.errors import (
    ErrorCode,
    InvalidRequest,
    IscpError,
    LeaseLost,
    PermanentError,
    StorageError,
    TemporaryError,
)
from tests.fakes.embedders import DIMENSION, FakeEmbedder, vector_of
from tests.fakes.packages import install

THEIRS = """
import numpy as np

class Good:
    made = []

    def __init__(self, config):
        self.made.append(config.options)
        self.dimension = int(config.options.get("size", "2"))
        self.fingerprint = f"theirs/{self.dimension}"

    def embed(self, texts):
        return np.zeros((len(texts), self.dimension), np.float32)

class Plain:
    def __init__(self, config): ...

class Exits:
    def __init__(self, config):
        raise SystemExit("gone")

class Refuses:
    def __init__(self, config):
        from iscp.model.values.errors import InvalidRequest
        raise InvalidRequest("needs a size", field="their own", remedy="Give options.size\\x1b")
"""
OPENAI = EmbedderConfig(kind="openai", url="https://api.example", model="m", dimension=8, batch=3, revision="b")


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"good": "Good", "plain": "Plain", "exits": "Exits", "refuses": "Refuses", "absent": "Absent"}
    install(tmp_path, "theirs_for_embedding", THEIRS, GROUP, **entries, hashed="Plain")
    monkeypatch.syspath_prepend(str(tmp_path))


def refused(registry: EmbedderRegistry, name: str) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refusal:
        registry.embedder(name)
    assert refusal.value.field == EMBED_FIELD
    assert refusal.value.remedy
    return refusal.value


def test_iscps_own_are_those_that_settings_know() -> None:
    registry = EmbedderRegistry()
    assert registry.absent == ()
    assert registry.names == ("hashed", "minilm")
    assert all(name in OWN_KINDS for name in registry.names)
    assert registry.embedder("hashed").dimension == 256


def test_an_embedder_is_made_once_whoever_comes_first() -> None:
    registry = EmbedderRegistry()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(registry.embedder, ["hashed"] * 64))
    assert {id(each) for each in found} == {id(found[0])}


def test_a_definition_is_an_embedder_of_its_own_name() -> None:
    registry = EmbedderRegistry(definitions={"mine": OPENAI, "small": EmbedderConfig(kind="hashed", dimension=16)})
    assert registry.names == ("hashed", "mine", "minilm", "small")
    mine = registry.embedder("mine")
    assert (mine.name, mine.dimension, mine.batch) == ("mine", 8, 3)
    assert mine.fingerprint.endswith("#b")
    assert registry.embedder("small").dimension == 16
    assert registry.embedder("hashed").dimension == 256


def test_a_definition_gives_one_of_iscps_own_other_defaults() -> None:
    registry = EmbedderRegistry(definitions={"hashed": EmbedderConfig(kind="hashed", dimension=16)})
    assert registry.embedder("hashed").dimension == 16


@pytest.mark.parametrize("name", ["", "Hashed", "nope", "https://evil.example/v1", "/models/x", "x" * 10_000])
def test_an_unknown_name_is_refused_with_those_there_are(name: str) -> None:
    refusal = refused(EmbedderRegistry(definitions={"mine": OPENAI}), name)
    assert "is not an embedder" in refusal.message
    assert len(refusal.message) < 300
    assert "hashed, mine, minilm" in refusal.remedy


@pytest.mark.parametrize(
    ("name", "words"),
    [("openai", "has no url and no model and no dimension here"), ("model2vec", "has no path here")],
)
def test_one_that_needs_options_is_refused_without_a_definition(name: str, words: str) -> None:
    refusal = refused(EmbedderRegistry(), name)
    assert words in refusal.message
    assert "embedders of the node's settings" in refusal.remedy


@pytest.mark.usefixtures("theirs")
def test_code_of_others_runs_once_it_is_allowed() -> None:
    registry = EmbedderRegistry(("good",), {"large": EmbedderConfig(kind="good", options={"size": "5"})})
    assert registry.embedder("good").dimension == 2
    assert registry.embedder("large").fingerprint == "theirs/5"
    assert registry.embedder("large").embed(["a"]).shape == (1, 5)


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize("name", ["good", "large"])
def test_code_that_is_not_allowed_is_not_loaded(name: str) -> None:
    refusal = refused(EmbedderRegistry(("exits",), {"large": EmbedderConfig(kind="good")}), name)
    assert "does not run" in refusal.message
    assert "embedding.allow" in refusal.remedy


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize("step", [1, -1])
def test_nobody_else_takes_the_name_of_one_of_ours(step: int) -> None:
    """In whatever order packages are found."""
    entries = list(entry_points(group=GROUP))[::step]
    assert len([each for each in entries if each.name == "hashed"]) == 2
    assert EmbedderRegistry(("hashed",), entries=entries).embedder("hashed").dimension == 256


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent", "cannot be made: AttributeError"),
        ("exits", "cannot be made: SystemExit: gone"),
    ],
)
def test_code_that_fails_is_reported_and_ends_nothing(name: str, words: str) -> None:
    refusal = refused(EmbedderRegistry((name,)), name)
    assert refusal.code is ErrorCode.EMBEDDER_BROKEN
    assert words in refusal.message


@pytest.mark.usefixtures("theirs")
def test_a_class_that_is_no_embedder_is_refused() -> None:
    refusal = refused(EmbedderRegistry(("plain",)), "plain")
    assert refusal.code is ErrorCode.EMBEDDER_BROKEN
    assert "'plain' is no embedder: it has no dimension, fingerprint, embed" in refusal.message


@pytest.mark.usefixtures("theirs")
def test_a_class_that_refuses_its_options_says_so_of_the_jobs_option() -> None:
    refusal = refused(EmbedderRegistry(("refuses",)), "refuses")
    assert (refusal.message, refusal.remedy) == ("needs a size", "Give options.size\\x1b")


@pytest.mark.usefixtures("theirs")
def test_one_that_fails_is_made_again_the_next_time() -> None:
    registry = EmbedderRegistry(("exits",))
    for _ in range(2):
        refused(registry, "exits")


@pytest.mark.usefixtures("theirs")
def test_what_is_allowed_or_defined_and_not_installed_can_be_reported() -> None:
    registry = EmbedderRegistry(("good", "mislaid"), {"mine": EmbedderConfig(kind="lost")})
    assert registry.absent == ("lost", "mislaid")
    assert (
        "not installed" in refused(EmbedderRegistry(("lost",), {"mine": EmbedderConfig(kind="lost")}), "mine").message
    )


@pytest.mark.usefixtures("theirs")
def test_a_name_is_checked_without_loading_a_model(tmp_path: Path) -> None:
    """The definition `broken` names a directory that is not there."""
    broken = EmbedderConfig(kind="model2vec", path=str(tmp_path / "absent"))
    registry = EmbedderRegistry(("exits",), {"mine": OPENAI, "broken": broken})
    for name in ("hashed", "minilm", "mine", "broken", "exits"):
        registry.check(name)
    for name in ("nope", "openai", "good"):
        with pytest.raises(InvalidRequest) as refusal:
            registry.check(name, "spec")
        assert refusal.value.field == "spec"
    assert "is no directory" in refused(registry, "broken").message


def test_a_search_has_a_field_of_its_own() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        EmbedderRegistry().embedder("nope", "embed")
    assert refusal.value.field == "embed"


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


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_every_text_has_a_vector_or_is_refused(bad: list[bool]) -> None:
    texts = [f"{'bad' if each else 'good'} {number}" for number, each in enumerate(bad)]
    embedder = FakeEmbedder(refuses=frozenset(text for text in texts if text.startswith("bad")))
    found, refused = embed_apart(embedder.embed, texts)
    rows = {start + row: vector for start, vectors in found for row, vector in enumerate(vectors)}
    assert sorted(refused) == [number for number, each in enumerate(bad) if each]
    assert sorted(rows) == [number for number, each in enumerate(bad) if not each]
    assert all((vector == vector_of(texts[number])).all() for number, vector in rows.items())
    assert all(texts[number] in said for number, said in refused.items())


def test_one_bad_text_of_many_takes_few_requests() -> None:
    texts = [f"text {number}" for number in range(64)]
    embedder = FakeEmbedder(refuses=frozenset({"text 37"}))
    embed_apart(embedder.embed, texts)
    assert len(embedder.calls) <= 2 * 6 + 2


def test_an_embedder_that_refuses_everything_is_found_out_soon() -> None:
    calls: list[Sequence[str]] = []

    def embed(texts: Sequence[str]) -> Vectors:
        calls.append(texts)
        return FakeEmbedder(refuses=frozenset(texts)).embed(texts)

    with pytest.raises(PermanentError, match="refuses every text: 'text' is not to my liking") as refused:
        embed_apart(embed, [f"text {number}" for number in range(64)])
    assert refused.value.code is ErrorCode.EMBEDDER_BROKEN
    assert calls[-1] == [PROBE_TEXT]
    assert len(calls) <= 8


def test_what_is_no_refusal_ends_it() -> None:
    with pytest.raises(ZeroDivisionError):
        embed_apart(FakeEmbedder(faults=[ZeroDivisionError()]).embed, ["a", "b"])


ROOT = Path(__file__).parents[4]
LINES_MAX = 20


def test_the_example_is_an_embedder_and_short() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/embedders.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= LINES_MAX
    names: dict[str, type] = {}
    exec(compile(code, "docs/embedders.md", "exec"), names)
    embedder = CheckedEmbedder("word_counts", names["WordCounts"](EmbedderConfig(kind="word_counts")))
    one, same, other = embedder.embed(["a red fox", "Fox red A", "of interest rates"])
    assert (embedder.dimension, embedder.batch) == (512, 256)
    assert (one == same).all()
    assert float(one @ one) > float(one @ other)


def test_what_embedders_need_can_be_imported_from_the_room() -> None:
    assert all(getattr(exported, name).__name__ == name for name in exported.__all__)
