"""Columns of plans are read, renamed and numbered all at once, and whatever they are called."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.sql import functions as F

from iscp.views.catalyst.catalyst import Catalyst

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from iscp.spark.session import SparkRuntime

pytestmark = pytest.mark.spark

ODD = ["a", "B c", "d.e", "line\nbreak", "back\\slash", "é😀", "", "`tick`"]


@pytest.fixture
def session(spark_runtime: SparkRuntime) -> SparkSession:
    return spark_runtime.new_session()


@pytest.fixture
def catalyst(session: SparkSession) -> Catalyst:
    return Catalyst(session)


def odd(session: SparkSession) -> DataFrame:
    return session.range(2).select(*[(F.col("id") + place).alias(name) for place, name in enumerate(ODD)])


def test_names_and_ids_are_those_of_each_column(session: SparkSession, catalyst: Catalyst) -> None:
    plan = catalyst.plan_of(odd(session))
    assert catalyst.names(plan) == ODD
    assert catalyst.ids(plan) == [catalyst.id_of(each) for each in catalyst.output(plan)]
    unnamed = catalyst.plan_of(session.range(2).select(F.col("id").alias("")))
    assert catalyst.names(unnamed) == [""]
    nothing = catalyst.plan_of(session.range(2).select())
    assert (catalyst.names(nothing), catalyst.ids(nothing)) == ([], [])


def test_renamed_columns_have_names_ids_and_values_in_their_places(session: SparkSession, catalyst: Catalyst) -> None:
    like, child = catalyst.plan_of(odd(session)), catalyst.plan_of(odd(session))
    renamed = catalyst.renamed(child, like)
    assert (catalyst.names(renamed), catalyst.ids(renamed)) == (ODD, catalyst.ids(like))
    assert [tuple(each) for each in catalyst.frame(renamed).collect()] == [(*range(8),), (*range(1, 9),)]
    with pytest.raises(IllegalArgumentException, match="are not as many columns as"):
        catalyst.renamed(catalyst.plan_of(session.range(2)), like)


def test_columns_that_are_not_there_are_null_in_their_places(session: SparkSession, catalyst: Catalyst) -> None:
    like = catalyst.plan_of(session.sql("select 1 a, 'x' b, 2L c"))
    some = session.sql("select 5L C, 7 w")
    widened = catalyst.frame(catalyst.widened(catalyst.plan_of(some), like, weighted=True))
    assert widened.dtypes == [("a", "int"), ("b", "string"), ("C", "bigint"), ("w", "int")]
    assert [tuple(each) for each in widened.collect()] == [(None, None, 5, 7)]
    alone = catalyst.frame(catalyst.widened(catalyst.plan_of(some.drop("w")), like, weighted=False))
    assert [tuple(each) for each in alone.collect()] == [(None, None, 5)]
    whole = catalyst.plan_of(session.sql("select 1 a, 'x' b, 2L c, 7 w"))
    assert catalyst.ids(catalyst.widened(whole, like, weighted=True)) == catalyst.ids(whole)


def test_numbered_columns_are_those_that_are_wanted_and_more(session: SparkSession, catalyst: Catalyst) -> None:
    child = catalyst.plan_of(session.sql("select 1 a, 'x' b, 2L c"))
    like = catalyst.project([catalyst.output(child)[2], catalyst.output(child)[0]], child)
    numbered = catalyst.frame(catalyst.numbered(child, like, [catalyst.output(child)[1]]))
    assert numbered.dtypes == [("c0", "bigint"), ("c1", "int"), ("b", "string")]
    assert [tuple(each) for each in numbered.collect()] == [(2, 1, "x")]
    fresh = catalyst.afresh(child, child.output())
    assert catalyst.names(fresh) == ["a", "b", "c"]
    assert not {*catalyst.ids(fresh)} & {*catalyst.ids(child)}
