"""Notebooks without Jupyter: their code cells, as Python takes them, one after the other in one namespace."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
from pathlib import Path
from types import CodeType
from typing import Any


def cells_of(notebook: Path) -> list[dict[str, Any]]:
    """Its code cells, as they are stored (nbformat 4)."""
    return [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]


def compile_cell(cell: dict[str, Any]) -> CodeType:
    """Raises SyntaxError, for what only Jupyter understands too; `await` may stand outside of functions, as there."""
    source = "".join(cell["source"])
    code: CodeType = compile(source, cell["id"], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return code


def run_notebook(notebook: Path, parameters: dict[str, Any]) -> dict[str, Any]:
    """The namespace at its end. `parameters` replace those of the cell that is tagged so, as papermill does it."""
    session: dict[str, Any] = {}
    for cell in cells_of(notebook):
        code = compile_cell(cell)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, session))
        else:
            exec(code, session)
        if "parameters" in cell["metadata"].get("tags", ()):
            assert session.keys() >= parameters.keys()
            session |= parameters
    return session
