"""Charts of scores hold the numbers that they are given."""

from tests.charts.drawing import drawn
from transformer_annotated.charts.evaluation import bleu_parts, histogram

LENGTHS = [
    {"words": n, "part": part, "kind": kind, "value": value}
    for n, value in ((1, 0.5), (2, 0.25))
    for part, kind in (("1-grams", "precision"), ("BLEU", "score"))
]


def test_bleu_parts_show_the_output_of_the_slider():
    """The slider has a place for each output, and the title is its text."""
    chart = drawn(bleu_parts(["a", "a b"], LENGTHS, start=2))
    (param,) = chart["params"]
    assert (param["bind"]["min"], param["bind"]["max"]) == (1, 2)
    assert param["value"] == 2
    assert chart["data"]["values"] == LENGTHS
    assert (
        chart["title"]["text"]["expr"]
        == '([["a", ""], ["a b", ""]])[words - 1]'
    )


def test_histogram_counts_and_colours():
    """Every value is in one bar; bars are coloured by their middle."""
    chart = drawn(histogram([1, 2, 2, 5], "x", 1.5, 4, bins=4))
    rows = chart["data"]["values"]
    assert [row["count"] for row in rows] == [1, 2, 0, 1]
    assert [row["from"] for row in rows] == [1, 2, 3, 4]
    inside = [row["where"] == "inside the interval" for row in rows]
    assert inside == [True, True, True, False]
    same = histogram([3.0, 3.0], "x", 3, 3).to_dict()["data"]["values"]
    assert sum(row["count"] for row in same) == 2
