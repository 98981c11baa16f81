"""Settings say which embedders turn texts into vectors, and faults say what is wrong with them. See docs/embedders.md.

Jobs name an embedder, and nothing else of it: URLs, files and models are the node's to say.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import ClassVar

from iscp.model.values.untrusted_values import SettingFault, is_loopback, setting, url_fault

# --- settings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderConfig:
    """Jobs may name an embedder that is defined: an entry point of `iscp.embedders` (`kind`) with its options.

    A number that is 0 and a text that is empty leave the choice to the kind. `embedder_faults` says which options a
    kind has. `options` are those of kinds that are not iscp's own.
    """

    kind: str = ""
    url: str = ""
    model: str = ""
    path: str = ""
    key_file: str = ""
    dimension: int = 0
    chars_max: int = 0
    batch: int = 0
    threads: int = 0
    requests_per_s: float = 0.0
    timeout_s: float = 0.0
    revision: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingConfig:
    """All embedders share these settings."""

    allow: tuple[str, ...] = setting(
        (), "Entry points of `iscp.embedders` that may be used in addition to iscp's own, as `kind` or by jobs"
    )
    cache_mb: int = setting(64, "Memory for vectors of texts that were embedded before; 0: none", least=0)


# --- faults of definitions --------------------------------------------------------------------------------------------
# Each fault of the definitions of embedders (`[embedders.NAME]`) is found by its path.

EMBEDDERS_MAX = 64
"""Embedders that a node's settings define; more are refused at the node's start."""

DIMENSION_MAX = 8_192
"""Numbers in a vector; an embedder whose vectors have more is refused."""

BATCH_MAX = 2_048
"""Texts that an embedder is given at once; a greater `batch` is refused."""

MINILM_BATCH_MAX = 32
"""Texts that run through MiniLM at once; a greater `batch` is refused."""

THREADS_MAX = 64
"""Threads on which a model of a node computes; a greater `threads` is refused."""

CHARS_MOST = 1_000_000
"""Characters of a text that are embedded at most; a greater `chars_max` is refused."""

REQUESTS_PER_S_MOST = 10_000.0
"""Requests in a second that `requests_per_s` may allow; a greater one is refused. Leave it out for no limit."""

TIMEOUT_S_MOST = 600.0
"""Seconds that one request to an embedder may take; a greater `timeout_s` is refused."""

WORDS_CHARS_MAX = 256
"""Characters of `model`, `revision` and the names of `options`; a longer one is refused."""

OPTIONS_MAX = 32
"""Options of an embedder that is not iscp's own; more are refused."""

OPTION_CHARS_MAX = 4_000
"""Characters of one such option; a longer one is refused."""

_NAME = re.compile(r"[a-z]([a-z0-9_-]{0,62}[a-z0-9])?")
_NUMBERS: Mapping[str, float] = {
    "dimension": DIMENSION_MAX,
    "chars_max": CHARS_MOST,
    "batch": BATCH_MAX,
    "threads": THREADS_MAX,
    "requests_per_s": REQUESTS_PER_S_MOST,
    "timeout_s": TIMEOUT_S_MOST,
}
_OF_ALL = frozenset({"kind", "batch", "requests_per_s", "revision"})


@dataclass(frozen=True, slots=True)
class KindRule:
    """A kind has options besides those of all, some of which must be given, and bounds of its own."""

    options: frozenset[str]
    required: tuple[str, ...] = ()
    most: tuple[tuple[str, int], ...] = ()


OWN_KINDS: Mapping[str, KindRule] = {
    "hashed": KindRule(frozenset({"dimension", "chars_max"})),
    "minilm": KindRule(frozenset({"threads"}), most=(("batch", MINILM_BATCH_MAX),)),
    "model2vec": KindRule(frozenset({"path"}), ("path",)),
    "openai": KindRule(
        frozenset({"url", "model", "dimension", "key_file", "chars_max", "timeout_s"}), ("url", "model", "dimension")
    ),
    "sentence_transformers": KindRule(frozenset({"path"}), ("path",)),
}
"""The kinds of embedders that are iscp's own."""


def is_embedder(name: str) -> bool:
    """Return whether `name` may name an embedder."""
    return _NAME.fullmatch(name) is not None


def embedder_faults(embedders: Mapping[str, EmbedderConfig], allow: Collection[str]) -> Iterator[SettingFault]:
    """Yield every fault of the definitions; `allow` are the kinds of others that may run."""
    if len(embedders) > EMBEDDERS_MAX:
        yield SettingFault("embedders", f"has more than {EMBEDDERS_MAX} of them", "Leave some out")
    for name, config in embedders.items():
        path = f"embedders.{name}"
        if not is_embedder(name):
            yield SettingFault.about(
                path, f"{name!r} is no name of an embedder", "Use up to 64 of a-z, 0-9, _ and -, a letter first"
            )
        elif name in OWN_KINDS and config.kind != name:
            yield SettingFault(f"{path}.kind", f"is not {name}, which is an embedder of iscp", "Choose another name")
        yield from kind_faults(path, config, allow)


def kind_faults(path: str, config: EmbedderConfig, allow: Collection[str]) -> Iterator[SettingFault]:
    """Yield the faults of one definition, which is at `path`."""
    rule = OWN_KINDS.get(config.kind)
    if not config.kind:
        yield SettingFault(f"{path}.kind", "is missing", f"Use one of {', '.join(OWN_KINDS)}")
    elif rule is not None:
        yield from _rule_faults(path, config, rule)
    elif config.kind not in allow:
        yield SettingFault.about(
            f"{path}.kind",
            f"{config.kind!r} is neither one of {', '.join(OWN_KINDS)} nor allowed",
            "If its code is to be trusted, add it to embedding.allow",
        )
    yield from _number_faults(path, config)
    yield from _text_faults(path, config)


def _rule_faults(path: str, config: EmbedderConfig, rule: KindRule) -> Iterator[SettingFault]:
    for name in rule.required:
        if not getattr(config, name):
            yield SettingFault(f"{path}.{name}", "is missing", f"An embedder of the kind {config.kind} needs it")
    known = _OF_ALL | rule.options
    for each in fields(config):
        if each.name not in known and getattr(config, each.name):
            yield SettingFault(
                f"{path}.{each.name}",
                f"is no option of the kind {config.kind}",
                f"Remove it; the kind has {', '.join(sorted(known))}",
            )
    for name, most in rule.most:
        if getattr(config, name) > most:
            yield SettingFault.about(f"{path}.{name}", f"{getattr(config, name)} is too great", f"Give {most} or less")


def _number_faults(path: str, config: EmbedderConfig) -> Iterator[SettingFault]:
    for name, most in _NUMBERS.items():
        value = getattr(config, name)
        if not isfinite(value) or value < 0:
            yield SettingFault.about(f"{path}.{name}", f"{value} is not a number from 0 on", f"Give at most {most:g}")
        elif value > most:
            yield SettingFault.about(f"{path}.{name}", f"{value:g} is too great", f"Give {most:g} or less")


def _text_faults(path: str, config: EmbedderConfig) -> Iterator[SettingFault]:
    if config.url:
        yield from _url_faults(path, config)
    if config.path and not config.path.startswith("/"):
        yield SettingFault.about(
            f"{path}.path",
            f"{config.path!r} is no absolute path",
            "Name the directory with the model: nothing is downloaded",
        )
    for name, text in (("model", config.model), ("revision", config.revision)):
        if len(text) > WORDS_CHARS_MAX or not text.isprintable():
            yield SettingFault(
                f"{path}.{name}", "is no plain text", f"Give up to {WORDS_CHARS_MAX} characters that can be printed"
            )
    if len(config.options) > OPTIONS_MAX:
        yield SettingFault(f"{path}.options", f"has more than {OPTIONS_MAX} of them", "Leave some out")
    for name, text in config.options.items():
        if len(name) > WORDS_CHARS_MAX or len(text) > OPTION_CHARS_MAX:
            yield SettingFault(
                f"{path}.options.{name[:WORDS_CHARS_MAX]}",
                "is too long",
                f"Give a name of up to {WORDS_CHARS_MAX} characters, and a value of up to {OPTION_CHARS_MAX}",
            )


def _url_faults(path: str, config: EmbedderConfig) -> Iterator[SettingFault]:
    if fault := url_fault(config.url):  # which does not repeat the URL: it may hold a secret
        yield SettingFault(f"{path}.url", fault, "Write https://HOST/v1/embeddings, as the endpoint has it")
    elif config.key_file and not _is_private(config.url):
        yield SettingFault(
            f"{path}.url", "is http beside a key_file: everybody on the way could read the key", "Use https"
        )


def _is_private(url: str) -> bool:
    scheme, _, rest = url.partition("://")
    host = rest.partition("/")[0].partition("?")[0]
    bare = host if re.search(r":\d+$", host) else f"{host}:80"
    return scheme == "https" or is_loopback(bare)
