"""The tidy rules (after TigerBeetle's tidy.zig): sizes, names, and words that must not stay in the text."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from zipfile import ZipFile

HERE = Path(__file__)
ROOT = HERE.parents[2]

FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 800
"""All lines, without exception but for generated code: a module is one whole concept."""

MODULE_LINES_LEAST, SMALL_MODULES_MAX = 120, 41
"""Lines below which a module is a fragment, and how many such modules there may be."""

TEST_FILE_LINES_MAX = 800

HOLLOW_NAMES = re.compile(r"manager|helper|util|handler", re.IGNORECASE)

PARTICIPLE = re.compile(
    r"(?!(feed|heed|need|seed|exceed|proceed|speed|embed)$)([a-z]+ed|begun|bound|brought|built|chosen|done|drawn|found"
    r"|frozen|given|gone|held|kept|known|left|lent|lost|made|met|said|seen|sent|shown|spent|taken|told|withdrawn|written)"
)

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
PATCHING = re.compile(r"\bmock\.patch|\bunittest import mock|monkeypatch\.(setattr|setitem|delattr)\b")
SKIPPING = re.compile(r"\bmark\.(skip|xfail)\b|\bmark\.skipif\((?!sys\.platform)|pytest\.(skip|xfail|importorskip)\(")
MACHINE_PATHS = re.compile(r"(?<![\w.$}/-])/(work|root|home/(?!dev\b)[a-z]+)\b")
ITS_OWN_MAKING = re.compile(
    r"(?<!certs )(?<!\")\bissues?\b|\b(this|last|next|previous|earlier) session\b|\bsub-?agent", re.IGNORECASE
)

# The field's words instead: reported, notified; requested, called, probed; a probe, a read; again, rebuilt, repaired;
# dead-lettered; prepared; diverged; rebalanced.
IDIOM = re.compile(
    r"(?<![.\w])(told|tells?|anew|mend(s|ed|ing)?)\b|\b(a|the|one|each|every|next|last|first|another|no) looks?\b"
    r"|\blooks? whether\b|(?<![\w\"])(asks?|asked|asking)\b"
    r"|\bset aside\b|\btaken away\b|\bmade (new|ready)\b|\bvoid position|\bgoes home\b|\bbusy besides\b",
    re.IGNORECASE,
)
WORDS_NOT_IN_TEST_NAMES = frozenset(
    {"told", "tell", "tells", "anew", "mend", "mended", "look", "looks", "looked", "ask", "asks", "asked"}
)

NO_SUBJECTS = frozenset(
    {"As", "By", "How", "In", "It", "Of", "Those", "What", "Where", "Whether", "Which", "Who", "With"}
)
"""First words of docstrings that are no sentences."""

PROSE_AND_CODE = ("iscp", "examples", "tests", "benchmarks", "docs", "scripts", "proto", "jvm", "deploy", ".ci")
TEXT_SUFFIXES = {".py", ".pyi", ".ipynb", ".md", ".svg", ".proto", ".java", ".toml", ".txt", ".xml", ".properties", ""}


def modules() -> list[Path]:
    """The modules of the package but for those that are generated."""
    return [path for path in sorted((ROOT / "iscp").rglob("*.py")) if "wire" not in path.parts]


@cache
def definitions() -> list[tuple[Path, ast.FunctionDef | ast.ClassDef]]:
    """All functions and classes of the package, with their modules."""
    return [
        (path, node)
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]


def texts(*tops: str) -> Iterator[tuple[str, str]]:
    """(path, text) of every file that people write, but for this one, which names what it looks for."""
    files = [path for top in tops for path in sorted((ROOT / top).rglob("*")) if path.is_file()]
    files += [path for path in sorted(ROOT.iterdir()) if path.suffix in {".md", ".toml"} or path.name == "Makefile"]
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        if (
            path.suffix in TEXT_SUFFIXES
            and "__pycache__" not in path.parts
            and not name.startswith("iscp/wire/")
            and path != HERE
        ):
            yield name, path.read_text(encoding="utf-8")


def found(pattern: re.Pattern[str], *tops: str) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts(*tops)
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def prose(name: str, text: str) -> Iterator[tuple[int, str]]:
    """(line, words) of docstrings and comments, without the `code` in them; a file without a suffix is a script."""
    lines = text.splitlines()
    if name.endswith(".py") or re.match(r"#!.*python", text):
        numbers = {
            number
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
            for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        yield from ((number, re.sub(r"`[^`]*`", "", lines[number - 1])) for number in sorted(numbers))
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        comments = [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
    elif name.endswith((".sh", "Makefile")) or not Path(name).suffix:
        comments = [(number, line.partition("#")[2]) for number, line in enumerate(lines, start=1) if "#" in line]
    else:
        comments = []
    yield from ((number, re.sub(r"`[^`]*`", "", comment)) for number, comment in comments)


def effects(functions: Iterable[ast.AST]) -> list[str]:
    """What functions do that are named by a participle, which is for values: each such function, and how it shows."""
    found = []
    for function in functions:
        if not isinstance(function, ast.FunctionDef) or not PARTICIPLE.fullmatch(
            function.name.lstrip("_").split("_")[0]
        ):
            continue
        if isinstance(function.returns, ast.Constant) and function.returns.value is None:
            found.append(f"{function.name} answers nothing")
        if any(isinstance(each, ast.Name) and each.id == "contextmanager" for each in function.decorator_list):
            found.append(f"{function.name} begins and ends something")
        for node in ast.walk(function):
            match node:
                case ast.Attribute(value=ast.Name(id="self"), ctx=ast.Store(), attr=name):
                    found.append(f"{function.name} sets {name}")
                case ast.Call(func=ast.Attribute(value=ast.Name(id="log"))):
                    found.append(f"{function.name} logs")
                case _:
                    pass
    return found


def hollow_docstrings(path: Path) -> list[str]:
    """Return what in a module has a docstring that is no sentence."""
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]
    begin = [(getattr(node, "name", "the module"), (ast.get_docstring(node) or "").partition(" ")[0]) for node in nodes]
    return [f"{path.name}: {name} begins with {word}" for name, word in begin if word in NO_SUBJECTS]


def long_functions() -> dict[str, int]:
    """Lines of every function that is longer than it should be."""
    lines = {
        f"{path.relative_to(ROOT).as_posix()}:{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path, node in definitions()
        if isinstance(node, ast.FunctionDef)
    }
    return {name: count for name, count in lines.items() if count > FUNCTION_LINES_MAX}


def test_functions_fit_on_a_screen() -> None:
    assert long_functions() == {}


def test_modules_are_small() -> None:
    """All lines count: who changes a module reads them."""
    sizes = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in modules()}
    assert {name: size for name, size in sizes.items() if size > MODULE_LINES_MAX} == {}


def test_few_modules_are_fragments_of_a_concept() -> None:
    """A module below the limit is an entry point, a table of declarations, or light to import."""
    sizes = [len(path.read_text().splitlines()) for path in modules() if path.name != "__init__.py"]
    assert sum(size < MODULE_LINES_LEAST for size in sizes) <= SMALL_MODULES_MAX


def test_test_files_are_small() -> None:
    """All lines count: who looks for what is proved reads them."""
    sizes = {
        path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in (ROOT / "tests").rglob("*.py")
    }
    assert {name: size for name, size in sizes.items() if size > TEST_FILE_LINES_MAX} == {}


def misplaced(test: Path) -> bool:
    """Whether it is not named for a module of the room where it lies, nor for the room."""
    room = ROOT / "iscp" / test.parent.relative_to(ROOT / "tests" / "unit")
    subjects = {
        room.name,
        *(path.stem for path in room.glob("*.py")),
        *(path.parent.name for path in room.glob("*/*.py")),
    }
    return not any(f"{test.stem}_".startswith(f"test_{subject}_") for subject in subjects)


def test_unit_tests_lie_where_their_modules_do() -> None:
    """Those that lie in `tests/unit` itself are of the project and of the tests' own tools."""
    tests = sorted((ROOT / "tests" / "unit").glob("*/**/test_*.py"))
    assert [test.relative_to(ROOT).as_posix() for test in tests if misplaced(test)] == []


def test_a_test_of_no_module_and_one_in_another_room_are_misplaced() -> None:
    unit = ROOT / "tests" / "unit"
    assert misplaced(unit / "model" / "test_anything.py")
    assert misplaced(unit / "cli" / "test_digest.py")
    assert misplaced(unit / "corridor" / "test_job_row.py")
    assert not any(
        misplaced(unit / "model" / "job" / f"test_{name}.py") for name in ("job_row", "job_row_reports", "job_values")
    )


def test_a_module_is_named_once() -> None:
    names = Counter(path.stem for path in modules() if path.name != "__init__.py")
    assert [name for name, count in names.items() if count > 1] == []


def test_a_class_is_named_once() -> None:
    names = Counter(node.name for path, node in definitions() if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def test_names_say_something() -> None:
    hollow = [path.name for path in modules() if HOLLOW_NAMES.search(path.stem)]
    hollow += [
        f"{path.name}: {node.name}"
        for path, node in definitions()
        if isinstance(node, ast.ClassDef) and HOLLOW_NAMES.search(node.name)
    ]
    assert hollow == []


def test_what_acts_is_named_by_a_verb() -> None:
    assert [f"{path.name}: {each}" for path, node in definitions() for each in effects([node])] == []


def test_a_participle_that_acts_is_found() -> None:
    tree = ast.parse(
        """
class Log:
    def moved(self) -> bool: return self._at > 0
    def landed(self) -> bool:
        self._at += 1
        return True
    def closed(self) -> None: ...
    def feed(self) -> None: ...
@contextmanager
def locked() -> Iterator[None]: ...
def told(error: Exception) -> str:
    log.info("told")
    return str(error)
"""
    )
    assert sorted(effects(ast.walk(tree))) == [
        "closed answers nothing",
        "landed sets _at",
        "locked begins and ends something",
        "told logs",
    ]


def test_docstrings_are_sentences_or_imperatives() -> None:
    assert [each for path in modules() for each in hollow_docstrings(path)] == []


def test_a_docstring_without_a_subject_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text('"""What is due."""\nclass Due:\n    """Of an index."""\n')
    found = hollow_docstrings(tmp_path / "some.py")
    assert found == ["some.py: the module begins with What", "some.py: Due begins with Of"]


def test_nothing_is_left_unfinished() -> None:
    assert found(UNFINISHED, *PROSE_AND_CODE) == []


def test_nothing_is_patched() -> None:
    assert found(PATCHING, "tests", "benchmarks") == []


def test_no_test_is_skipped_but_for_the_platform() -> None:
    """Namespaces and mounts are the kernel's to give, containers their engine's, others a distribution's:
    not every machine has them.
    """
    may = (
        *("tests/e2e/test_partitions.py:", "tests/containers/conftest.py:", "tests/e2e/test_poison_of_a_tenant.py:"),
        *("tests/e2e/test_monitoring.py:", "tests/integration/page/conftest.py:"),
    )
    skipped = [where for where in found(SKIPPING, "tests") if not where.startswith(may)]
    assert skipped == []


def test_no_machine_is_named() -> None:
    assert found(MACHINE_PATHS, *PROSE_AND_CODE) == []


def test_the_project_speaks_of_itself_alone() -> None:
    assert found(ITS_OWN_MAKING, *PROSE_AND_CODE) == []


def test_words_are_those_of_the_field() -> None:
    """In code, docstrings, logs and errors."""
    assert [each for each in found(IDIOM, "iscp") if re.match(r"iscp/.*\.py:", each)] == []


def test_docstrings_and_comments_beside_the_package_have_the_words_of_the_field() -> None:
    """What tests call their own variables, and the data that they write, is theirs."""
    own = [
        f"{name}:{number}: {words.strip()}"
        for name, text in texts("tests", "benchmarks", "examples", "scripts")
        if IDIOM.search(text)  # most files have none of them, and need not be taken apart
        for number, words in prose(name, text)
        if IDIOM.search(words)
    ]
    assert own == []


def test_prose_is_found_in_docstrings_comments_and_scripts() -> None:
    module = '"""Of `told`,\nthe node."""\ntold = "anew"  # is told\n'
    assert list(prose("a.py", module)) == [(1, '"""Of ,'), (2, 'the node."""'), (3, "# is told")]
    assert list(prose("run", "#!/bin/sh\necho told  # asks\n")) == [(1, "!/bin/sh"), (2, " asks")]
    assert list(prose("a.toml", "# told")) == []


def test_names_of_tests_have_the_words_of_the_field() -> None:
    names = [
        f"{path.relative_to(ROOT).as_posix()}: {name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in re.findall(r"^ *def (test_\w+)", path.read_text(), re.MULTILINE)
        if WORDS_NOT_IN_TEST_NAMES & set(name.split("_"))
    ]
    assert names == []


def test_words_of_ones_own_are_found() -> None:
    own = ("the node is told so", "costs a look at the log", "Mend it", "asked for", "whoever asks", "rows set aside")
    assert all(IDIOM.search(text) for text in own)
    assert not IDIOM.search('stream.tell() looks up "node.not_told", a masked task')


def test_the_node_of_the_release_before_imports_what_that_release_has() -> None:
    """Its text is that release's: whoever renames modules leaves it alone."""
    (wheel,) = (ROOT / "tests/data/release-before").glob("*.whl")
    with ZipFile(wheel) as files:
        there = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in files.namelist()}
    node = ast.parse((wheel.parent / "bare_node.txt").read_text())
    modules = {each.module for each in ast.walk(node) if isinstance(each, ast.ImportFrom) and each.module is not None}
    wanted = {module for module in modules if module.startswith("iscp")}
    assert len(wanted) > 20
    assert wanted <= there
