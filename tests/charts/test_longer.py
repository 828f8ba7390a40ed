"""Charts of attention for long texts hold the numbers they are given."""

from tests.charts.drawing import drawn
from transformer_annotated.charts.longer import (
    error_curves,
    quality_points,
    ratio_curves,
)


def test_error_curves_have_a_slider_and_a_menu():
    """Each length and scale has its own rows; rules stand at 1."""
    rows = [
        {"n": n, "scale": scale, "method": method, "size": 8}
        | {"cost": cost, "error": 2 * cost}
        for n in (128, 256)
        for scale in (0.5, 1.0)
        for method in ("FAVOR+", "LSH")
        for cost in (0.25, 0.5)
    ]
    spec = drawn(error_curves(rows))
    params = {param["name"]: param for param in spec["params"]}
    assert params["power"]["bind"] | {"name": ""} == {
        "input": "range", "min": 7, "max": 8, "step": 1, "name": "",
    }  # fmt: skip
    assert params["power"]["value"] == 8
    assert params["scale"]["bind"]["options"] == [0.5, 1.0]
    assert params["scale"]["value"] == 1.0
    lines, *rules = spec["layer"]
    assert lines["data"]["values"] == rows
    for rule, axis in zip(rules, "xy", strict=True):
        assert rule["data"]["values"] == [{"one": 1}]
        assert rule["encoding"][axis]["field"] == "one"


def test_quality_has_a_point_and_a_bar_for_each_kind():
    """From the worst to the best seed; menus choose the task and the cost."""
    rows = [
        {"task": task, "measure": measure, "kind": kind, "accuracy": 0.5}
        | {"low": 0.25, "high": 0.75, "cost": 3.0}
        for task in ("find", "near")
        for measure in ("seconds", "megabytes")
        for kind in ("full", "window")
    ]
    spec = drawn(quality_points(rows))
    menus = {p["name"]: p["bind"]["options"] for p in spec["params"]}
    assert menus == {
        "task": ["find", "near"],
        "measure": ["seconds", "megabytes"],
    }
    bars, points = spec["layer"]
    assert spec["data"]["values"] == rows
    assert bars["encoding"]["y"]["field"] == "low"
    assert bars["encoding"]["y2"]["field"] == "high"
    assert points["encoding"]["y"]["field"] == "accuracy"


def test_ratios_have_a_line_for_each_kind_and_a_rule_at_one():
    """A menu chooses what is measured."""
    rows = [
        {"measure": measure, "kind": kind, "n": n, "ratio": 64 / n}
        for measure in ("time", "memory")
        for kind in ("Linformer", "window")
        for n in (32, 64, 128)
    ]
    spec = drawn(ratio_curves(rows))
    (menu,) = (p for p in spec["params"] if p["name"] == "measure")
    assert menu["bind"]["options"] == ["time", "memory"]
    lines, rule = spec["layer"]
    assert lines["data"]["values"] == rows
    assert lines["encoding"]["x"]["axis"]["values"] == [32, 64, 128]
    assert rule["encoding"]["y"]["field"] == "one"
