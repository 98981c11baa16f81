"""The table of equality: expressions by which both engines are compared, each for an entry of the allow-list.

A case names the entry that it shows, the SQL that Spark's parser reads, and the rows. One with `refused` shows a guard:
its expression is left to Spark for this reason, and would have another value if it were not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from tests.equality import samples
from tests.equality.samples import ARRAYS, COMPARED, DECIMALS, FLOATS, INTS, MOMENTS, TIMES, element_of


class Shape(Enum):
    """The rows and the query of a case."""

    PAIRS = "a row for each pair of values"
    CUT = "a row for each value and small number"
    GROUPS = "an aggregate of each group"
    QUERY = "a whole query over groups"
    WINDOWS = "a value over windows"


Types = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Case:
    """A case. With `loose` doubles are added in the order of rows, and compared to nine digits; with `exact` the query
    has exact sums, and Spark runs the plan that views are made of.
    """

    entry: str
    sql: str
    types: Types
    shape: Shape = Shape.PAIRS
    refused: str = ""
    loose: bool = False
    exact: bool = False

    @property
    def rows(self) -> tuple[Shape, Types]:
        """Return the key of its rows: cases with the same one are computed together."""
        return self.shape, self.types

    def __str__(self) -> str:
        return f"{self.entry}: {self.sql} of {', '.join(self.types)}" + (f", {self.refused}" if self.refused else "")


def rows_of(shape: Shape, types: Types) -> pa.Table:
    """The rows of cases, with a column `id` that distinguishes them."""
    make: Mapping[Shape, Callable[[], pa.Table]] = {
        Shape.PAIRS: lambda: samples.pairs(*types),
        Shape.CUT: lambda: samples.cut(types[0]),
        Shape.GROUPS: lambda: samples.groups(types[0]),
        Shape.QUERY: lambda: samples.groups(types[0]),
        Shape.WINDOWS: samples.partitions,
    }
    return make[shape]()


def _pairs(entry: str, sql: str, types: Iterable[str | Types], refused: str = "", loose: bool = False) -> list[Case]:
    """Cases over pairs; a type stands for two of it."""
    both = [(each, each) if isinstance(each, str) else each for each in types]
    return [Case(entry, sql, each, refused=refused, loose=loose) for each in both]


_DIVIDED: tuple[Types, ...] = (
    *((each, each) for each in ("decimal(5,2)", "decimal(7,2)", "decimal(15,2)", "decimal(17,2)", "decimal(18,6)")),
    ("decimal(7,2)", "decimal(17,2)"),
    ("decimal(9,0)", "decimal(5,2)"),
    ("decimal(10,10)", "decimal(7,2)"),
)
_CAPPED: tuple[Types, ...] = (
    ("decimal(38,10)", "decimal(38,10)"),
    ("decimal(38,0)", "decimal(38,0)"),
    ("decimal(38,10)", "decimal(7,2)"),
    ("decimal(20,0)", "decimal(38,10)"),
)


_CONDITIONS: Mapping[str, Sequence[str]] = {
    "date": ("a > DATE '2000-02-28'", "NOT a <= DATE '1582-10-15'", "a = DATE '1970-01-01'"),
    "timestamp": ("a > TIMESTAMP '1999-12-31 12:00:00'", "NOT a <= TIMESTAMP '1970-01-01 00:00:00'"),
    "timestamp_ntz": ("a > TIMESTAMP_NTZ '1999-12-31 12:00:00'", "NOT a <= TIMESTAMP_NTZ '1970-01-01 00:00:00'"),
    "string": ("a > 'a'", "NOT a <= 'é'", "a IN ('', 'a', '😀')", "a = 'ab'"),
    "boolean": ("a", "NOT a"),
    "binary": ("a IS NOT NULL",),
}
"""Conditions alone above a table, by the types of a column; for all others there are those of numbers."""

_JOIN_KEYS = dict.fromkeys(FLOATS, "KnownFloatingPointNormalized")


def _logic() -> Iterator[Case]:
    signs = {"EqualTo": "=", "EqualNullSafe": "<=>", "LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">"}
    for op, sign in (*signs.items(), ("GreaterThanOrEqual", ">=")):
        yield from _pairs(op, f"a {sign} b", COMPARED)
    yield from _pairs("And", "a AND b", ["boolean"])
    yield from _pairs("Or", "a OR b", ["boolean"])
    yield from _pairs("Not", "NOT a", ["boolean"])
    yield from _pairs("IsNull", "a IS NULL", COMPARED)
    yield from _pairs("IsNotNull", "a IS NOT NULL", COMPARED)
    yield from _pairs("In", "a IN (b, NULL)", COMPARED)
    yield from _pairs("Coalesce", "coalesce(a, b)", COMPARED)
    yield from _pairs("If", "nullif(a, b)", COMPARED)
    yield from _pairs("CaseWhen", "CASE WHEN a = b THEN 1 WHEN a < b THEN 2 WHEN a > b THEN 3 END", COMPARED)
    yield from _pairs("IsNull", "a IS NULL", ARRAYS)
    yield from _pairs("IsNotNull", "a IS NOT NULL", ARRAYS)
    yield from _pairs("Coalesce", "coalesce(a, b)", ARRAYS)
    yield from _pairs("If", "if(a IS NULL AND id % 2 = 0, b, a)", ARRAYS)
    yield from _pairs("CaseWhen", "CASE WHEN b IS NULL THEN a WHEN id % 3 = 0 THEN b END", ARRAYS)
    for kind in ARRAYS:
        yield Case("Count", "SELECT a, count(*) AS n, max(id) AS m FROM t GROUP BY a", (kind, kind), Shape.QUERY)
    ordered = [each for each in COMPARED if each not in FLOATS]
    yield from _pairs("Greatest of ordered values", "greatest(a, b)", ordered)
    yield from _pairs("Least of ordered values", "least(a, b)", ordered)
    yield from _pairs("IsNaN of floats", "isnan(a)", FLOATS)
    yield from _pairs("IsNegativeZero of floats", "CAST(a AS string) = '-0.0'", FLOATS)
    for op in ("KnownFloatingPointNormalized", "NormalizeNaNAndZero of floats"):
        yield Case(op, "count(*) OVER (PARTITION BY f)", ("", ""), Shape.WINDOWS)
    for kind in COMPARED:
        yield Case("Count", "SELECT a, count(*) AS n, max(id) AS m FROM t GROUP BY a", (kind, kind), Shape.QUERY)
        for condition in _CONDITIONS.get(kind, ("a > 1", "NOT a <= 1", "a IN (0, 1, 2)", "a = 0")):
            filtered = f"SELECT id, a, a IS NULL AS n FROM t WHERE {condition}"
            yield Case("IsNull", filtered, (kind, kind), Shape.QUERY)
        joined = "SELECT x.id, y.id AS other, x.a FROM t x JOIN t y ON x.a = y.a"
        yield Case(_JOIN_KEYS.get(kind, "EqualTo"), joined, (kind, kind), Shape.QUERY)


def _arithmetic() -> Iterator[Case]:
    for op, sign in (("Add", "+"), ("Subtract", "-"), ("Multiply", "*")):
        yield from _pairs(f"{op} of whole numbers", f"a {sign} b", INTS)
        yield from _pairs(f"{op} of floats", f"a {sign} b", FLOATS)
        yield from _pairs(f"{op} of decimals", f"a {sign} b", _DIVIDED[:4] + _DIVIDED[5:])
        yield from _pairs(f"{op} of decimals of more than 38 digits", f"a {sign} b", _CAPPED[:3])
    for sql in ("a / b", "try_divide(a, b)"):
        yield from _pairs("Divide of floats", sql, ["double", "integer"])
        yield from _pairs("Divide of decimals", sql, (*_DIVIDED, *_CAPPED[2:]))
    yield from _pairs("IntegralDivide of whole numbers", "a div b", INTS)
    yield from _pairs("IntegralDivide of decimals", "a div b", _DIVIDED)
    yield from _pairs("Remainder of whole numbers", "a % b", INTS)
    yield from _pairs("Remainder of floats", "a % b", FLOATS)
    yield from _pairs("Remainder of decimals", "a % b", _DIVIDED)
    yield from _pairs("Pmod of whole numbers", "pmod(a, b)", INTS)
    for op, sql in (("UnaryMinus", "-a"), ("Abs", "abs(a)")):
        yield from _pairs(f"{op} of whole numbers", sql, INTS)
        narrow = [each for each in DECIMALS if not each.startswith("decimal(38")]
        yield from _pairs(f"{op} of other numbers", sql, (*FLOATS, *narrow))
        yield from _pairs(f"{op} of other numbers", sql, ["decimal(38,10)"], "more than 34 digits")
    yield from _pairs("Sqrt of doubles", "sqrt(a)", ["double", "integer"])
    yield from _pairs("Round of whole numbers", "round(a, 1)", INTS)
    yield from _pairs("Round of whole numbers", "round(a, -1)", ["integer"], "negative places")
    for places in (0, 1, 2):
        yield from _pairs("Round of decimals", f"round(a, {places})", DECIMALS)
    yield from _pairs("Round of decimals", "round(a, -1)", ["decimal(7,2)"], "negative places")
    for places in (0, 1, 2, 4, 6, 15, 22):
        yield from _pairs("Round of doubles", f"round(a, {places})", ["double"])
        yield Case("Round of doubles", f"round(a / 7 * b, {places})", ("double", "double"), Shape.PAIRS)
    yield from _pairs("Round of doubles", "round(a, -1)", ["double"], "places below 0 or above 22")
    for op in ("Floor", "Ceil"):
        yield from _pairs(f"{op} of whole numbers", f"{op.lower()}(a)", ["long"])
        yield from _pairs(f"{op} of decimals", f"{op.lower()}(a)", DECIMALS)
    for op, sign in (("And", "&"), ("Or", "|"), ("Xor", "^")):
        yield from _pairs(f"Bitwise{op} of whole numbers", f"a {sign} b", INTS)
    for bits in (0, 1, 7, 31):
        yield from _pairs("ShiftRight of whole numbers", f"shiftright(a, {bits})", ["integer", "long"])
    yield from _pairs("ShiftRight of whole numbers", "shiftright(a, 33)", ["integer"], "another number of bits")


_DECIMAL_TARGETS = ("decimal(5,2)", "decimal(7,2)", "decimal(18,6)", "decimal(38,10)", "decimal(20,0)")
_WHOLE_TARGETS = ("tinyint", "smallint", "int", "bigint")


def _cast(kind: str, sources: Iterable[str], targets: Iterable[str], refused: str = "") -> Iterator[Case]:
    for target in targets:
        names = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}
        yield from _pairs(
            f"Cast of {kind}", f"CAST(a AS {target})", [s for s in sources if s != names.get(target, target)], refused
        )


def _casts() -> Iterator[Case]:
    yield from _cast("whole numbers", INTS, _WHOLE_TARGETS)
    yield from _cast("whole numbers as floats", INTS, FLOATS)
    yield from _cast("whole numbers as texts", INTS, ["string"])
    yield from _cast("whole numbers as decimals", INTS, _DECIMAL_TARGETS)
    yield from _cast("whole numbers as booleans", INTS, ["boolean"])
    yield from _cast("decimals", DECIMALS, _DECIMAL_TARGETS)
    yield from _cast(
        "decimals as doubles", ["decimal(5,2)", "decimal(7,2)", "decimal(9,0)", "decimal(15,2)"], ["double"]
    )
    yield from _cast("decimals as doubles", ["decimal(38,10)"], ["double"], "more than 15 digits")
    yield from _cast("decimals as whole numbers", DECIMALS, _WHOLE_TARGETS)
    yield from _cast("decimals as texts", DECIMALS[:-1], ["string"])
    yield from _cast("decimals as texts", DECIMALS[-1:], ["string"], "no whole digits")
    yield from _cast("floats as doubles", ["float"], ["double"])
    yield from _cast("floats as whole numbers", FLOATS, _WHOLE_TARGETS)
    yield from _cast("dates as texts", ["date"], ["string"])
    yield Case("Cast of dates as texts", "CAST(date_add(a, b * 100000) AS string)", ("date", "integer"), Shape.CUT)
    yield from _cast("dates as times of day", ["date"], MOMENTS)
    yield from _cast("times of day as dates", MOMENTS, ["date"])
    yield from _cast("times of day", MOMENTS, MOMENTS)
    yield from _cast("times of day as texts", MOMENTS, ["string"])
    far = "CAST(CAST(date_add(a, b * 100000) AS timestamp_ntz) AS string)"
    yield Case("Cast of times of day as texts", far, ("date", "integer"), Shape.CUT)
    yield from _cast("texts as dates", ["string"], ["date"])
    yield from _cast("texts as whole numbers", ["string"], _WHOLE_TARGETS)
    yield from _cast("texts as decimals", ["string"], _DECIMAL_TARGETS)
    yield from _cast("booleans as texts", ["boolean"], ["string"])
    yield from _cast("booleans as whole numbers", ["boolean"], _WHOLE_TARGETS)


def _texts() -> Iterator[Case]:
    both = {
        "Upper": ["upper(a)"],
        "Lower": ["lower(a)"],
        "Length": ["length(a)"],
        "Substring": [
            *("substring(a, 1, 2)", "substring(a, 0, 2)", "substring(a, -2, 1)", "substring(a, -9, 8)"),
            *("substring(a, 2)", "left(a, 2)"),
        ],
        "Concat": ["a || b", "concat(a, b, 'x')"],
        "ConcatWs": ["concat_ws('-', a, b)", "concat_ws(a, b, 'x', b)"],
        "StringTrim": ["trim(a)"],
        "StringTrimLeft": ["ltrim(a)"],
        "StringTrimRight": ["rtrim(a)"],
        "StartsWith": ["startswith(a, b)", "a LIKE 'a%'"],
        "EndsWith": ["endswith(a, b)", "a LIKE '%a'"],
        "Contains": ["contains(a, b)", "a LIKE '%b%'"],
        "OctetLength": ["octet_length(a)"],
        "Md5": ["md5(a)", "md5(a || b)"],
        "Sha256": ["sha2(a, 256)", "sha2(a, 0)"],
        "StringInstr": ["instr(a, b)", "locate(b, a)"],
        "Like": ["a LIKE '_'", "a LIKE '_b_'", "a LIKE 'a%b_c'", "a LIKE '_a_'", "a LIKE '%a%b%'"],
    }
    for op, queries in both.items():
        for sql in queries:
            yield from _pairs(f"{op} of texts", sql, ["string"])
    yield from _pairs("Like of texts", "a LIKE b", ["string"], "a pattern that is no constant")
    yield from _pairs("Like of texts", r"a LIKE '\\%_'", ["string"], "a pattern with an escape")
    yield from _pairs("Like of texts", "a LIKE 'x#%y_z' ESCAPE '#'", ["string"], "another escape")
    yield from _pairs("Like of texts", "a LIKE '%😀_'", ["string"], "a pattern beyond 16 bits")
    for sql in ("substring(a, b, 3)", "substring(a, 2, b)", "substring(a, b, b)", "left(a, b)"):
        yield Case("Substring of texts", sql, ("string", "integer"), Shape.CUT)


def _dates() -> Iterator[Case]:
    parts = {
        **{f"{part}".title(): f"{part}(a)" for part in ("year", "month", "quarter", "hour", "minute", "second")},
        "DayOfMonth": "day(a)",
        "WeekOfYear": "weekofyear(a)",
        "DayOfYear": "dayofyear(a)",
        "DayOfWeek": "dayofweek(a)",
        "WeekDay": "weekday(a)",
        "YearOfWeek": "extract(YEAROFWEEK FROM a)",
    }
    for op, sql in parts.items():
        yield from _pairs(f"{op} of times", sql, MOMENTS if op in ("Hour", "Minute", "Second") else TIMES)
    for interval in ("'3' HOUR", "'-40 01:02:03.000004' DAY TO SECOND"):
        yield from _pairs("AddMicroseconds of times of day", f"a + INTERVAL {interval}", TIMES)
    yield from _pairs("AddMicroseconds of times of day", "a - INTERVAL '40' DAY", MOMENTS)
    for interval in ("'1' MONTH", "'-13' MONTH", "'4' YEAR"):
        yield from _pairs("AddCalendarMonths of times of day", f"a + INTERVAL {interval}", MOMENTS)
        yield from _pairs("AddMonths of dates", f"a - INTERVAL {interval}", ["date"])
    yield from _pairs("LastDay of dates", "last_day(a)", TIMES)
    yield from _pairs("DateDiff of dates", "datediff(a, b)", TIMES)
    for sql, op in (("date_add(a, b)", "DateAdd"), ("date_sub(a, b)", "DateSub"), ("add_months(a, b)", "AddMonths")):
        yield Case(f"{op} of dates", sql, ("date", "integer"), Shape.CUT)
    for unit in ("year", "quarter", "month", "week"):
        yield from _pairs("TruncDate of dates", f"trunc(a, '{unit}')", ["date", "timestamp_ntz"])
    yield from _pairs("TruncDate of dates", "trunc(a, 'day')", ["date"], "another unit")
    for unit in ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond"):
        yield from _pairs("TruncTimestamp of times of day", f"date_trunc('{unit}', a)", MOMENTS)
    yield from _pairs("TruncTimestamp of times of day", "date_trunc('century', a)", ["timestamp"], "another unit")
    for pattern in ("yyyy-MM-dd", "yyyy/MM", "yyyy-MM-dd HH:mm:ss", "dd.MM.yyyy"):
        yield from _pairs("DateFormatClass of times of day", f"date_format(a, '{pattern}')", TIMES)
    yield from _pairs("DateFormatClass of times of day", "date_format(a, 'E')", ["timestamp"], "another pattern")
    far = "date_format(CAST(date_add(a, b * 100000) AS timestamp), 'yyyy-MM-dd')"
    yield Case("DateFormatClass of times of day", far, ("date", "integer"), Shape.CUT)


_CONSTANT_ARRAYS = (
    *("array(1Y, NULL)", "array(-32768S)", "array(1, -2147483648, 1)", "array(9223372036854775807, NULL)"),
    *("array('', '😀', 'a''b', NULL)", "array(true, NULL, false)", "array(1.50, NULL, -99999.99)"),
)


def _arrays() -> Iterator[Case]:
    pairs = [(each, element_of(each)) for each in ARRAYS]
    elements = [each for _, each in pairs]
    yield from _pairs("CreateArray", "array(a, b, NULL, a)", elements)
    yield from _pairs("CreateArray", "coalesce(a, array())", ARRAYS)
    for sql in _CONSTANT_ARRAYS:
        yield from _pairs("CreateArray", sql, ["long"])
        yield from _pairs("CreateArray", f"if(a > 0, {sql}, NULL)", ["long"])
    for sql in ("size(a)", "cardinality(a)", "array_size(a)"):
        yield from _pairs("Size", sql, ARRAYS)
    for sql in ("a[0]", "a[1]", "get(a, 2)", "get(a, -1)"):
        yield from _pairs("GetArrayItem", sql, ARRAYS)
    for kind in INTS:
        yield from _pairs("GetArrayItem", "a[b]", [("array<string>", kind)])
        yield from _pairs("GetArrayItem", "get(a, b)", [(each, kind) for each in ARRAYS])
    for sql in ("element_at(a, 1)", "element_at(a, -1)", "element_at(a, 3)", "try_element_at(a, -2)"):
        yield from _pairs("ElementAt", sql, ARRAYS)
    yield from _pairs("ElementAt", "try_element_at(a, 0)", ["array<long>"])
    for kind in INTS[:3]:
        yield from _pairs("ElementAt", "element_at(a, b)", [("array<string>", kind)])
        yield from _pairs("ElementAt", "try_element_at(a, b)", [(each, kind) for each in ARRAYS])
    yield from _pairs("ArrayContains", "array_contains(a, get(a, 1))", ARRAYS)
    yield from _pairs("ArrayContains", "array_contains(a, b)", pairs)
    yield from _pairs("ArrayContains", "array_contains(array(a, b), a)", elements)
    yield from _pairs("ArrayContains", "array_contains(array('', 'a', 'é'), a)", ["string"])
    yield from _pairs("ArrayContains", "array_contains(array(0, 1, NULL), a)", ["integer"])
    of_all = {
        "ArrayMin": "array_min",
        "ArrayMax": "array_max",
        "SortArray": "sort_array",
        "ArrayDistinct": "array_distinct",
    }
    for op, function in of_all.items():
        yield from _pairs(op, f"{function}(a)", ARRAYS)
        yield from _pairs(op, f"{function}(array(b, a, NULL, b, a, NULL))", elements)
    yield from _pairs("SortArray", "sort_array(a, false)", ARRAYS)
    yield from _pairs("ArrayDistinct", "array_distinct(sort_array(array_distinct(a), false))", ARRAYS)
    yield from _joined_arrays()


def _joined_arrays() -> Iterator[Case]:
    for delimiter in ("''", "','", "'é''-'"):
        yield from _pairs("ArrayJoin", f"array_join(a, {delimiter})", ["array<string>"])
        yield from _pairs("ArrayJoin", f"array_join(array(a, NULL, b), {delimiter})", ["string"])
        yield from _pairs("ConcatWs of texts and arrays", f"concat_ws({delimiter}, a, b)", ["array<string>"])
    mixed = ("array<string>", "string")
    yield from _pairs("ConcatWs of texts and arrays", "concat_ws(',', b, a, 'x', array(b, NULL), a)", [mixed])
    long, refused = f"'{'-' * 17}'", "a delimiter that is no short constant"
    yield from _pairs("ArrayJoin", f"array_join(a, {long})", ["array<string>"], refused)
    yield from _pairs("ConcatWs of texts and arrays", f"concat_ws({long}, a)", ["array<string>"], refused)


def _aggregates() -> Iterator[Case]:
    def of(entry: str, sql: str, kinds: Iterable[str], loose: bool = False, exact: bool = False) -> Iterator[Case]:
        shape = Shape.QUERY if exact else Shape.GROUPS
        for kind in kinds:
            yield Case(entry, sql, (kind, kind), shape, loose=loose, exact=exact)

    for sql in ("count(a)", "count(*)", "count(DISTINCT a)", "count(a, g)", "count(a) FILTER (WHERE g > 9)"):
        yield from of("Count", sql, COMPARED)
    for op in ("Min", "Max"):
        yield from of(op, f"{op.lower()}(a)", COMPARED)
    for sql in ("sum(a)", "sum(DISTINCT a)", "sum(a) FILTER (WHERE id % 3 > 0)"):
        yield from of("Sum of whole numbers", sql, INTS)
        yield from of("Sum of decimals", sql, DECIMALS)
        yield from of("Sum of floats", sql, FLOATS, loose=True)
    for sql in ("avg(a)", "avg(DISTINCT a)"):
        yield from of("Average of whole numbers", sql, INTS)
        yield from of("Average of decimals", sql, DECIMALS)
        yield from of("Average of floats", sql, FLOATS, loose=True)
    exact = {"StddevSamp": "stddev", "StddevPop": "stddev_pop", "VarianceSamp": "variance", "VariancePop": "var_pop"}
    for op, function in exact.items():
        yield from of(f"{op} of floats", f"{function}(a)", FLOATS, loose=True)
    for op, function in (("Average", "avg"), *exact.items()):
        sql = f"SELECT g, {function}(a) AS r FROM t GROUP BY g HAVING {function}(a) < 1e300"
        if op == "Average":
            yield from of("ExactAverage of whole numbers", sql, ["integer", "long"], exact=True)
        yield from of(f"Exact{op} of floats", sql, ["double"], exact=True)
        value = f"{function}(CAST(a AS double))"
        whole = f"SELECT g, {value} AS r FROM t GROUP BY g HAVING {value} < 1e300"
        yield from of(f"Exact{op} of floats", whole, INTS, exact=True)
    sums = "SELECT g, sum(CAST(a AS double)) AS r FROM t GROUP BY g HAVING sum(CAST(a AS double)) < 1e300"
    yield from of("ExactSum of floats", sums, (*INTS, *FLOATS), exact=True)
    for name in ("ExactSum", *(f"Exact{op}" for op in ("Average", *exact))):
        function = {"ExactSum": "sum", "ExactAverage": "avg"}.get(name) or exact[name.removeprefix("Exact")]
        distinct = f"SELECT g, {function}(DISTINCT a) AS r FROM t GROUP BY g HAVING {function}(DISTINCT a) < 1e300"
        yield Case(f"{name} of floats", distinct, ("double", "double"), Shape.QUERY, "of DISTINCT values", exact=True)
    yield from _in_order()
    near = "ORDER BY id % 3 RANGE BETWEEN 1 PRECEDING AND CURRENT ROW"
    picks = {"last_value(a)": "MaxBy", "last_value(a) IGNORE NULLS": "MaxBy", "first_value(a)": "MinBy"}
    for pick, op in {**picks, "first_value(a) IGNORE NULLS": "MinBy"}.items():
        ties = f"SELECT id, {pick} OVER (PARTITION BY g {near}) AS r FROM t"
        yield from of(f"{op} of numbered rows", ties, ["string", *FLOATS, "decimal(7,2)"], exact=True)
    shown = "SELECT id, a, row_number() OVER (PARTITION BY g ORDER BY a, id) AS r FROM t"
    yield from of("RowNumber", shown, [*FLOATS, "decimal(7,2)"], exact=True)
    yield from of("IsNaN of floats", "SELECT id, a, isnan(a) AS r FROM t ORDER BY a, id LIMIT 90", FLOATS, exact=True)
    several = "SELECT g, sum(id) AS s, count(DISTINCT a) AS n, count(DISTINCT id) AS m FROM t GROUP BY g"
    yield from of("SingleValue", several, ("long", "string"), exact=True)


def _in_order() -> Iterator[Case]:
    elements = [element_of(each) for each in ARRAYS]
    lists = [
        *("collect_list(a)", "collect_set(a)", "collect_list(DISTINCT a)", "collect_list(a) FILTER (WHERE id % 3 > 0)"),
        *("sort_array(collect_list(a), false)", "sort_array(collect_set(a) FILTER (WHERE id % 3 > 0))"),
        *("size(collect_list(a))", "size(collect_set(a))", "array_max(collect_list(a))"),
        "array_contains(collect_set(a), min(a))",
    ]
    firsts = ["first(a)", "first(a) FILTER (WHERE id % 3 > 0)", "first(a, true)", "any_value(a)", "min_by(a, id % 3)"]
    lasts = ["last(a)", "last(a, true)", "max_by(a, id % 3)", "max_by(id, a)", "max_by(a, nullif(id % 3, 2))"]
    texts = [
        *("listagg(a)", "string_agg(a, ',')", "listagg(DISTINCT a, '; ')", "listagg(a, '-') FILTER (WHERE id % 3 > 0)"),
        "listagg(a, ',') WITHIN GROUP (ORDER BY a DESC)",
        "listagg(a, 'é''-') WITHIN GROUP (ORDER BY id % 3, a)",
    ]
    for entry, functions, kinds in (
        ("TextInOrder", texts, ["string"]),
        ("ListInOrder", lists, elements),
        ("ListInOrder", ["array_join(collect_list(a), ',')"], ["string"]),
        ("FirstInOrder", firsts, COMPARED),
        ("LastInOrder", lasts, COMPARED),
        ("FirstInOrder", ["first(array(a, NULL))"], elements),
        ("LastInOrder", ["last(array(a))"], elements),
    ):
        for kind in kinds:
            for function in functions:
                sql = f"SELECT g, {function} AS r FROM t GROUP BY g"
                yield Case(entry, sql, (kind, kind), Shape.QUERY, exact=True)
                down = " DESC" if function == "collect_list(a)" else ""
                if down or function in ("first(a)", "last(a)"):
                    ordered = f"SELECT g, {function} AS r FROM (SELECT * FROM t ORDER BY id % 3{down}) GROUP BY g"
                    yield Case(entry, ordered, (kind, kind), Shape.QUERY, exact=True)
    null = "g + if(g % 3 = 1, 1, NULL)"
    for by in (null, f"if(g > 5, {null}, NULL)"):  # no row is before another, as all are the same
        sql = f"SELECT g, max_by(g, {by}) AS r FROM (SELECT g FROM t) GROUP BY g"
        yield Case("LastInOrder", sql, ("string", "string"), Shape.QUERY, exact=True)
    refused = {"FirstInOrder": "min_by(id, a)", "LastInOrder": "max_by(id, a)", "ListInOrder": "collect_list(id)"}
    refused |= {"TextInOrder": "listagg(string(id), ',')"}
    long, reason = f"SELECT g, listagg(a, '{'-' * 17}') AS r FROM t GROUP BY g", "a delimiter that is no short constant"
    yield Case("TextInOrder", long, ("string", "string"), Shape.QUERY, reason, exact=True)
    for entry, function in refused.items():
        sql = f"SELECT g, {function} AS r FROM (SELECT * FROM t ORDER BY a) GROUP BY g"
        yield Case(entry, sql, ("array<long>", "array<long>"), Shape.QUERY, "an order by arrays", exact=True)


def _windows() -> Iterator[Case]:
    def of(entry: str, function: str, over: str) -> Case:
        return Case(entry, f"{function} OVER ({over})", ("", ""), Shape.WINDOWS)

    keys = ("k, id", "k DESC, id", "k NULLS LAST, id", "k DESC NULLS FIRST, id", "s, id", "s DESC, id", "f, id")
    for key in (*keys, "f DESC, id", "t DESC, id", "d, id"):
        yield of("RowNumber", "row_number()", f"PARTITION BY g ORDER BY {key}")
    for entry, function in (("Rank", "rank()"), ("DenseRank", "dense_rank()"), ("PercentRank", "percent_rank()")):
        yield of(entry, function, "PARTITION BY g ORDER BY k")
        yield of(entry, function, "PARTITION BY g ORDER BY s DESC")
    yield of("CumeDist", "cume_dist()", "PARTITION BY g ORDER BY k")
    for number in (1, 3, 50):
        yield of("NTile", f"ntile({number})", "PARTITION BY g ORDER BY k, id")
    order = "PARTITION BY g ORDER BY k, id"
    for function in ("lag(s)", "lag(k, 2)", "lag(k, 2, -1)", "lag(k, -2)", "lag(k, 0)"):
        yield of("Lag", function, order)
    for function in ("lead(s)", "lead(d, 1, 0.50)", "lead(t, 3)"):
        yield of("Lead", function, order)
    for op in ("lag", "lead"):
        ignoring = f"{op}(s) IGNORE NULLS OVER ({order})"
        yield Case(op.title(), ignoring, ("", ""), Shape.WINDOWS, refused="nulls ignored")
    rows = f"{order} ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING"
    since = f"{order} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
    for more in ("", " IGNORE NULLS"):
        for entry, name in (("First", "first_value(k)"), ("Last", "last_value(k)"), ("NthValue", "nth_value(k, 2)")):
            yield of(entry, f"{name}{more}", rows)
        yield of("NthValue", f"first_value(k){more}", since)  # as Catalyst has it
        yield of("Last", f"last_value(k){more}", since)
        yield of("NthValue", f"nth_value(k, 2){more}", since)
    yield from _framed(of, order, rows)
    near = "PARTITION BY g ORDER BY k RANGE BETWEEN 1 PRECEDING AND CURRENT ROW"
    yield of("Sum of whole numbers", "sum(id)", near)
    yield of("Max", "max(f)", "PARTITION BY g ORDER BY k")
    yield of("Count", "count(*)", "PARTITION BY t")


def _framed(of: Callable[[str, str, str], Case], order: str, rows: str) -> Iterator[Case]:
    """Aggregates of frames."""
    sums = {"Sum of whole numbers": "sum(k)", "Sum of decimals": "sum(d)", "Average of decimals": "avg(d)"}
    more = {"ExactAverage of whole numbers": "avg(k)", "Count": "count(k)", "Min": "min(s)", "Max": "max(d)"}
    for entry, function in {**sums, **more}.items():
        for over in ("PARTITION BY g", "PARTITION BY g ORDER BY k", order, rows, "PARTITION BY s", "PARTITION BY f"):
            yield of(entry, function, over)
    floats = {"ExactSum": "sum(CAST(k AS double))", "ExactAverage": "avg(f)", "ExactStddevSamp": "stddev(k)"}
    for entry, function in floats.items():  # sums that are shown in rows which are found by their values
        for over in ("PARTITION BY g", order, rows):
            yield Case(f"{entry} of floats", f"{function} OVER ({over})", ("", ""), Shape.WINDOWS, loose=True)


CASES: tuple[Case, ...] = (
    *_logic(),
    *_arithmetic(),
    *_casts(),
    *_texts(),
    *_dates(),
    *_arrays(),
    *_aggregates(),
    *_windows(),
)

_FEW = frozenset({"long", "string", "array<long>", "array<string>"})

SOME = tuple(
    {
        each.entry: each
        for each in reversed(CASES)
        if {*each.types} <= _FEW and each.shape in (Shape.PAIRS, Shape.GROUPS) and not each.refused
    }.values()
)
"""Cases that run each time: one of an entry, of few types, and without queries that are analyzed one by one."""
