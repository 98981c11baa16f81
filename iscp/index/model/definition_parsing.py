"""Parses what defines an index: the options of a job that keeps it, and their stored form; and checks the definition
against the columns of the source.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, TypeVar

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
    TextColumn,
    Tokenizer,
    VectorOptions,
    VectorPrecision,
)
from iscp.index.model.query_syntax import BOOST_LEAST, BOOST_MOST
from iscp.model.values.errors import ErrorCode, InvalidRequest, PermanentError
from iscp.model.values.untrusted_values import error_text, name_hint, one_line, shown

# --- options one by one -----------------------------------------------------------------------------------------------
# Each option is a text or a value of JSON; an error names it by its path.

OPTIONS_PATH = "spec.iteration.consumer.options"

OPTION_CHARS_MAX = 20_000
"""Characters of an option; a longer text is refused."""

NAMED_COLUMNS_MAX = 200
"""Columns that an option may name; one that names more is refused."""

COLUMN_NAME_CHARS_MAX = 255
"""Characters in the name of a column; a longer one is refused."""

_NAME_CHARS_SHOWN = 100
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][+-]?[0-9]{1,2})?")
_TRUTH = {"true": True, "false": False}
E = TypeVar("E", bound=StrEnum)
N = TypeVar("N", int, float)


def fault(name: str, message: str, remedy: str) -> InvalidRequest:
    """Return the error of an option."""
    return InvalidRequest(message, field=f"{OPTIONS_PATH}.{one_line(name, _NAME_CHARS_SHOWN)}", remedy=remedy)


class OptionReader:
    """The options of a job, of which each reader takes one; `known` are those that the kind has."""

    def __init__(self, kind: str, options: Mapping[str, Any], known: Iterable[str]) -> None:
        names = sorted(known)
        for name in options:
            if not isinstance(name, str) or name not in names:
                known_are = f"Its options are {', '.join(names)}"
                remedy = f"{name_hint(str(name), names)} {known_are}".lstrip()
                raise fault(str(name), f"is no option of the consumer {kind}", remedy)
        for name, value in options.items():
            if isinstance(value, str) and len(value) > OPTION_CHARS_MAX:
                raise fault(name, f"has {len(value)} characters, more than {OPTION_CHARS_MAX}", "Make it shorter")
        self._options = options

    def given(self, name: str) -> bool:
        return name in self._options

    def text(self, name: str) -> str:
        """Return a text that names something, empty if it is not given. Raises InvalidRequest."""
        if name not in self._options:
            return ""
        value = self._options[name]
        if not isinstance(value, str) or not value.strip():
            raise fault(name, f"is {shown(value)}, which names nothing", "Give a name, or leave it out")
        return _checked_name(name, value.strip())

    def truth(self, name: str, default: bool) -> bool:
        """Return true or false, from either or their words. Raises InvalidRequest."""
        value = self._options.get(name, default)
        known = _TRUTH.get(value.strip().lower()) if isinstance(value, str) else value
        if not isinstance(known, bool):
            raise fault(name, f"is {shown(value)}, which is neither true nor false", "Give true or false")
        return known

    def whole_number(self, name: str, default: int, least: int, most: int) -> int:
        """Return a whole number within bounds. Raises InvalidRequest."""
        value = self._options.get(name, default)
        if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value.strip()):
            value = int(value)
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            value = int(value)  # a number of JSON may have lost that it is whole
        if isinstance(value, bool) or not isinstance(value, int):
            raise fault(name, f"is {shown(value)}, which is no whole number", f"Give one from {least} to {most}")
        return _bounded(name, value, least, most)

    def number(self, name: str, default: float, least: float, most: float) -> float:
        """Return a number within bounds. Raises InvalidRequest."""
        return number_of(name, self._options.get(name, default), least, most)

    def choice(self, name: str, default: E) -> E:
        """Return a member of an enum by its value, without regard to case. Raises InvalidRequest."""
        kind = type(default)
        return kind(self._chosen(name, default.value, [each.value for each in kind]))

    def word(self, name: str, choices: Iterable[str]) -> str:
        """Return one of the words, empty if it is not given. Raises InvalidRequest."""
        return self._chosen(name, "", list(choices)) if name in self._options else ""

    def _chosen(self, name: str, default: str, choices: list[str]) -> str:
        value = self._options.get(name, default)
        word = value.strip().lower() if isinstance(value, str) else ""
        if word not in choices:
            raise fault(name, f"is {shown(value)}, which is not known", f"Give one of {', '.join(choices)}")
        return word

    def names(self, name: str) -> tuple[str, ...]:
        """Return the columns that an option names: a text with commas, or a list of texts. Raises InvalidRequest."""
        value = self._options.get(name, [])
        listed = value.split(",") if isinstance(value, str) else value
        if not isinstance(listed, list | tuple) or not all(isinstance(each, str) for each in listed):
            raise fault(name, f"is {shown(value)}, which is no list of columns", "Give names with commas between them")
        return _refuse_doubled(name, [_checked_name(name, each.strip()) for each in listed])

    def text_columns(self, name: str) -> tuple[TextColumn, ...]:
        """Return columns with their boosts: `title^2,body`, a list of such texts, or an object of boosts by name.

        Raises InvalidRequest.
        """
        value = self._options.get(name, [])
        if isinstance(value, Mapping):
            given = [(each if isinstance(each, str) else "", boost) for each, boost in value.items()]
        else:
            given = [_with_boost(each) for each in self._listed(name, value)]
        names = _refuse_doubled(name, [_checked_name(name, each) for each, _ in given])
        boosts = [number_of(name, boost, BOOST_LEAST, BOOST_MOST) for _, boost in given]
        return tuple(TextColumn(each, boost) for each, boost in zip(names, boosts, strict=True))

    def _listed(self, name: str, value: Any) -> list[str]:
        listed = value.split(",") if isinstance(value, str) else value
        if not isinstance(listed, list | tuple) or not all(isinstance(each, str) for each in listed):
            raise fault(name, f"is {shown(value)}, which is no list of columns", "Give it as title^2,body")
        return [each.strip() for each in listed]


def _with_boost(text: str) -> tuple[str, Any]:
    column, mark, boost = text.rpartition("^")
    return (column.strip(), boost.strip()) if mark else (text, 1.0)


def number_of(name: str, value: Any, least: float, most: float) -> float:
    """Return a number within bounds, from one or its text. Raises InvalidRequest."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise fault(name, f"has {shown(value)}, which is no number", f"Give one from {least:g} to {most:g}")
    return float(_bounded(name, value, least, most))


def _bounded(name: str, value: N, least: N, most: N) -> N:
    if not least <= value <= most:
        raise fault(name, f"has {shown(value)}, which is not between {least:g} and {most:g}", "Choose another number")
    return value


def _checked_name(name: str, column: str) -> str:
    if not column:
        raise fault(name, "has an empty name", "Give names with one comma between them")
    if len(column) > COLUMN_NAME_CHARS_MAX:
        raise fault(name, f"has a name of {len(column)} characters, more than {COLUMN_NAME_CHARS_MAX}", "Shorten it")
    if not column.isprintable():
        raise fault(name, f"has {shown(column)}, with a character that cannot be seen", "Leave it out")
    return column


def _refuse_doubled(name: str, columns: list[str]) -> tuple[str, ...]:
    if len(columns) > NAMED_COLUMNS_MAX:
        raise fault(name, f"names {len(columns)} columns, more than {NAMED_COLUMNS_MAX}", "Name fewer")
    if len({each.lower() for each in columns}) < len(columns):
        raise fault(name, "names a column twice, but for upper and lower case", "Name each column once")
    return tuple(columns)


# --- definitions ------------------------------------------------------------------------------------------------------

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


# --- the columns of the source ----------------------------------------------------------------------------------------
# What an index is to hold is compared with the columns that its source has.

VECTOR_TYPES = ("array<float>", "array<double>")
"""The types of a column of vectors, by Spark's names. Doubles are stored with the definition's precision."""

STORABLE_TYPES = (
    *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal", "string", "date", "timestamp"),
    *("timestamp_ntz", "binary"),
)
"""The types of columns that an index stores, by Spark's names; a decimal has its precision and scale behind it."""

_SAME = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
"""The types that Delta's log and Spark's SQL name differently."""

_KEY_PATH = "spec.iteration.consumer.key"
_DECIMAL = re.compile(r"decimal(?:\(\d{1,2},\s*-?\d{1,2}\))?")
_TEXT = re.compile(r"string|(?:var)?char\(\d{1,10}\)")


def check_columns(
    definition: IndexDefinition, source_columns: Mapping[str, str], key: Sequence[str]
) -> IndexDefinition:
    """Return the definition with its columns spelled as the source has them.

    `source_columns` has the type of each column by Spark's name. Names match without regard to case, as in Spark.
    Raises InvalidRequest with the option's path for a column that is missing, or of a type that does not fit.
    """
    source = _Source(source_columns)
    columns = tuple(
        replace(each, name=source.required(each.name, "columns", _is_text, "string")) for each in definition.columns
    )
    vector = definition.vector
    if vector is not None and vector.column:
        wanted = " or ".join(VECTOR_TYPES)
        vector = replace(vector, column=source.required(vector.column, "column", _is_vector, wanted))
    elif vector is not None:
        vector = replace(vector, text=source.required(vector.text, "text", _is_text, "string"))
    stored = tuple(
        source.required(name, "stored", is_storable, ", ".join(STORABLE_TYPES)) for name in definition.stored
    )
    if not key:
        raise InvalidRequest(
            "is missing: an index finds rows by it", field=_KEY_PATH, remedy="Name the columns that identify a row"
        )
    for name in key:
        source.refuse_key(name)
    return replace(definition, columns=columns, vector=vector, stored=stored)


def is_storable(kind: str) -> bool:
    """Return whether an index stores columns of a type, by Spark's name."""
    lowered = _SAME.get(kind.lower(), kind.lower())
    return bool(lowered in STORABLE_TYPES or _DECIMAL.fullmatch(lowered) or _TEXT.fullmatch(lowered))


def _is_text(kind: str) -> bool:
    return _TEXT.fullmatch(kind.lower()) is not None


def _is_vector(kind: str) -> bool:
    return kind.lower() in VECTOR_TYPES


class _Source:
    """The columns of a source, found without regard to case."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._columns = columns
        self._by_name = {name.lower(): name for name in columns}

    def required(self, name: str, option: str, fits: Callable[[str], bool], wanted: str) -> str:
        """Return the source's spelling of a column. Raises InvalidRequest if it is not there, or does not fit."""
        found = self._by_name.get(name.lower())
        if found is None:
            raise fault(option, f"names {shown(name)}, which the source does not have", self._remedy())
        if not fits(self._columns[found]):
            raise fault(
                option,
                f"names {shown(found)}, which has the type {shown(self._columns[found])}",
                f"Name columns of the type {wanted}",
            )
        return found

    def refuse_key(self, name: str) -> None:
        """Raise InvalidRequest for a column of the key that is not there, or cannot be stored."""
        found = self._by_name.get(name.lower())
        if found is None:
            raise InvalidRequest(
                f"names {shown(name)}, which the source does not have", field=_KEY_PATH, remedy=self._remedy()
            )
        if not is_storable(self._columns[found]):
            raise InvalidRequest(
                f"names {shown(found)}, which has the type {shown(self._columns[found])}",
                field=_KEY_PATH,
                remedy=f"Name columns of the types {', '.join(STORABLE_TYPES)}",
            )

    def _remedy(self) -> str:
        return f"Its columns are {', '.join(self._columns)}"
