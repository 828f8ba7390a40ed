"""Which outputs of the notebooks another processor prints differently.

``python tests/outputs.py`` runs every notebook as on this machine and as on
an older one, and prints the lines that differ. Prose must hold for both.
"""

import difflib
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import nbclient
import nbformat
from jupyter_client.manager import KernelManager

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.anywhere import ROOT, SETTINGS

RANDOM = re.compile(r"altair-viz-\w+|0x[0-9a-f]+")


def printed(output: dict) -> str:
    """The text of an output; of a chart, only that there is one."""
    if output["output_type"] == "stream":
        return output["text"]
    data = output.get("data", {})
    table = data.get("text/html", "")
    table = re.sub(r"<[^>]+>", " ", table) if "<table" in table[:90] else ""
    return table or data.get("text/plain", "")


def run(path: Path) -> list[str]:
    """What each code cell of a notebook prints."""
    notebook = nbformat.read(path, as_version=4)
    nbclient.execute(notebook, cwd=path.parent, timeout=1800)
    cells = (c for c in notebook.cells if c.cell_type == "code")
    texts = ("".join(map(printed, cell.outputs)) for cell in cells)
    return [RANDOM.sub("", text) for text in texts]


def run_all(paths: list[Path], changes: dict) -> list[list[str]]:
    """What all notebooks print under one setting."""
    with (
        patch.dict(os.environ, changes),
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        return list(pool.map(run, paths))


def main() -> None:
    """Compare this machine with an older one."""
    KernelManager.transport_encryption.default_value = "auto"
    names = sys.argv[1:] or sorted((ROOT / "notebooks").rglob("*.ipynb"))
    paths = [Path(name).resolve() for name in names]
    old = next(iter(SETTINGS.values()))
    ours, theirs = run_all(paths, {}), run_all(paths, old)
    for path, here, there in zip(paths, ours, theirs, strict=True):
        for number, texts in enumerate(zip(here, there, strict=True)):
            lines = [text.splitlines() for text in texts]
            changed = [
                line
                for line in difflib.unified_diff(*lines, "", "", n=0)
                if line[:3] not in ("---", "+++") and line[:2] != "@@"
            ]
            if changed:
                print(f"{path.stem}, code cell {number}:", *changed, sep="\n  ")


if __name__ == "__main__":
    main()
