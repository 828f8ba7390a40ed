"""Charts of several GPUs: the ring, and hours of training."""

import torch
import vl_convert

from tests.charts.drawing import drawn
from transformer_annotated.charts.distributed import (
    ring_all_reduce,
    training_hours,
)


def test_ring_all_reduce_has_a_step_for_each_state():
    """A slider from before the first step to after the last."""
    counts = torch.stack([torch.eye(2) + step for step in range(3)])
    chart = drawn(ring_all_reduce(counts))
    assert chart["params"][0]["bind"]["max"] == 2
    held = torch.zeros_like(counts)
    for row in chart["data"]["values"]:
        held[row["step"], row["worker"], row["chunk"]] = row["summands"]
    assert torch.equal(held, counts)


def test_training_hours_divides_work_by_speed():
    """3.6e18 operations at 35 % of 1e13 on 8 GPUs are 35.7 hours."""
    run = {"model": "base", "gpu": "P100"}
    plan, known = run | {"work": 3.6e18, "peak": 1e13}, run | {"hours": 12}
    spec = drawn(training_hours([plan], [known]))
    assert "36 h" in vl_convert.vegalite_to_svg(spec)
    sliders = {p["name"]: p["value"] for p in spec["params"]}
    assert sliders == {"used": 35, "doublings": 3}
    assert spec["layer"][2]["data"]["values"][0]["hours"] == 12
