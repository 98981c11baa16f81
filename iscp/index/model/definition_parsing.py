"""Parse the options of a job that keeps an index, and the stored form of what they define."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from iscp.core.values.errors import ErrorCode, InvalidRequest, PermanentError
from iscp.core.values.untrusted_values import error_text, shown
from iscp.index.model.index_definition import (
    ANALYSIS_VERSION,
    FORMAT,
    LANGUAGES,
    RECALL_DEFAULT,
    TOKEN_LENGTH_DEFAULT,
    Analysis,
    IndexDefinition,
    IndexKind,
    Metric,
    Tokenizer,
    VectorOptions,
    VectorPrecision,
)
from iscp.index.model.option_values import OptionReader, fault

TOKEN_LENGTH_LEAST = 2
"""The least `max_token_length`, in bytes; with a smaller one no word would be indexed."""

TOKEN_LENGTH_MOST = 10_000
"""The greatest `max_token_length`, in bytes; a greater one is refused."""

NGRAM_MOST = 20
"""The most characters of an n-gram; more are refused, as each place of a text has a word for each length."""

RECALL_LEAST = 0.5
"""The least share of the true nearest neighbours that `recall` may require; a smaller one is refused."""

RECALL_MOST = 1.0
"""The greatest `recall`, for which all vectors are compared; a greater one is refused."""

_TEXT_OPTIONS = (
    *("columns", "tokenizer", "min_ngram", "max_ngram", "prefix_only", "language", "stem", "stop_words"),
    *("lower_case", "ascii_folding", "max_token_length", "positions"),
)
_NGRAM_OPTIONS = ("min_ngram", "max_ngram", "prefix_only")
_VECTOR_OPTIONS = ("column", "text", "embed", "metric", "precision", "recall")
_COMMON_OPTIONS = ("stored",)


def options_of(kind: IndexKind) -> tuple[str, ...]:
    """Return the names of the options that a kind has."""
    return (
        *(_TEXT_OPTIONS if kind.has_text else ()),
        *(_VECTOR_OPTIONS if kind.has_vector else ()),
        *_COMMON_OPTIONS,
    )


def parse_definition(kind: str, options: Mapping[str, Any]) -> IndexDefinition:
    """Return what the options of a job define. Each is a text, as on a command line, or a value of JSON.

    Raises InvalidRequest with the option's path for one that is unknown, missing, of another type or out of bounds, and
    for those that contradict each other.
    """
    try:
        chosen = IndexKind(kind)
    except ValueError:
        raise InvalidRequest(
            f"is {shown(kind)}, which is no kind of index",
            field="spec.iteration.consumer.kind",
            remedy=f"Choose one of {', '.join(IndexKind)}",
        ) from None
    reader = OptionReader(chosen, options, options_of(chosen))
    columns = reader.text_columns("columns") if chosen.has_text else ()
    if chosen.has_text and not columns:
        raise fault("columns", "is missing", "Name the text columns to search, as in title^2,body")
    return IndexDefinition(
        kind=chosen,
        columns=columns,
        analysis=_analysis(reader) if chosen.has_text else None,
        vector=_vector(reader) if chosen.has_vector else None,
        stored=reader.names("stored"),
    )


def _analysis(reader: OptionReader) -> Analysis:
    tokenizer = reader.choice("tokenizer", Tokenizer.ICU)
    language = reader.word("language", LANGUAGES)
    if language and not tokenizer.has_words:
        raise fault(
            "language", f"is given with the tokenizer {tokenizer}, which gives no words", "Leave out one of them"
        )
    if tokenizer is not Tokenizer.NGRAM and (needless := [each for each in _NGRAM_OPTIONS if reader.given(each)]):
        raise fault(needless[0], f"is given with the tokenizer {tokenizer}", "Add tokenizer=ngram, or leave it out")
    stem, stop_words = (reader.truth(name, bool(language)) for name in ("stem", "stop_words"))
    for name, wanted in (("stem", stem), ("stop_words", stop_words)):
        if wanted and not language:
            raise fault(name, "is true without a language", "Add language=english, or another one")
    least = reader.whole_number("min_ngram", 3, 1, NGRAM_MOST)
    most = reader.whole_number("max_ngram", max(3, least), 1, NGRAM_MOST)
    if most < least:
        raise fault("max_ngram", f"is {most}, less than min_ngram, which is {least}", "Give a greater one")
    positions = reader.truth("positions", tokenizer is not Tokenizer.NGRAM)
    if positions and tokenizer is Tokenizer.NGRAM:
        raise fault("positions", "is true with the tokenizer ngram, which gives no places", "Leave out one of them")
    return Analysis(
        tokenizer=tokenizer,
        language=language,
        stem=stem,
        stop_words=stop_words,
        lower_case=reader.truth("lower_case", True),
        ascii_folding=reader.truth("ascii_folding", True),
        max_token_length=reader.whole_number(
            "max_token_length", TOKEN_LENGTH_DEFAULT, TOKEN_LENGTH_LEAST, TOKEN_LENGTH_MOST
        ),
        positions=positions,
        min_ngram=least,
        max_ngram=most,
        prefix_only=reader.truth("prefix_only", False),
    )


def _vector(reader: OptionReader) -> VectorOptions:
    column, text, embed = (reader.text(name) for name in ("column", "text", "embed"))
    if column and (text or embed):
        given = "text" if text else "embed"
        raise fault(given, "is given beside column", "Give either the column of vectors, or text and embed")
    if not column and not text and not embed:
        raise fault("column", "is missing", "Name a column of vectors; or give text and embed, to have vectors made")
    if embed and not text:
        raise fault("text", "is missing", "Name the column whose texts the embedder is given")
    if text and not embed:
        raise fault("embed", "is missing", "Name the embedder that makes vectors of the texts")
    return VectorOptions(
        column=column,
        text=text,
        embed=embed,
        metric=reader.choice("metric", Metric.COSINE),
        precision=reader.choice("precision", VectorPrecision.FLOAT32),
        recall=reader.number("recall", RECALL_DEFAULT, RECALL_LEAST, RECALL_MOST),
    )


def _of_analysis(found: IndexDefinition, version: object) -> IndexDefinition:
    if type(version) is not int or not 1 <= version <= ANALYSIS_VERSION:
        raise ValueError(f"its analysis is {shown(version)}, and this version of iscp has 1 to {ANALYSIS_VERSION}")
    return found.analysed_by(version) or found


def definition_from_json(text: str) -> IndexDefinition:
    """Return the definition whose stored form this is. Raises PermanentError for a newer format, or anything else."""
    try:
        stored = json.loads(text)
        number = stored["format"]
        if type(number) is not int or number < 1:
            raise ValueError(f"its format is {shown(number)}")
        if number <= FORMAT:
            return _of_analysis(parse_definition(stored["kind"], stored["options"]), stored.get("analysis", 1))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, InvalidRequest) as error:
        raise PermanentError(
            f"the definition of the index cannot be read ({error_text(error)}): {shown(text)}",
            remedy="Have it built again by `iscp-admin job resync`",
            code=ErrorCode.CONSUMER_BROKEN,
        ) from error
    raise PermanentError(
        f"the definition of the index has format {number}, and this version of iscp reads formats up to {FORMAT}",
        remedy="Upgrade iscp, or have the index built again by this version",
        code=ErrorCode.CONSUMER_BROKEN,
    )
