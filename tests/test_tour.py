"""The tour shows the model that runs: its lines, and little else."""

import ast
import inspect
from pathlib import Path

import prose
import pytest

import transformer_annotated
from tests.site import ROOT
from transformer_annotated.charts.source import body_of

PACKAGE = Path(transformer_annotated.__file__).parent
BOXES = {
    "Embeddings.forward",
    "SinusoidalPositions.forward",
    "MultiHeadAttention.forward",
    "attention",
    "Residual.forward",
    "FeedForward.forward",
    "Encoder.forward",
    "shift_right",
    "causal_mask",
    "DecoderLayer.forward",
    "Decoder.forward",
    "Embeddings.logits",
    "Transformer.forward",
}


@pytest.fixture(scope="module")
def cells():
    """The cells of the tour."""
    return prose.cells(ROOT / "notebooks/02_tour.ipynb")


@pytest.fixture(scope="module")
def shown(cells):
    """The functions whose lines the tour shows, in order."""
    code = [c["source"] for c in cells if c["cell_type"] == "code"][1:]
    nodes = [node for source in code for node in ast.walk(ast.parse(source))]
    names, functions = {}, []
    for node in nodes:
        if isinstance(node, ast.ImportFrom | ast.Import):
            exec(ast.unparse(node), names)
    for node in nodes:
        called = isinstance(node, ast.Call) and ast.unparse(node.func)
        if called == "show_source":
            functions += [eval(ast.unparse(arg), names) for arg in node.args]
    return functions


def test_every_box_of_figure_1_shows_its_lines(shown):
    """The whole model in under 120 lines, none of them twice."""
    names = [function.__qualname__ for function in shown]
    assert set(names) >= BOXES and len(names) == len(set(names))
    assert sum(len(body_of(f).splitlines()) for f in shown) < 120


def test_lines_shown_are_the_packages(shown):
    """They come from modules of the installed package, not from a copy."""
    for function in shown:
        assert Path(inspect.getsourcefile(function)).is_relative_to(PACKAGE)


def test_the_tour_makes_twelve_stops(cells):
    """Each has its number, its place on the map, and a way to its chapter."""
    figure = (ROOT / "book/figures/tour.svg").read_text(encoding="utf-8")
    text = "\n".join(c["source"] for c in cells if c["cell_type"] == "markdown")
    stops = text.split("\n(stop-")[1:]
    assert len(stops) == 12
    for number, stop in enumerate(stops, 1):
        assert stop.startswith(f"{number})=\n## Stop {number}. ")
        assert f'href="#stop-{number}"' in figure
        assert "{ref}`" in stop
