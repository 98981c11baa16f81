"""The documents are held to the code: commands, files, settings, errors, limits, events and examples that they name."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import pytest

import iscp as package
from iscp.app.settings import load_settings
from iscp.cli.iscp import iscp
from iscp.cli.iscp_admin import cli as iscp_admin
from iscp.cli.job.job_file import read_jobs
from iscp.cli.view.view_commands import UPKEEP_WORDS
from iscp.client.service_clients import AccessClient, BuildClient, FeedClient, OperatorClient
from iscp.etcd.keys import Keys
from iscp.etcd.watched_keys import (
    BUILT,
    DONE,
    KEPT,
    PLANS,
    PRIORITIES,
    STAGING,
    TABLES,
    TASKS,
    BuildKeys,
    TokenKeys,
)
from iscp.model.api.api_requests import EventView, JobView, LeftOutJob, NodeView, PlacedShard, ShardView
from iscp.model.build.build_progress import BuildTaskView, BuildView
from iscp.model.job.iteration import DataType, HistoryEntry
from iscp.model.job.job_row import JobStatus
from iscp.model.job.start_rule import Comparison, Sample
from iscp.model.job.watermark_record import WatermarkRecord
from iscp.model.protocol.messages import Announce, Checkpoint, Sync
from iscp.model.settings.config import settings
from iscp.model.settings.variables import NOT_SETTINGS, setting_variable
from iscp.model.values.errors import ErrorCode
from tests.chart.values_file import CHART, read_values
from tests.limits import main as limits
from tests.metrics_page import NAMES_OF_METRICS
from tests.metrics_page import main as metrics
from tests.notebook import cells_of, compile_cell

ROOT = Path(__file__).parents[2]
DOCS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOK = ROOT / "examples/quickstart.ipynb"
PROGRAMS = {"iscp": iscp, "iscp-admin": iscp_admin}

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r"\]\((?!https?://)([^)\s]*)\)")
_COMMAND = re.compile(r"(?:\$ )?(?:[A-Z_]+=\S+ )*((?:iscp|iscp-admin) .+)")
_SYNOPSIS = re.compile(r"[\[…|]")
_TOPS = ("iscp/", "examples/", "tests/", "docs/", "scripts/", "proto/", "jvm/", "benchmarks/", "deploy/", ".ci/")
_DOTTED = re.compile(r"[a-z]+(\.[a-z_]+)+")
_ELSEWHERE = re.compile(
    r"spark\.(sql|delta|databricks|jars|driver|executor|scheduler|authenticate|blockManager|cores|kubernetes|network|yarn)\b"
    r"|http\.client|http\.server|iscp\.|.*\.(json|log|md|py|toml|yaml)$"
)
"""Dotted names that are Spark's, modules or files."""

NOT_MODULES = ("iscp.consumers", "iscp.embedders", "iscp.triggers", "iscp.format", "iscp.repair")
each_document = pytest.mark.parametrize("document", DOCS, ids=lambda path: path.relative_to(ROOT).as_posix())


def blocks(text: str, *languages: str) -> list[str]:
    return [body for language, body in _BLOCK.findall(text) if language in languages]


def spans(text: str) -> list[str]:
    """Code within sentences."""
    return _SPAN.findall(_BLOCK.sub("", text))


def command_lines(text: str) -> Iterator[list[str]]:
    """The words of every command of ours, without where its output goes; a synopsis, with brackets or dots, is none."""
    lines = [line for block in blocks(text, "", "sh", "bash", "console") for line in block.splitlines()]
    for line in [*lines, *spans(text)]:
        found = _COMMAND.fullmatch(line)
        if found and not _SYNOPSIS.search(line):
            words = shlex.split(found[1], comments=True)
            yield list(takewhile(lambda word: word != ">", words))


def parse(command: click.Command, name: str, words: list[str], parent: click.Context | None = None) -> None:
    """As click does before it runs anything. Raises click.UsageError."""
    context = command.make_context(name, list(words), parent)
    if isinstance(command, click.Group) and (rest := [*context._protected_args, *context.args]):
        found, sub, arguments = command.resolve_command(context, rest)
        assert found is not None
        assert sub is not None
        parse(sub, found, arguments, context)


@cache
def sources() -> dict[str, str]:
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "iscp").rglob("*.py")}


@cache
def told_names() -> frozenset[str]:
    """The events that are logged, and the failpoints."""
    found = set()
    for source in sources().values():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _DOTTED.fullmatch(node.value):
                found.add(node.value)
    return frozenset(found)


@each_document
def test_every_command_line_is_one(document: Path, tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        Path("job.yaml").touch()
        for words in command_lines(document.read_text()):
            try:
                there = [str(tmp_path) if word == "/tmp/iscp" else word for word in words]  # of `iscp up`
                parse(PROGRAMS[words[0]], words[0], there[1:])
            except (click.UsageError, AssertionError) as error:
                pytest.fail(f"{shlex.join(words)}: {error}")
            except click.exceptions.Exit:
                pass  # --help and --version


def commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Every command that is no group, by its words (`job list`)."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if command.hidden:
            continue
        if isinstance(command, click.Group):
            below = click.Context(command, parent=context, info_name=name)
            yield from ((f"{name} {words}", leaf) for words, leaf in commands(command, below))
        else:
            yield name, command


def options(command: click.Command) -> set[str]:
    return {name for each in command.params for name in each.opts if name.startswith("--")}


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_table_of_commands_is_that_of_the_program(program: str) -> None:
    known = dict(commands(PROGRAMS[program], click.Context(PROGRAMS[program])))
    section = re.split(rf"^## {program}$", (ROOT / "docs/cli.md").read_text(), flags=re.MULTILINE)[1].split("\n## ")[0]
    told: dict[str, str] = {}
    for cell, text in re.findall(r"^\| (`.+?) \| (.*) \|$", section, re.MULTILINE):
        named = [words for words in known if re.search(rf"`{words}\b", cell)]
        assert named, cell
        for words in named:
            told[words] = told.get(words, "") + cell + text
    assert set(told) == set(known)
    for words, text in told.items():
        assert set(re.findall(r"--[a-z-]+", text)) <= options(known[words]), words


def test_every_option_is_documented() -> None:
    texts = " ".join(path.read_text() for path in DOCS if path.name != "CHANGELOG.md")
    for group in PROGRAMS.values():
        for words, command in commands(group, click.Context(group)):
            untold = [
                each.name
                for each in command.params
                if isinstance(each, click.Option)
                and not any(re.search(rf"(?<![\w-]){name}\b", texts) for name in each.opts)
            ]
            assert untold == [], words


@each_document
def test_every_file_is_there(document: Path) -> None:
    text = document.read_text()
    links = [document.parent / link.partition("#")[0] for link in _LINK.findall(text) if not link.startswith("#")]
    named = [ROOT / name for name in spans(text) if name.startswith(_TOPS) and not re.search(r"[\s*…<>]", name)]
    assert [str(path) for path in [*links, *named] if not path.exists()] == []


@each_document
def test_every_heading_that_is_linked_to_is_there(document: Path) -> None:
    for link in _LINK.findall(document.read_text()):
        name, _, anchor = link.partition("#")
        if anchor and (name.endswith(".md") or not name):
            assert anchor in anchors((document.parent / name if name else document).read_text()), link


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings: lower case, only word characters, dashes for blanks."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_map_has_every_room_and_the_layers_and_is_short() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    rooms = re.findall(r"^\| `(iscp/[\w/]+)` \|", text, re.MULTILINE)
    folders = {path.parent for path in (ROOT / "iscp").rglob("*.py") if path.name != "__init__.py"}
    wanted = {folder.relative_to(ROOT).as_posix() for folder in folders} - {"iscp", "iscp/wire/v1"}
    holders = {"iscp/changefeed", "iscp/wire"}  # of rooms only, or generated
    assert sorted(rooms) == sorted(wanted | holders)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (layers,) = (each["layers"] for each in project["tool"]["importlinter"]["contracts"] if each["type"] == "layers")
    assert " > ".join(layers).replace("iscp.", "") in text
    assert len(text.split()) <= 2_750


@cache
def recorded_names() -> frozenset[str]:
    """The names of spans and of their attributes."""
    texts = (path.read_text() for path in sorted((ROOT / "iscp").rglob("*.py")))
    return frozenset(name for text in texts for name in re.findall(r'"(iscp(?:\.[a-z_]+)+)"', text))


@each_document
def test_every_module_is_there(document: Path) -> None:
    missing = []
    for name in spans(document.read_text()):
        found = re.fullmatch(r"(?:python -m )?((?:iscp|benchmarks)(?:\.[a-z_]+)+)(?:\.([A-Z]\w+))?", name)
        if found is None or name.startswith("iscp.wire."):
            continue
        path = found[1].replace(".", "/")
        module = ROOT / f"{path}.py"
        module = module if module.exists() else ROOT / path / "__init__.py"
        there = module.exists() or name in {*NOT_MODULES, *NAMES_OF_METRICS, *recorded_names()}
        if not there or (found[2] and found[2] not in module.read_text()):
            missing.append(name)
    assert missing == []


@cache
def chart_values() -> frozenset[str]:
    values = read_values((CHART / "values.yaml").read_text())
    return frozenset(leaf.path for value in values for leaf in value.leaves())


@each_document
def test_every_setting_event_and_failpoint_exists(document: Path) -> None:
    paths = {each.path for each in settings()}
    heads = {name.split(".")[0] for name in paths | told_names()}
    unknown = [
        name
        for name in spans(document.read_text())
        if _DOTTED.fullmatch(name) and name.split(".")[0] in heads and not _ELSEWHERE.match(name)
        if name.removeprefix("config.") not in paths | told_names() | chart_values()  # below it are settings of nodes
    ]
    assert unknown == []


@each_document
def test_every_variable_is_read(document: Path) -> None:
    known = {setting_variable(each.path) for each in settings()} | NOT_SETTINGS
    named = set(re.findall(r"`(ISCP_[A-Z_0-9]+)", document.read_text()))
    assert {name for name in named - known if not re.search(r"_SERVICE_|_PORT_", name)} == set()


@each_document
def test_configurations_are_valid(document: Path, tmp_path: Path) -> None:
    for number, block in enumerate(blocks(document.read_text(), "toml")):
        file = tmp_path / f"{number}.toml"
        file.write_text(block)
        load_settings(file, {})


@each_document
def test_job_files_are_valid(document: Path) -> None:
    for block in blocks(document.read_text(), "yaml"):
        assert read_jobs(io.StringIO(block), "job.yaml")


@each_document
def test_python_examples_call_what_there_is(document: Path) -> None:
    for block in blocks(document.read_text(), "python"):
        for call in (node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)):
            given: list[Any] = [None] * len(call.args)
            named: dict[str, Any] = {str(keyword.arg): None for keyword in call.keywords}
            match call.func:
                case ast.Attribute(value=ast.Name(id="client"), attr=verb):
                    inspect.signature(getattr(package.Client, verb)).bind(None, *given, **named)
                case ast.Attribute(value=ast.Name(id="iscp"), attr=name):
                    inspect.signature(getattr(package, name)).bind(*given, **named)
                case _:
                    pass


def test_the_signatures_of_the_client_are_those_of_the_code() -> None:
    clients = {each.__name__: each for each in (package.Client, OperatorClient, BuildClient, FeedClient, AccessClient)}
    documented: dict[str, set[str]] = {name: set() for name in clients}
    for block in blocks((ROOT / "docs/python.md").read_text(), "python"):
        for stub in (node for node in ast.parse(block).body if isinstance(node, ast.ClassDef)):
            for method in (node for node in stub.body if isinstance(node, ast.FunctionDef)):
                documented[stub.name].add(method.name)
                known = inspect.signature(getattr(clients[stub.name], method.name))
                assert parameters_of(method.args) == {
                    each.name: (each.annotation, each.kind is each.KEYWORD_ONLY, shown_default(each.default))
                    for each in known.parameters.values()
                    if each.name != "self"
                }
                assert ast.unparse(method.returns or ast.Constant(None)) == known.return_annotation
    for name, methods in documented.items():
        public = {each for each in dir(clients[name]) if not each.startswith("_")}
        assert methods - {"__init__"} == public, name


def parameters_of(stub: ast.arguments) -> dict[str, tuple[str, bool, str]]:
    """Return the annotation, whether it is by keyword only, and the default of each parameter but `self`."""
    given = stub.args[1:]
    required = [None] * (len(given) - len(stub.defaults))
    by_place = zip(given, [*required, *stub.defaults], strict=True)
    by_name = zip(stub.kwonlyargs, stub.kw_defaults, strict=True)
    named = [*((*each, False) for each in by_place), *((*each, True) for each in by_name)]
    named += [(stub.kwarg, None, False)] if stub.kwarg else []
    return {
        each.arg: (ast.unparse(each.annotation or ast.Constant(None)), keyword, ast.unparse(default) if default else "")
        for each, default, keyword in named
    }


def shown_default(default: object) -> str:
    match default:
        case inspect.Parameter.empty:
            return ""
        case _ if callable(default):
            return "..."
        case _:
            return repr(default)


def test_the_words_for_how_operators_are_maintained_are_those_that_are_shown() -> None:
    text = (ROOT / "docs/views.md").read_text()
    assert [words for words in UPKEEP_WORDS.values() if f"| {words} |" not in text] == []


def test_every_error_code_is_in_the_table_and_no_other() -> None:
    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
    assert [(int(code), name) for code, name in rows] == [(code.value, code.name) for code in ErrorCode]


@pytest.mark.parametrize(
    ("kind", "begins", "renamed"),
    [
        (JobView, "account, table_id, table", {"spec_json": "spec"}),
        (JobStatus, "from_version, to_version, start_at_s, end_at_s, error_code", {}),
        (HistoryEntry, "account, table_id, job_name", {}),
        (NodeView, "id, pid", {"node_id": "id"}),
        (ShardView, "table_id, table, node_id", {}),
        (LeftOutJob, "table, name, why", {}),
        (PlacedShard, "table_id, range_id", {}),
        (BuildView, "table, table_id, account, jobs", {}),
        (BuildTaskView, "range_id, job_name", {}),
        (EventView, "owner_rev, number", {}),
        (Comparison, "rows_source", {}),
        (Sample, "fault, key", {}),
    ],
)
def test_answers_have_the_fields_that_are_documented(kind: Any, begins: str, renamed: dict[str, str]) -> None:
    text = (ROOT / "docs/cli.md").read_text()
    told = re.sub(r": \[?\{[^{}]*\}\]?", "", text[text.index(begins) :]).partition("}")[0]
    assert set(told.split(", ")) == {renamed.get(each.name, each.name) for each in fields(kind)}


def test_threads_have_the_names_that_are_documented() -> None:
    rows = re.findall(r"^\| (`iscp-.+?) \| `([\w/.]+)`", (ROOT / "docs/threads.md").read_text(), re.MULTILINE)
    assert len(rows) > 10
    for names, file in rows:
        for name in _SPAN.findall(names):
            fixed = re.sub(r"(-n|…)$", "", name)
            assert f'"{fixed}' in sources()[file] or name.removeprefix("iscp-") in sources()[file], name
    known = {name for names, _ in rows for name in _SPAN.findall(names)}
    named = {each for text in sources().values() for each in re.findall(r'[Tt]hread\w*\(.*"(iscp-[a-z-]+)"', text)}
    assert named - known == set()


def test_the_keys_in_etcd_are_those_of_the_code() -> None:
    cells = re.findall(r"^\| (`.+?`) \|", (ROOT / "docs/etcd-keys.md").read_text(), re.MULTILINE)
    told = {key for cell in cells for key in _SPAN.findall(cell)}
    keys, node, feed, shard = Keys("/"), "<node_id>", "<feed>", "<shard>"
    lease, builds = "<lease id, 16 hex digits>", BuildKeys(keys.builds)
    known = {
        keys.node(node),
        keys.epoch(node),
        keys.revocation(node, 0).replace("/0", "/<epoch>"),
        *(keys.override(kind, node) for kind in ("cordon", "drain")),
        keys.override("pin", shard),
        keys.death(node),
        keys.checkpoint,
        keys.job_log,
        keys.job_log_fault,
        f"{keys.candidates}{lease}",
        f"{keys.feed_queue(feed, shard, 0).replace('/0/', '/<incidents>/')}{lease}-<number>",
        keys.feed_incidents(feed, shard),
        keys.feed_cursor(feed, "<name>"),
        builds.head,
        builds.key(TASKS, "<job_id>", "<task_id>"),
        builds.key(STAGING, "<table_id>", "<task_id>"),
        builds.key(DONE, "<job_id>", node),
        *(builds.key(kind, "<table_id>") for kind in (TABLES, PRIORITIES, KEPT)),
        *(builds.key(kind, "<job_id>") for kind in (PLANS, BUILT)),
        TokenKeys(keys.access).token("<id>"),
        TokenKeys(keys.access).head,
    }
    assert told == {key.removeprefix("/") for key in known}


def test_the_document_of_limits_can_be_generated() -> None:
    assert limits(["--check"]) == 0


def test_the_document_of_metrics_is_that_of_the_declarations() -> None:
    assert metrics(["--check"]) == 0


def test_the_notebook_is_one_without_outputs() -> None:
    stored = json.loads(NOTEBOOK.read_text())
    assert (stored["nbformat"], stored["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in stored["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in cells_of(NOTEBOOK):
        assert (cell["outputs"], cell["execution_count"]) == ([], None), cell["id"]
        compile_cell(cell)
    assert [cell["id"] for cell in cells_of(NOTEBOOK) if "tags" in cell["metadata"]] == ["parameters"]


@pytest.mark.parametrize("picture", sorted((ROOT / "docs").glob("*.svg")), ids=lambda path: path.name)
def test_pictures_stand_alone_and_can_be_seen_in_dark_mode_too(picture: Path) -> None:
    source = picture.read_text()
    svg = "{http://www.w3.org/2000/svg}"
    drawn = ElementTree.fromstring(source)
    assert drawn.find(f"{svg}title") is not None
    assert not re.search(r"<script|<image|url\((?!#)|https?://(?!www\.w3\.org/2000/svg)", source)
    paper = drawn.find(f"{svg}rect")
    assert paper is not None
    covers = drawn.attrib["viewBox"].split()[2:] == [paper.get("width"), paper.get("height")]
    own_paper = covers and paper.get("fill")
    style, _, dark = str(drawn.findtext(f"{svg}style")).partition("@media (prefers-color-scheme: dark)")
    coloured = {rule for rule, body in re.findall(r"([\w.]+) \{([^}]*)\}", style) if "#" in body}
    assert own_paper or coloured <= set(re.findall(r"([\w.]+) \{", dark)), "no colours for dark mode"


def test_the_examples_in_the_text_are_those_that_are_tested() -> None:
    one, sharded = blocks((ROOT / "docs/consumers.md").read_text(), "python")
    assert one == (ROOT / "examples/iscp_sqlite.py").read_text()
    assert sharded == (ROOT / "examples/iscp_sqlite_sharded.py").read_text()


def test_the_glossary_has_the_words_of_the_protocol_and_none_that_nobody_uses() -> None:
    text = (ROOT / "docs/glossary.md").read_text()
    terms = {term.lower() for term in re.findall(r"\*\*(.+?)\*\*", text)}
    kept = {each.name for each in fields(WatermarkRecord)} - {"source_id", "from_version", "fenced_by"}
    spoken = {kind.__name__.lower() for kind in (Announce, Sync, Checkpoint)}
    assert kept | spoken | {each.value for each in DataType} <= terms
    others = [*sources().values(), *(path.read_text() for path in DOCS if path.name != "glossary.md")]
    used = " ".join(others).lower()
    assert {term for term in terms if term not in used and term.replace(" ", "_") not in used} == set()


def test_every_decision_is_in_the_index() -> None:
    index = (ROOT / "docs/adr/README.md").read_text()
    files = {path.name for path in (ROOT / "docs/adr").glob("[0-9]*.md")}
    assert set(re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", index)) == files


def test_the_changelog_begins_with_what_is_not_released_and_the_version_of_the_package() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert headings[0] == "[Unreleased]"
    assert re.fullmatch(rf"\[{re.escape(package.__version__)}\] - \d{{4}}-\d\d-\d\d", headings[1])
    assert project["version"] == package.__version__
    assert (ROOT / "README.md").read_text().index("scripts/demo") < 1_000


def test_a_wrong_command_line_would_be_found() -> None:
    text = "`iscp-admin job wait T N --timeout soon` and\n```sh\n$ iscp upp\n```\n"
    assert len(list(command_lines(text))) == 2
    for words in command_lines(text):
        with pytest.raises(click.UsageError):
            parse(PROGRAMS[words[0]], words[0], words[1:])
