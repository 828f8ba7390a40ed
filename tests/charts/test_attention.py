"""Charts of attention hold the numbers that they are given."""

import torch

from tests.charts.drawing import drawn
from transformer_annotated.charts.attention import score_map, softmax_sharpness


def test_softmax_sharpness_has_a_weight_for_every_size_and_draw():
    """Ten sizes of a head, and as many keys as asked for."""
    rows = drawn(softmax_sharpness(keys=3, draws=2))["data"]["values"]
    assert len(rows) == 2 * 10 * 3


def test_score_map_marks_the_query():
    """The cross stands where the query is."""
    scores = {"dot": torch.eye(3)}
    spec = drawn(score_map(scores, [-1, 0, 1], query=[0.5, -1]))
    _, mark = spec["layer"]
    (spot,) = mark["data"]["values"]
    assert mark["encoding"]["x"]["field"] == "x"
    assert (spot["x"], spot["y"]) == (0.5, -1)
