"""Give nbdev's directive comments (``#| export``) their meaning on the page.

A notebook is edited in memory, as Sphinx reads it; nothing on disk changes:

* no directive line is ever shown;
* ``hide``, ``echo``, ``output``, ``code-fold`` and ``eval`` become cell tags;
* ``label`` together with ``fig-cap`` makes a cell's output a numbered figure;
* a digest of the package, of its recipes, and of the models and results that
  chapters read joins the code, so that the execution cache, which looks at the
  code cells alone, runs a page again when one of these changes.
"""

import hashlib
import json
import re
from functools import cache
from pathlib import Path

from docutils import nodes
from sphinx.transforms import SphinxTransform

PACKAGE = "transformer_annotated"
DIRECTIVE = re.compile(r"^\s*#\s*\|\s*([^\s:]+)\s*:?\s*(.*?)\s*$")
TAGS = {
    ("hide", ""): "remove-cell",
    ("echo", "false"): "remove-input",
    ("output", "false"): "remove-output",
    ("code-fold", "true"): "hide-input",
    ("eval", "false"): "skip-execution",
}


def split(source: str) -> tuple[dict[str, str], str]:
    """Separate the leading directive lines of a cell from its code."""
    lines, directives = source.splitlines(True), {}
    while lines and (match := DIRECTIVE.match(lines[0])):
        directives[match[1]] = match[2]
        lines.pop(0)
    return directives, "".join(lines)


def caption_cell(label: str, caption: str) -> dict:
    """A text cell that `CellFigures` joins with the output before it."""
    source = f"::::{{container}} nb-caption\n:name: {label}\n\n{caption}\n::::"
    return {
        "cell_type": "markdown",
        "id": f"caption-{label}",
        "metadata": {},
        "source": source,
    }


def render_directives(notebook: dict) -> dict:
    """Turn the directives of each code cell into tags and captions."""
    cells = []
    for cell in notebook["cells"]:
        cells.append(cell)
        if cell["cell_type"] != "code":
            continue
        directives, cell["source"] = split("".join(cell["source"]))
        tags = cell["metadata"].setdefault("tags", [])
        tags += [TAGS[item] for item in directives.items() if item in TAGS]
        if not cell["source"].strip():
            tags.append("remove-cell")
        if "fig-cap" in directives:
            label, caption = directives["label"], directives["fig-cap"]
            cells.append(caption_cell(label, caption))
    return notebook | {"cells": cells}


def inputs(package: Path) -> list[Path]:
    """All files on which the output of a chapter may depend."""
    parts = package.rglob("*.py"), package.glob("recipes/*.toml")
    places = ("models/*/*", "results/*.json", "book/paper/*")
    data = (package.parent.glob(place) for place in places)
    return sorted(file for found in (*parts, *data) for file in found)


@cache
def digest(package: Path) -> str:
    """A fingerprint of all that chapters import and read; once in a build."""
    files = inputs(package)
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()


def with_directives(text: str, package: Path) -> str:
    """A notebook as Sphinx is to read it, in JSON."""
    notebook = render_directives(json.loads(text))
    notebook["cells"].append(
        {
            "cell_type": "code",
            "id": "package-digest",
            "metadata": {"tags": ["remove-cell"]},
            "outputs": [],
            "execution_count": None,
            "source": f"# {PACKAGE} {digest(package)}",
        }
    )
    return json.dumps(notebook)


def read(app, docname, source):
    """Rewrite a notebook's source before it is parsed and executed."""
    package = Path(app.srcdir) / PACKAGE
    if app.env.doc2path(docname).endswith(".ipynb"):
        source[0] = with_directives(source[0], package)
    elif "{code-cell}" in source[0]:
        code = f"# {PACKAGE} {digest(package)}"
        source[0] += f"\n```{{code-cell}}\n:tags: [remove-cell]\n{code}\n```\n"
    else:
        return
    for file in [__file__, *inputs(package)]:
        app.env.note_dependency(str(file))


class CellFigures(SphinxTransform):
    """Join the output of a code cell and the caption after it in a figure."""

    default_priority = 200  # before references are resolved

    def apply(self, **kwargs):
        """Move each caption below the output of the cell before it."""
        for caption in list(self.document.findall(nodes.container)):
            if "nb-caption" not in caption["classes"]:
                continue
            siblings = caption.parent.children
            cell = siblings[siblings.index(caption) - 1]
            output = next(
                child
                for child in cell.children
                if child.get("nb_element") == "cell_code_output"
            )
            figure = nodes.figure(
                "",
                ids=caption["ids"],
                names=caption["names"],
                classes=["nb-figure"],
            )
            cell.replace(output, figure)
            figure += output
            figure += nodes.caption("", "", *caption.children[0].children)
            caption.parent.remove(caption)
            for name in figure["names"]:
                self.document.ids[self.document.nameids[name]] = figure


def setup(app):
    """Register with Sphinx."""
    app.connect("source-read", read)
    app.add_transform(CellFigures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
