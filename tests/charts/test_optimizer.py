"""The chart of the learning rate computes what the optimizer uses."""

import math
from types import SimpleNamespace

import pytest

from tests.charts.drawing import drawn
from transformer_annotated.charts.optimizer import learning_rate
from transformer_annotated.optimizer import noam_rate


def test_learning_rate_is_computed_by_vega():
    """Vega's formulas give the rate of the sliders, and of the base model."""
    chart = drawn(learning_rate(1000))
    sliders = {p["name"]: p["value"] for p in chart["params"]}
    assert sliders == {"d_model": 512, "warmup": 4000, "factor": 1}
    formulas = {
        step["as"]: step["calculate"]
        for layer in chart["layer"]
        for step in layer["transform"]
        if "datum.step" in step["calculate"]
    }
    functions = {"sqrt": math.sqrt, "min": min, "pow": pow}
    for step, d_model, warmup, factor in ((1, 64, 100, 2), (900, 512, 300, 1)):
        names = {"d_model": d_model, "warmup": warmup, "factor": factor}
        datum = SimpleNamespace(step=step)
        found = {
            name: eval(formula, {**functions, **names, "datum": datum})
            for name, formula in formulas.items()
        }
        assert found["rate"] == pytest.approx(noam_rate(step, **names))
        assert found["paper"] == pytest.approx(noam_rate(step, 512))


def test_learning_rate_marks_the_peak():
    """The point stands at the end of the warm-up, on the curve."""
    chart = learning_rate().to_dict()
    (point,) = (
        layer
        for layer in chart["layer"]
        if layer["mark"]["type"] == "point" and layer["mark"].get("filled")
    )
    names = {"d_model": 256, "warmup": 900, "factor": 3, "sqrt": math.sqrt}
    at = {s["as"]: eval(s["calculate"], names) for s in point["transform"]}
    assert at["step"] == 900
    assert at["rate"] == pytest.approx(noam_rate(900, 256, 900, 3))
