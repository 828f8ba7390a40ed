"""Charts of dropout, smoothing and calibration."""

import torch
import vl_convert

from tests.charts.drawing import drawn, holds
from transformer_annotated.charts.loss import (
    dropout_map,
    reliability_diagram,
    smoothing_gap,
)


def test_dropout_map_has_every_number_in_every_draw():
    """A value stands where its row says, and the slider is there."""
    spec = drawn(dropout_map(torch.eye(2, 3), draws=2))
    assert holds(spec, "rate", draw=2, position=1, component=1, value=1.0)


def test_smoothing_gap_computes_the_best_distance():
    """What Vega computes for the title is the known answer for 0.1."""
    spec = drawn(smoothing_gap((5, 37_000)))
    title = "best distance 12.7, loss there 1.38 nats"
    assert title in vl_convert.vegalite_to_svg(spec)


def test_reliability_diagram_sorts_predictions_into_bins():
    """Two of three were surer than 0.9, and one of these was right."""
    sure = torch.tensor([0.95, 1.0, 0.25]), torch.tensor([1, 0, 1]) > 0
    spec = drawn(reliability_diagram({"512": {"none": sure}}))
    low, high = spec["layer"][1]["data"]["values"]
    assert (low["sure"], low["right"], low["share"]) == (0.25, 1, 0.3333)
    assert (high["sure"], high["right"], high["share"]) == (0.975, 0.5, 0.6667)
