"""Charts of text show every piece."""

from tests.charts.drawing import drawn
from transformer_annotated.charts.text import segmentation

HISTORIES = {"abc": [("a", "b", "c"), ("ab", "c"), ("ab", "c")]}


def test_segmentation_shows_each_word_whole_at_every_merge():
    """Whatever the slider says, the boxes spell the word without a gap."""
    chart = drawn(segmentation(HISTORIES, ["none", "ab", "x"], 1))
    for made, pieces in enumerate(HISTORIES["abc"]):
        boxes = sorted(
            (row["left"], row["right"], row["piece"])
            for row in chart["data"]["values"]
            if row["since"] <= made <= row["until"]
        )
        assert tuple(piece for *_, piece in boxes) == pieces
        assert [left for left, *_ in boxes[1:]] == [
            right for _, right, _ in boxes[:-1]
        ]
    (param,) = chart["params"]
    assert param["value"] == 1
    assert (param["bind"]["min"], param["bind"]["max"]) == (0, 2)
