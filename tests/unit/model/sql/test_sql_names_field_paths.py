"""A field of a struct has one name, and no other field or path has it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iscp.model.sql.sql_names import fields_by_name, path_name, path_of

NAMES = st.text("ab`. \n", max_size=4)


@given(st.lists(NAMES, min_size=2, max_size=4))
def test_a_path_is_read_back_from_its_name(path: list[str]) -> None:
    assert path_of(path_name(path)) == tuple(path)


@given(st.text("a`.", max_size=12))
def test_another_name_is_that_of_a_column(name: str) -> None:
    path = path_of(name)
    assert path == (name,) or path_name(path) == name


def test_fields_have_the_metadata_of_what_they_lie_in_and_columns_come_first() -> None:
    inner = {"name": "c", "type": "string", "nullable": True, "metadata": {}}
    struct = {
        "type": "struct",
        "fields": [{"name": "b", "type": {"type": "struct", "fields": [inner]}, "metadata": {}}],
    }
    listed = {"type": "array", "elementType": struct, "containsNull": True}
    fields = [
        {"name": "a", "type": struct, "metadata": {"collated": 1}},
        {"name": "`a`.`b`", "type": "long", "metadata": {}},
        {"name": "l", "type": listed, "metadata": {}},
    ]
    found = fields_by_name(fields)
    assert {*found} == {"a", "`a`.`b`", "`a`.`b`.`c`", "l"}, "no field of what is in a list"
    assert found["`a`.`b`"]["type"] == "long"
    assert found["`a`.`b`.`c`"] == {**inner, "name": "`a`.`b`.`c`", "metadata": {"collated": 1}}
