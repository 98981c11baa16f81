"""Full-text queries: the tree of a query, before its words are made into those of an index, and the text that it is
parsed from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from typing import NoReturn, TypeAlias, assert_never

from iscp.model.api.api_requests import SEARCH_TEXT_CHARS_MAX
from iscp.model.values.errors import InvalidRequest
from iscp.model.values.untrusted_values import shown

# --- the tree of a query ----------------------------------------------------------------------------------------------
# The meaning is that of Lucene's: a query that has something it must match need match nothing that it should match; one
# that has nothing it must match has to match at least one thing that it should; what it must not match never adds to a
# score.

BOOST_LEAST = 0.001
"""The least factor of a score that a query or a column may have, alone or within others; a smaller one is refused."""

BOOST_MOST = 1_000.0
"""The greatest factor of a score that a query or a column may have, alone or within others; a greater one is refused.
"""

FUZZY_DISTANCE_MOST = 2
"""The most changes of a character between a fuzzy word and what it finds, as in Lucene; a greater number is refused."""

SLOP_MOST = 100
"""The most places by which the words of a phrase may be moved; a greater number is refused."""


@dataclass(frozen=True, slots=True)
class Words:
    """A text any of whose words is to be found: each is a `should`. `text` has one blank between its words."""

    text: str
    columns: tuple[str, ...]
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words that are to be found one after the other, or moved by at most `slop` places in all."""

    text: str
    slop: int
    columns: tuple[str, ...]
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Prefix:
    """The beginning of words, each of which is to be found."""

    text: str
    columns: tuple[str, ...]
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Fuzzy:
    """A word that is also found with up to `distance` changes.

    A change is a character more, one less, another one, or two neighbours that have changed places.
    """

    text: str
    distance: int
    columns: tuple[str, ...]
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Boolean:
    """Queries that a document must match, should match and must not match; `boolean` makes them in their one form."""

    must: tuple[Query, ...] = ()
    should: tuple[Query, ...] = ()
    must_not: tuple[Query, ...] = ()


Leaf: TypeAlias = Words | Phrase | Prefix | Fuzzy
Query: TypeAlias = Leaf | Boolean


def boolean(must: Iterable[Query] = (), should: Iterable[Query] = (), must_not: Iterable[Query] = ()) -> Query:
    """Return the one form of a query of several.

    Neighbouring words of the same columns and boost that should match are one text, as they are then analysed at once;
    a single query that must or should match is itself.
    """
    whole = Boolean(tuple(must), tuple(_joined(should)), tuple(must_not))
    positive = (*whole.must, *whole.should)
    return positive[0] if len(positive) == 1 and not whole.must_not else whole


def _joined(queries: Iterable[Query]) -> list[Query]:
    texts: list[str] = []
    joined: list[Query] = []
    for each in queries:
        last = joined[-1] if joined else None
        if isinstance(each, Words) and isinstance(last, Words) and replace(last, text=each.text) == each:
            texts.append(each.text)
            continue
        _put_text(joined, texts)
        joined.append(each)
        texts = [each.text] if isinstance(each, Words) else []
    _put_text(joined, texts)
    return joined


def _put_text(joined: list[Query], texts: list[str]) -> None:
    """Give the last query the text that has gathered for it: once, as adding word by word would be quadratic."""
    if len(texts) > 1 and isinstance(last := joined[-1], Words):
        joined[-1] = replace(last, text=" ".join(texts))


def boosted(query: Query, boost: float) -> Query:
    """Return the query with all its scores multiplied by `boost`, in its one form."""
    if isinstance(query, Boolean):
        parts = (query.must, query.should, query.must_not)
        return boolean(*([boosted(each, boost) for each in part] for part in parts))
    return replace(query, boost=query.boost * boost)


def leaves(query: Query) -> Iterator[Leaf]:
    """Yield all queries within one that are not made of others."""
    if isinstance(query, Boolean):
        for each in (*query.must, *query.should, *query.must_not):
            yield from leaves(each)
    else:
        yield query


# --- the syntax -------------------------------------------------------------------------------------------------------
# The syntax is what Lucene's and Elasticsearch's `query_string` share and people know of it:
#
#     apache arrow        any of the words           "a phrase"   "a phrase"~2   moved by two places at most
#     +must -not          required and excluded      data*        a prefix
#     a AND b, a OR b     NOT, &&, || and ! too      wrod~        fuzzy, by two changes   wrod~1   by one
#     (a b) c             groups                     word^2.5     counts more
#     title:word          one column only            title:(a b), title:"a phrase"
#     \-1 \(c\)           a sign as itself
#
# What Lucene reads in a way that surprises is refused, with the place in the text: AND beside OR without parentheses,
# an OR beside a sign, a query that only excludes. Ranges, regular expressions and signs for single characters are not
# there. The text is read once, from left to right.

CLAUSES_MAX = 256
"""Words and phrases of a query; one with more of them is refused."""

GROUP_DEPTH_MAX = 20
"""Parentheses that are open at a time in a query; what is nested more deeply is refused."""

_FIELD = "query"
_OPERATORS = {"AND": "AND", "OR": "OR", "NOT": "NOT", "&&": "AND", "||": "OR"}
_ENDS_WORD = frozenset('()":^~*?[]{}!')
_NO_START = {
    "[": "begins a range",
    "]": "ends a range that has not begun",
    "{": "begins a range",
    "}": "ends a range that has not begun",
    "<": "begins a range",
    ">": "begins a range",
    "=": "begins a range",
    "/": "begins a regular expression",
    "?": "stands for any character",
    "*": "has no beginning of a word before it",
    "^": "has nothing before it that could count more",
    "~": "has no word before it",
    ":": "has no column before it",
    ")": "closes a parenthesis that is not open",
    "\\": "is the last character",
}
_NUMBER = re.compile(r"[0-9]{1,24}(?:\.[0-9]{1,24})?")
_SIGNS = "+-!"


class _Sign(Enum):
    MUST = "+"
    MUST_NOT = "-"
    NONE = ""


class _Link(Enum):
    """The words between two clauses."""

    AND = "AND"
    OR = "OR"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class _Clause:
    query: Query
    sign: _Sign
    at: int


def parse_query(text: str, columns: Sequence[str]) -> Query:
    """Return the tree of a query. `columns` are those that words without a column are searched in.

    Columns are named without regard to case. Raises InvalidRequest (field `query`) with the place in the text, counted
    in characters from 1.
    """
    if not columns:
        raise InvalidRequest("there are no columns to search in", about=_FIELD, remedy="Name text columns of the index")
    if len(text) > SEARCH_TEXT_CHARS_MAX:
        raise InvalidRequest(
            f"has {len(text)} characters, more than {SEARCH_TEXT_CHARS_MAX}",
            field=_FIELD,
            remedy="Search for less at a time",
        )
    if (found := re.search("[\ud800-\udfff]", text)) is not None:
        _refuse("is half a character, which no text has", found.start(), "Leave it out")
    return _QueryReader(text, tuple(columns)).whole()


class _QueryReader:
    """A reader of one query. `_at` is the place of the next character."""

    def __init__(self, text: str, columns: tuple[str, ...]) -> None:
        self._text = text
        self._at = 0
        self._all = columns
        self._by_name = {name.lower(): name for name in columns}
        self._clauses = 0

    def whole(self) -> Query:
        query = self._clauses_until("", self._all, 0)
        if self._at < len(self._text):
            _refuse(f"`)` {_NO_START[')']}", self._at, "Leave it out, or write \\)")
        return query

    def _clauses_until(self, end: str, columns: tuple[str, ...], depth: int) -> Query:
        """Read clauses up to `end` or the end of the text, and combine them."""
        begin = self._at
        clauses: list[_Clause] = []
        links: list[tuple[_Link, int]] = []
        while True:
            self._skip_blanks()
            if self._next() in (end, "", ")"):
                break
            if clauses:
                links.append(self._link())
            clauses.append(self._clause(columns, depth))
        if not clauses:
            _refuse("there is nothing to search for here", begin, "Write at least one word")
        return _combined(clauses, links, begin)

    def _link(self) -> tuple[_Link, int]:
        at = self._at
        operator = self._operator()
        if operator in ("AND", "OR"):
            self._skip_blanks()
            return _Link(operator), at
        self._at = at
        return _Link.NOTHING, at

    def _operator(self) -> str:
        """Read a word that is an operator, or nothing."""
        for word, operator in _OPERATORS.items():
            if self._text.startswith(word, self._at):
                after = self._text[self._at + len(word) : self._at + len(word) + 1]
                if after == "" or after.isspace() or after in '()"' or not word.isalpha():
                    self._at += len(word)
                    return operator
        return ""

    def _clause(self, columns: tuple[str, ...], depth: int) -> _Clause:
        at = self._at
        sign = self._sign()
        if self._next() in ("", ")"):
            _refuse("there is nothing to search for here", self._at, "Write a word behind it")
        query = self._primary(columns, depth)
        after = self._next()
        if after and not after.isspace() and after != ")":
            _refuse(f"{shown(after)} follows without a blank", self._at, "Write a blank, or \\ before the sign")
        return _Clause(query, sign, at)

    def _sign(self) -> _Sign:
        """Read what says whether a clause is required or excluded; two of these are refused."""
        at = self._at
        if (sign := self._next()) and sign in _SIGNS:
            self._at += 1
            if not self._next() or self._next().isspace():
                _refuse(f"`{sign}` stands alone", at, f"Write it before a word, or \\{sign}")
            kind = _Sign.MUST if sign == "+" else _Sign.MUST_NOT
        elif operator := self._operator():
            if operator != "NOT":
                _refuse(f"{operator} has nothing before it", at, f'Write a word before it; or "{operator}" as a word')
            self._skip_blanks()
            kind = _Sign.MUST_NOT
        else:
            return _Sign.NONE
        here = self._at
        if (self._next() and self._next() in _SIGNS) or self._operator():
            _refuse("a second sign or operator follows the first", here, "Write one of them")
        return kind

    def _primary(self, columns: tuple[str, ...], depth: int) -> Query:
        """Read a word, phrase or group, with its column before it and its boost behind it."""
        at = self._at
        if self._next() == "(":
            return self._group(columns, depth)
        self._clauses += 1
        if self._clauses > CLAUSES_MAX:
            _refuse(f"there are more than {CLAUSES_MAX} words and phrases", at, "Search for less at a time")
        if self._next() == '"':
            return self._boost(self._phrase(columns))
        word = self._word()
        if self._next() != ":":
            return self._boost(self._term(word, columns, at))
        self._at += 1
        column = self._by_name.get(word.lower())
        if column is None:
            raise InvalidRequest(
                f"names the column {shown(word)} at character {at + 1}, which is not searched",
                field=_FIELD,
                remedy=f"Write one of {', '.join(self._all)}; or write \\: if it is no column",
            )
        begin = self._at
        match self._next():
            case "(":
                return self._group((column,), depth)
            case '"':
                return self._boost(self._phrase((column,)))
            case after if not after or after.isspace() or after in _SIGNS:
                _refuse("there is no word behind the column", begin, "Write it directly behind the colon")
        word = self._word()
        if self._next() == ":":
            _refuse("a second colon follows the first", self._at, "Write \\: if it belongs to the word")
        return self._boost(self._term(word, (column,), begin))

    def _group(self, columns: tuple[str, ...], depth: int) -> Query:
        at = self._at
        if depth >= GROUP_DEPTH_MAX:
            _refuse(f"more than {GROUP_DEPTH_MAX} parentheses are open", at, "Nest less deeply")
        self._at += 1
        query = self._clauses_until(")", columns, depth + 1)
        if self._next() != ")":
            _refuse("the parenthesis is not closed", at, "Write ) behind the group, or \\(")
        self._at += 1
        return self._boost(query)

    def _phrase(self, columns: tuple[str, ...]) -> Query:
        begin = self._at
        self._at += 1
        parts: list[str] = []
        while (sign := self._next()) != '"':
            if not sign:
                _refuse("the quotation mark is not closed", begin, 'Write " behind the phrase, or \\"')
            parts.append(self._read_escaped() if sign == "\\" else sign)
            self._at += sign != "\\"
        self._at += 1
        text = " ".join("".join(parts).split())
        if not text:
            _refuse("the phrase is empty", begin, "Write words between the quotation marks")
        slop = 0
        if self._next() == "~":
            self._at += 1
            slop = self._count(SLOP_MOST, "places", least=0)
        return Phrase(text, slop, columns)

    def _word(self) -> str:
        """Read a word up to a blank or a sign that ends it, without its escapes."""
        at = self._at
        if self._next() in _NO_START and not (self._next() == "\\" and at + 1 < len(self._text)):
            _refuse(f"`{self._next()}` {_NO_START[self._next()]}", at, f"Write \\{self._next()} if it is meant")
        parts: list[str] = []
        while (sign := self._next()) and not sign.isspace() and sign not in _ENDS_WORD:
            parts.append(self._read_escaped() if sign == "\\" else sign)
            self._at += sign != "\\"
        text = " ".join("".join(parts).split())
        if not text:
            _refuse("the word is empty", at, "Write a word")
        return text

    def _read_escaped(self) -> str:
        """Read a backslash and what it makes a plain character."""
        sign = self._text[self._at + 1 : self._at + 2]
        if not sign:
            _refuse(f"`\\` {_NO_START[chr(92)]}", self._at, "Write \\\\ if it is meant")
        self._at += 2
        return sign

    def _term(self, word: str, columns: tuple[str, ...], at: int) -> Leaf:
        match self._next():
            case "*":
                self._at += 1
                return Prefix(word, columns)
            case "~":
                self._at += 1
                distance = FUZZY_DISTANCE_MOST
                if self._next().isdigit() or self._next() == ".":
                    distance = self._count(FUZZY_DISTANCE_MOST, "changes", least=1)
                return Fuzzy(word, distance, columns)
            case "?" | "[" | "]" | "{" | "}" | "!" as sign:
                _refuse(f"`{sign}` is within a word", self._at, f"Write \\{sign} if it is meant")
        return Words(word, columns)

    def _boost(self, query: Query) -> Query:
        if self._next() != "^":
            return query
        at = self._at
        self._at += 1
        boost = float(self._number("a number, as in ^2.5"))
        whole = boosted(query, boost)
        if any(not BOOST_LEAST <= each.boost <= BOOST_MOST for each in leaves(whole)):
            _refuse(f"the boost is not between {BOOST_LEAST:g} and {BOOST_MOST:g}", at, "Choose another one")
        return whole

    def _count(self, most: int, unit: str, *, least: int) -> int:
        at = self._at
        text = self._number(f"a number of {unit}")
        if not text.isdecimal() or not least <= int(text) <= most:
            _refuse(f"{text} is no number of {unit} between {least} and {most}", at, "Choose another one")
        return int(text)

    def _number(self, wanted: str) -> str:
        found = _NUMBER.match(self._text, self._at)
        if found is None:
            _refuse(f"there is not {wanted}", self._at, "Write digits; or write \\ before the sign")
        self._at = found.end()
        return found[0]

    def _next(self) -> str:
        """Return the next character, nothing at the end of the text."""
        return self._text[self._at : self._at + 1]

    def _skip_blanks(self) -> None:
        while self._next().isspace():
            self._at += 1


def to_text(query: Query) -> str:
    """Return a text that `parse_query` makes the same tree of, with the columns of those words that have several."""
    if not isinstance(query, Boolean):
        return _leaf_text(query)
    parts = [f"+{_grouped(each)}" for each in query.must]
    parts += [f"({to_text(each)})" if isinstance(each, Boolean) else _leaf_text(each) for each in query.should]
    parts += [f"-{_grouped(each)}" for each in query.must_not]
    return " ".join(parts)


def _grouped(query: Query) -> str:
    several = isinstance(query, Boolean) or (isinstance(query, Words) and " " in query.text)
    return f"({to_text(query)})" if several else to_text(query)


def _leaf_text(leaf: Leaf) -> str:
    column = f"{_plain(leaf.columns[0])}:" if len(leaf.columns) == 1 else ""
    boost = "" if leaf.boost == 1 else f"^{Decimal(repr(leaf.boost)):f}"
    match leaf:
        case Words(text):
            return " ".join(f"{column}{_plain(word)}{boost}" for word in text.split(" "))
        case Phrase(text, slop):
            quoted = re.sub(r'(["\\])', r"\\\1", text)
            return f'{column}"{quoted}"{f"~{slop}" if slop else ""}{boost}'
        case Prefix(text):
            return f"{column}{_plain(text)}*{boost}"
        case Fuzzy(text, distance):
            return f"{column}{_plain(text)}~{distance}{boost}"
        case _ as never:
            assert_never(never)


def _plain(word: str) -> str:
    """Return the word with a backslash before whatever would mean something else."""
    if word in _OPERATORS:
        return f"\\{word}"
    return re.sub(r'[()":^~*?\[\]{}!\\&|\s]|^[-+/<>=]', r"\\\g<0>", word)


def _combined(clauses: Sequence[_Clause], links: Sequence[tuple[_Link, int]], begin: int) -> Query:
    """Return the query of a group's clauses. Raises InvalidRequest where Lucene's meaning would surprise."""
    kinds = {link for link, _ in links}
    if _Link.AND in kinds and len(kinds) > 1:
        at = next(at for link, at in links if link is not links[0][0])
        _refuse(
            "AND stands beside OR, or beside clauses without it", at, "Put parentheses around what belongs together"
        )
    if _Link.OR in kinds and (signed := [each for each in clauses if each.sign is not _Sign.NONE]):
        _refuse(
            "a clause with a sign or NOT stands beside OR", signed[0].at, "Put parentheses around what belongs together"
        )
    plain = _Sign.MUST if _Link.AND in kinds else _Sign.NONE
    by_sign: dict[_Sign, list[Query]] = {each: [] for each in _Sign}
    for each in clauses:
        by_sign[plain if each.sign is _Sign.NONE else each.sign].append(each.query)
    if not by_sign[_Sign.MUST] and not by_sign[_Sign.NONE]:
        _refuse("only excludes", begin, "Add what is to be found")
    return boolean(by_sign[_Sign.MUST], by_sign[_Sign.NONE], by_sign[_Sign.MUST_NOT])


def _refuse(fault: str, at: int, remedy: str) -> NoReturn:
    raise InvalidRequest(f"does not parse at character {at + 1}: {fault}", field=_FIELD, remedy=remedy)
