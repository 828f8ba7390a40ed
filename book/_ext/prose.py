"""What a reader of a chapter sees: words of prose and lines of code.

``python book/_ext/prose.py notebooks/*.ipynb`` prints both. Exercises and their
solutions do not count, nor do the card of a chapter and code that is hidden or
folded on the page.
"""

import json
import re
import sys
from pathlib import Path

EXERCISE = re.compile(
    r"```\{exercise\}.*?```|```\{solution-start\}.*?\{solution-end\}\n```",
    re.DOTALL,
)
HIDDEN = re.compile(
    r"^#\| (hide|code-fold: true|echo: false)\s*$", re.MULTILINE
)
NO_PROSE = re.compile(
    r"^:::\{admonition\} This chapter.*?^:::$"  # the card
    r"|\$\$.*?\$\$( \(\S+\))?"  # a display equation
    r"|^\(\S+\)=$"  # a label
    r"|^[`:]{3,}[^\n]*$|^:[\w-]+:[^\n]*$"  # frames of directives
    r"|\{cite(:\w+)?\}`[^`]*`",
    re.DOTALL | re.MULTILINE,
)
PLACE = "\0{}\0"


def cells(path: Path) -> list[dict]:
    """The cells of a notebook, each with its source as one string."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell | {"source": "".join(cell["source"])} for cell in found]


def without_exercises(found: list[dict]) -> list[dict]:
    """The cells before exercises and after; text around them is kept."""
    text = "".join(
        cell["source"] + "\n"
        if cell["cell_type"] == "markdown"
        else PLACE.format(i)
        for i, cell in enumerate(found)
    )
    kept = re.split(r"(\0\d+\0)", EXERCISE.sub("", text))
    return [
        found[int(part.strip("\0"))]
        if part.startswith("\0")
        else {"cell_type": "markdown", "source": part}
        for part in kept
    ]


def words(found: list[dict]) -> int:
    """Words of prose outside exercises; a formula in a line is one word."""
    total = 0
    for cell in without_exercises(found):
        if cell["cell_type"] == "markdown":
            text = NO_PROSE.sub(" ", cell["source"])
            text = re.sub(r"\$[^$]+\$", "formula", text)
            total += len(re.findall(r"\w[\w'’.,-]*", text))
    return total


def visible_lines(found: list[dict]) -> int:
    """Lines of code on the page outside exercises, without blank ones."""
    total = 0
    for cell in without_exercises(found):
        if cell["cell_type"] == "code" and not HIDDEN.search(cell["source"]):
            lines = cell["source"].splitlines()
            total += sum(
                bool(line.strip()) and not line.startswith("#|")
                for line in lines
            )
    return total


if __name__ == "__main__":
    for name in sys.argv[1:]:
        chapter = cells(Path(name))
        print(f"{words(chapter):6} {visible_lines(chapter):5}  {name}")
