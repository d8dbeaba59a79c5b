"""Notebooks on a real kernel. `python -m tests.spark.notebooks` writes into the docs' notebook what its cells give."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import nbformat
from nbclient import NotebookClient

from tests.spark import sessions
from tests.waiting import PATIENCE, until

TUTORIAL = sessions.ROOT / "docs" / "tutorial.ipynb"


class Kernel:
    """A kernel that executes cells one after the other."""

    def __init__(self, client: NotebookClient) -> None:
        self._client = client

    def run(self, cell: Any) -> Any:
        """Execute a cell, or one of this source, and return it with its outputs. What it raises is raised here."""
        if isinstance(cell, str):
            cell = nbformat.v4.new_code_cell(cell)
        self._client.nb.cells.append(cell)
        self._client.execute_cell(cell, len(self._client.nb.cells) - 1)
        return cell

    def run_and_interrupt(self, source: str, when: Path) -> Any:
        """Execute a cell, and interrupt the kernel as JupyterLab does, when a file is there."""

        def interrupt() -> None:
            until(when.exists, when.name)
            asyncio.run(self._client.km.interrupt_kernel())

        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            return self.run(source)
        finally:
            thread.join()


@contextmanager
def started(folder: Path) -> Iterator[Kernel]:
    """Start a kernel in a folder, where its files are to be. When it has been shut down, nothing of it may run on."""
    own = {
        "IPYTHONDIR": str(folder / ".ipython"),
        "JUPYTER_RUNTIME_DIR": str(folder / ".jupyter"),
        "TMPDIR": str(folder),
    }
    with patch.dict(os.environ, own):
        client = NotebookClient(
            nbformat.v4.new_notebook(),
            timeout=int(PATIENCE),
            kernel_name="python3",
            resources={"metadata": {"path": str(folder)}},
        )
        process = None
        try:
            with client.setup_kernel(env=sessions.environment()):
                process = client.km.provisioner.process
                yield Kernel(client)
        finally:
            if process is not None:
                sessions.end_sessions([process])


def shown(cell: Any) -> list[str]:
    """Return what a cell showed, in the forms that are the same each time."""
    found = []
    for output in cell.outputs:
        if output.output_type == "stream" and output.name == "stdout":
            found.append(output.text)
        elif output.output_type == "execute_result":
            html = output.data.get("text/html")
            found.append("a page" if html and "dataframe" not in html else output.data["text/plain"])
    return found


def html(cell: Any) -> str:
    """Return the HTML that a cell showed."""
    return "".join(output.data.get("text/html", "") for output in cell.outputs if "data" in output)


def main() -> None:
    notebook = nbformat.read(TUTORIAL, as_version=4)
    with tempfile.TemporaryDirectory() as folder, started(Path(folder)) as kernel:
        for number, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), start=1):
            kernel.run(cell)
            # What Java and Spark write to the terminal, and when and where the cell ran, is of this machine.
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for data in (output.data for output in cell.outputs if "data" in output):
                data.update({form: given.replace(f"{folder}/", "") for form, given in data.items()})
            cell.metadata.clear()
            cell.execution_count = number
    nbformat.write(notebook, TUTORIAL)


if __name__ == "__main__":
    main()
