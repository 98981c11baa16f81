"""What Spark and the JVM raise is translated into errors of iscp: to be retried, or for a person to repair."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import AnalysisException, PySparkException

from iscp.model.values.errors import Canceled, EngineError, ErrorCode, LeaseLost, Unavailable
from iscp.ports.source import ChangesUnavailableError
from iscp.spark.spark_errors import reading_changes, spark_faults
from iscp.storage.delta_errors import spent
from tests.unit.storage.test_delta_errors import translated


class GatewayClient:
    """Answers for a Java exception what its stack trace is."""

    def __init__(self, trace: str) -> None:
        self._trace = trace

    def send_command(self, command: str) -> str:
        return "ys" + self._trace.replace("\n", "\\n")


class JavaException:
    _target_id = "o1"

    def __init__(self, trace: str) -> None:
        self._gateway_client = GatewayClient(trace)


def java(trace: str) -> Py4JJavaError:
    return Py4JJavaError("An error occurred.", JavaException(trace))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("io.delta.exceptions.ConcurrentAppendException: [DELTA_CONCURRENT_APPEND] Files were added", "CONFLICT"),
        ("io.delta.exceptions.ConcurrentTransactionException: same txn", "CONFLICT"),
        ("java.util.ConcurrentModificationException: version 4", "CONFLICT"),
        ("org.apache.spark.SparkException: Job 3 cancelled part of cancelled job group x", "CANCELED"),
        ("[SPARK_JOB_CANCELLED] Job 1 cancelled", "CANCELED"),
        ("java.io.IOException: No space left on device", "NO_SPACE"),
        ("[DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE] Cannot", "DUPLICATE_KEY"),
        ("java.lang.OutOfMemoryError: Java heap space", "ENGINE"),
    ],
)
def test_what_spark_raises_from_java_and_from_python(text: str, code: str) -> None:
    for error in (java(f"{text}\n\tat Some.method"), PySparkException(text), AnalysisException(text)):
        assert translated(spark_faults, error).code is ErrorCode[code]


@pytest.mark.parametrize(
    "error", [Py4JNetworkError("gone"), Py4JError("gone"), ConnectionResetError("gone"), EOFError("gone")]
)
def test_a_jvm_that_does_not_answer_is_unavailable(error: Exception) -> None:
    assert type(translated(spark_faults, error)) is Unavailable


def test_errors_of_iscp_pass_unchanged() -> None:
    lost = LeaseLost("gone")
    assert translated(spark_faults, lost) is lost


def test_what_nobody_named_passes_unchanged() -> None:
    with pytest.raises(ZeroDivisionError), spark_faults("do it"):
        raise ZeroDivisionError


def test_a_long_text_is_cut() -> None:
    assert len(str(translated(spark_faults, java("x" * 100_000)))) < 3_000


FRAMES = "\n\tat org.apache.spark.Some.method(Some.scala:1)\n\t... 9 more"
NOT_THERE = (
    "org.apache.spark.SparkException: [FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file "
    "file:/lake/a table/part.0.parquet. File does not exist. It is possible the underlying files have been updated."
)
DAMAGED = (
    "org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file "
    f"file:/lake/t/part-0.parquet.  SQLSTATE: KD001{FRAMES}\n"
    "Caused by: java.lang.RuntimeException: file:/lake/t/part-0.parquet is not a Parquet file. Expected magic number"
)
MISFIT = (
    "org.apache.spark.SparkException: [FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH] Encountered error "
    "while reading file file:/lake/t/part-0.parquet. Data type mismatches when reading Parquet column [v]. "
    f"Expected Spark type bigint, actual Parquet type BINARY. SQLSTATE: KD001{FRAMES}\nCaused by: "
    "org.apache.spark.sql.execution.datasources.SchemaColumnConvertNotSupportedException: column: [v], "
    f"physicalType: BINARY, logicalType: bigint{FRAMES}"
)
WRITING = "org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/derived/j."


def test_a_file_of_another_type_is_named_and_may_be_one_of_changes_that_are_gone() -> None:
    for error in (java(MISFIT), PySparkException(MISFIT)):
        found = translated(spark_faults, error)
        assert found.code is ErrorCode.TABLE_UNREADABLE
        assert str(found).startswith("/lake/t/part-0.parquet has BINARY in the column v, which is bigint in the table")
        with pytest.raises(ChangesUnavailableError), reading_changes("read the changes"):
            raise error


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (NOT_THERE + FRAMES, "/lake/a table/part.0.parquet is not there: do it failed."),
        (
            f"{WRITING}{FRAMES}\nCaused by: {NOT_THERE}{FRAMES}",
            "/lake/a table/part.0.parquet is not there: do it failed.",
        ),
        (
            f"{NOT_THERE}{FRAMES}\nCaused by: java.io.FileNotFoundException: File file:/lake/a table/dv_1.bin does not "
            f"exist{FRAMES}",
            "/lake/a table/dv_1.bin is not there: do it failed.",
        ),
        (
            f"java.io.FileNotFoundException: File file:///lake/part-0.parquet does not exist{FRAMES}",
            "/lake/part-0.parquet is not there: do it failed.",
        ),
        (
            f"{WRITING}{FRAMES}\nCaused by: {DAMAGED}{FRAMES}",
            "/lake/t/part-0.parquet cannot be read (file:/lake/t/part-0.parquet is not a Parquet file. "
            "Expected magic number): do it failed.",
        ),
        (
            f"java.io.FileNotFoundException: /lake/t/part-0.parquet (Permission denied){FRAMES}",
            "/lake/t/part-0.parquet may not be read: permission denied: do it failed.",
        ),
        (
            f"{DAMAGED}\nCaused by: java.nio.file.AccessDeniedException: /lake/t/part-0.parquet{FRAMES}",
            "/lake/t/part-0.parquet may not be read: permission denied: do it failed.",
        ),
    ],
)
def test_a_file_that_cannot_be_had_is_one_fault_wherever_it_shows_and_is_named_first(text: str, told: str) -> None:
    for error in (java(text), PySparkException(text)):
        found = translated(spark_faults, error)
        denied = "permission denied" in told
        assert found.code is (ErrorCode.STORAGE if denied else ErrorCode.FILE_LOST)
        assert str(found).startswith(told)
        assert "at org.apache" not in str(found)
        assert len(str(found)) < 1_500


def test_a_path_that_is_no_uri_is_a_fault_that_lasts() -> None:
    said = "Illegal character in scheme name at index 4: time=1971-07-22T03:06:40.000000Z/part-0.parquet"
    for text in (
        f"[FAILED_EXECUTE_UDF] `CanonicalPathFunction`: java.net.URISyntaxException: {said}. SQLSTATE: 39000"
        f"{FRAMES}\nCaused by: java.net.URISyntaxException: {said}{FRAMES}",
        f"{DAMAGED}\nCaused by: java.net.URISyntaxException: {said}{FRAMES}",
    ):
        found = translated(spark_faults, java(text))
        assert found.code is ErrorCode.TABLE_UNREADABLE
        assert "time=1971-07-22T03:06:40.000000Z/part-0.parquet" in str(found)
        assert "at org.apache" not in str(found)


def test_a_checkpoint_whose_parts_lack_a_column_is_named() -> None:
    said = "java.lang.IllegalArgumentException: [FIELD_NOT_FOUND] No such struct field {} in {}. SQLSTATE: 42704"
    found = translated(spark_faults, java(said.format("`add`", "`txn`, `remove`") + FRAMES))
    assert found.code is ErrorCode.STORAGE
    assert "last checkpoint has no column `add`, and Spark cannot read it" in str(found)
    users = translated(spark_faults, java(said.format("`add`", "`id`, `price`") + FRAMES))
    assert users.code is ErrorCode.ENGINE


def test_what_a_query_refuses_itself_is_no_files_fault_where_it_shows_while_one_is_read() -> None:
    own = f"org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] iscp-misfit-0.1.{FRAMES}"
    for text in (own, f"{DAMAGED.partition('Caused by')[0]}Caused by: {own}"):
        assert type(translated(spark_faults, java(text))) is EngineError


def test_of_any_other_fault_the_first_cause_is_reported_and_the_stack_is_not() -> None:
    text = f"{WRITING} SQLSTATE: 58030{FRAMES}\nCaused by: java.lang.IllegalStateException: no room{FRAMES}"
    found = translated(spark_faults, java(text + f"\nCaused by: java.lang.ArithmeticException: / by zero{FRAMES}"))
    assert found.code is ErrorCode.ENGINE
    assert "Task failed while writing rows" in str(found)
    assert str(found).endswith("/ by zero")
    assert "at org.apache" not in str(found)


def test_time_in_spark_is_counted_once_by_thread_and_also_of_what_failed() -> None:
    def work() -> None:
        with spark_faults("outer"), spark_faults("inner"):
            time.sleep(0.02)
        with contextlib.suppress(EngineError), spark_faults("failing"):
            time.sleep(0.02)
            raise java("broken")
        elsewhere.append(spent.seconds)

    elsewhere: list[float] = []
    before_s = spent.seconds
    began_s = time.perf_counter()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert 0.04 <= elsewhere[0] <= time.perf_counter() - began_s
    assert spent.seconds == before_s


def test_a_cancel_is_distinguished_from_a_fault() -> None:
    assert type(translated(spark_faults, PySparkException("the query was cancelled"))) is Canceled
