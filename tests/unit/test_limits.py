"""The generated docs/limits.md has every limit of the code."""

from __future__ import annotations

import pytest

from tests.limits import CONFIGURATION, UndocumentedError, document, limits_of, missing_settings, sources

_MODULE = '''
FIRST_MAX = 2 * 1024**2
"""Bytes of
something; more | are refused."""

_PRIVATE_MAX = 3
FORMAT = 4
NAMES = ("a", "b")


class QueueLimits:
    wait_s: float = 0.5
    """How long."""

    names: tuple[str, ...] = ()


class Other:
    count: int = 0
'''


def test_limits_are_public_numbers_of_modules_and_fields_of_limits() -> None:
    found = [(limit.name, limit.shown, limit.text) for limit in limits_of("iscp/a/b.py", _MODULE)]
    assert found == [
        ("FIRST_MAX", "2,097,152", "Bytes of something; more | are refused."),
        ("QueueLimits.wait_s", "0.5 s", "How long."),
    ]
    assert "| `FIRST_MAX` | 2,097,152 | [b](../iscp/a/b.py) | Bytes of something; more \\| are refused |" in document(
        {"iscp/a/b.py": _MODULE}
    )


@pytest.mark.parametrize("source", ["NEW_MAX = 7\n", "class NewLimits:\n    new_max: int = 7\n    \n"])
def test_a_limit_without_a_docstring_is_refused(source: str) -> None:
    with pytest.raises(UndocumentedError, match=r"iscp/a/b\.py: .*new_max has no docstring|NEW_MAX has no docstring"):
        list(limits_of("iscp/a/b.py", source))


def test_what_the_parser_reads_is_what_python_computes() -> None:
    read = {
        limit.name: limit.value for limit in limits_of("b.py", 'A = 2**36\n"""A."""\nB = (1 << 47) - 1\n"""B."""\n')
    }
    assert read == {"A": 2**36, "B": (1 << 47) - 1}


def test_the_document_has_the_limits_of_modules_and_the_settings() -> None:
    text = document(sources())
    assert "| `RING_BYTES_MAX` |" in text
    assert "| `etcd.lease_ttl_s` | 10 | at least 2 |" in text


def test_a_setting_that_configuration_does_not_have_is_found() -> None:
    text = CONFIGURATION.read_text()
    assert missing_settings(text) == []
    assert missing_settings(text.replace("| `waits.node_max` |", "| waits |")) == ["waits.node_max"]
