"""The package's rooms: what may import what, and how large a room may be."""

import ast
import json
from graphlib import TopologicalSorter

import pytest
import yaml

from tests.site import ROOT

PACKAGE = ROOT / "transformer_annotated"
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in PACKAGE.rglob("*.py")
    if path.stem not in ("__init__", "__main__", "_modidx")
}
EACH_MODULE = pytest.mark.parametrize("name", MODULES)


def imports(name, top_level=True):
    """Modules of the package that a module imports, with the names it takes.

    Those inside functions are left out, unless asked for.
    """
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    nodes = tree.body if top_level else list(ast.walk(tree))
    here = ["transformer_annotated", *name.split(".")[:-1]]
    found = []
    for node in nodes:
        if not isinstance(node, ast.ImportFrom):
            continue
        start = here[: len(here) + 1 - node.level] if node.level else []
        whole = ".".join([*start, *(node.module or "").split(".")]).strip(".")
        if not whole.startswith("transformer_annotated"):
            continue
        module = whole.removeprefix("transformer_annotated").lstrip(".")
        for alias in node.names:
            inner = f"{module}.{alias.name}".lstrip(".")
            if inner in MODULES:
                found.append((inner, ""))
            elif module:
                found.append((module, alias.name))
    return found


def needed(name, seen=()):
    """All modules that a module brings with it."""
    new = {other for other, _ in imports(name)} - {*seen, name}
    for other in new:
        seen = {*seen, other, *needed(other, {*seen, *new})}
    return set(seen)


def reading_order(folder=""):
    """The road's modules, or a folder's, as the chapters of the book come."""
    toc = yaml.safe_load((ROOT / "book/_toc.yml").read_text(encoding="utf-8"))
    files = [
        chapter["file"] for part in toc["parts"] for chapter in part["chapters"]
    ]
    order = []
    for file in files:
        path = ROOT / f"{file}.ipynb"
        if path.exists() and "workshop" not in file:
            for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
                first = "".join(cell["source"]).partition("\n")[0].split()
                if first[:2] in (["#|", "default_exp"], ["#|", "export"]):
                    order += first[2:]
    return [
        name
        for name in dict.fromkeys(order)
        if name.rpartition(".")[0] == folder.rstrip(".")
    ]


def test_imports_run_in_no_circle():
    """Not even those inside functions."""
    graph = {
        name: {other for other, _ in imports(name, top_level=False)}
        for name in MODULES
    }
    TopologicalSorter(graph).prepare()


def test_what_came_after_the_paper_is_not_needed_before():
    """Only Part V imports Part V, in reading order, and never its charts."""
    order = reading_order("after.")
    after = {name for name in MODULES if name.startswith("after.")}
    assert after == set(order)
    for name in MODULES:
        for other, _ in imports(name, top_level=False):
            if other in after:
                assert name in after, (name, other)
                assert order.index(other) < order.index(name), (name, other)
            assert name not in after or not other.startswith("charts"), name


def test_the_road_imports_in_reading_order():
    """A chapter builds on earlier chapters, or on the workshop; on no chart."""
    order = reading_order()
    road = {name for name in MODULES if "." not in name}
    assert road == set(order)
    for name in road:
        for other, _ in imports(name, top_level=False):
            assert not other.startswith("charts"), name
            if other in road:
                assert order.index(other) < order.index(name), (name, other)


@EACH_MODULE
def test_only_public_names_cross_a_border(name):
    """Who needs another's helper gives it a name and a room."""
    private = [
        (other, taken)
        for other, taken in imports(name, top_level=False)
        if taken.startswith("_") and taken != "__version__"
    ]
    assert not private


@EACH_MODULE
def test_rooms_are_of_a_size_to_read(name):
    """At most 550 lines; a larger one is two ideas."""
    lines = MODULES[name].read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 550


def test_the_translator_comes_without_the_trainer():
    """Nor with the loss, the optimizer, charts or the made-up language."""
    brought = needed("workshop.translator")
    strangers = {"training", "optimizer", "loss", "workshop.grammar"}
    assert not brought & strangers
    assert not any(name.startswith("charts") for name in brought)
