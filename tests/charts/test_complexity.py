"""Charts of costs hold the numbers that they are given."""

from tests.charts.drawing import drawn, holds
from transformer_annotated.charts.complexity import (
    cost_curves,
    reach_map,
    wavefront,
)
from transformer_annotated.complexity import earliest_steps, path_lengths


def test_cost_curves_have_a_menu_of_costs_and_of_sizes():
    """A point for each cost of each row, on logarithmic axes."""
    rows = [
        {"layer": name, "n": n, "d": d, "time": n * d, "memory": n**power}
        for name, power in (("recurrent", 1), ("self-attention", 2))
        for d in (4, 8)
        for n in (1, 2, 4)
    ]
    spec = drawn(cost_curves(rows, ["time", "memory"]))
    point = {"layer": "self-attention", "n": 4, "d": 8}
    assert holds(spec, "cost", **point, cost="memory", value=16)
    assert holds(spec, "d", **point, cost="time", value=32)
    scales = [spec["encoding"][axis]["scale"] for axis in "xy"]
    assert [scale["type"] for scale in scales] == ["log", "log"]


def test_wavefront_has_a_step_for_each_unit():
    """The slider goes to the last step, and the title knows it."""
    stacks = {
        "with": earliest_steps(2, 3, lateral=True),
        "without": earliest_steps(2, 3, lateral=False),
    }
    spec = drawn(wavefront(stacks))
    binds = {param["name"]: param["bind"] for param in spec["params"]}
    assert (binds["step"]["min"], binds["step"]["max"]) == (1, 4)
    assert binds["stack"]["options"] == ["with", "without"]
    rows = (spec.get("data") or spec["layer"][0]["data"])["values"]
    assert {"stack": "with", "layer": 1, "position": 2, "at": 4} in rows
    title = spec["layer"][0]["title"]["text"]["expr"]
    assert '{"with": 4, "without": 2}' in title


def test_reach_map_has_a_cell_for_each_pair():
    """A menu of layers, and a slider to the longest path."""
    kinds = ("self-attention", "recurrent")
    spec = drawn(reach_map({kind: path_lengths(kind, 5) for kind in kinds}))
    assert holds(spec, "depth", layer="recurrent", output=4, input=0, steps=5)
    assert holds(spec, "layer", layer="recurrent", output=0, input=4, steps=0)
    (slider,) = (p for p in spec["params"] if p["name"] == "depth")
    assert slider["bind"]["max"] == 5
