"""YAML as anyone may have written it, refused where it would take all memory or time to read."""

from __future__ import annotations

import yaml

from iscp.model.values.errors import InvalidRequest

VALUES_MAX = 3_000_000
"""Values, lists and mappings of a file, of which each takes 400 bytes; a file with more is refused. 100,000 jobs have a
third of it."""

NESTING_MAX = 100
"""Lists and mappings within each other in a file; a file with more is refused."""

ALIASED_CHARS_MAX = 10_000_000
"""Values and characters that the aliases of a file repeat; a file with more is refused, as each is written out."""

# In C where libyaml is there: thousands of jobs take seconds without it.
SafeLoader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
SafeDumper: type[yaml.SafeDumper] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def refuse_vast(text: str, source: str) -> None:
    """Refuse vast texts before they are read: libyaml would end the process, without a word, where Python's stack ends;
    and aliases of aliases are few in a file, and more than any memory where they are written out.

    Raises InvalidRequest whose field is `source`, and yaml.YAMLError for what is no YAML.
    """
    open_at: list[tuple[str | None, int]] = []  # of each list and mapping around, its anchor and the size before it
    sizes: dict[str, int] = {}
    size = aliased = values = 0
    for event in yaml.parse(text, SafeLoader):
        values += isinstance(event, yaml.NodeEvent)
        if values > VALUES_MAX:
            raise InvalidRequest(f"has more than {VALUES_MAX} values", field=source, remedy="Split it")
        if isinstance(event, yaml.CollectionStartEvent):
            open_at.append((event.anchor, size))
            if len(open_at) > NESTING_MAX:
                raise InvalidRequest(f"is nested deeper than {NESTING_MAX}", field=source, remedy="Write it flatter")
            size += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_at.pop()
            if anchor is not None:
                sizes[anchor] = size - before
        elif isinstance(event, yaml.ScalarEvent):
            size += 1 + len(event.value)
            if event.anchor is not None:
                sizes[event.anchor] = 1 + len(event.value)
        elif isinstance(event, yaml.AliasEvent):
            # One that is in what it names has no size yet, and is refused as it is read.
            size += (repeated := sizes.get(event.anchor or "", 0))
            aliased += repeated
            if aliased > ALIASED_CHARS_MAX:
                raise InvalidRequest(
                    f"has aliases that repeat more than {ALIASED_CHARS_MAX} values and characters",
                    field=source,
                    remedy="Write the values out, or split the file",
                )
