"""Charts of positions hold the numbers that they are given."""

import torch

from tests.charts.drawing import drawn, holds
from transformer_annotated.charts.positions import (
    clocks,
    position_map,
    rotation_heatmap,
)
from transformer_annotated.positions import sinusoids


def test_charts_of_positions_hold_the_encodings():
    """A value stands where its row says, and the slider is there."""
    table = drawn(position_map(sinusoids(5, 8)))
    assert holds(table, None, position=0, component=1, value=1.0)
    wall = drawn(clocks(sinusoids(5, 16)))
    assert holds(wall, "position", position=0, pair=1, tip_x=2.5)


def test_rotation_heatmap_has_a_matrix_for_each_shift():
    """The slider goes from the first shift to the last."""
    spec = drawn(rotation_heatmap({1: torch.eye(2), 2: -torch.eye(2)}))
    assert holds(spec, "shift", shift=2, row=1, column=1, value=-1)
