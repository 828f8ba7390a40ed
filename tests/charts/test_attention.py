"""Charts of attention hold the numbers that they are given."""

from tests.charts.drawing import drawn
from transformer_annotated.charts.attention import softmax_sharpness


def test_softmax_sharpness_has_a_weight_for_every_size_and_draw():
    """Ten sizes of a head, and as many keys as asked for."""
    rows = drawn(softmax_sharpness(keys=3, draws=2))["data"]["values"]
    assert len(rows) == 2 * 10 * 3
