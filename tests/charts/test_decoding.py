"""The chart of beam search shows what each step knew."""

from tests.charts.drawing import drawn
from transformer_annotated.charts.decoding import search_tree

SEARCHES = {
    1: [[("a", 0.6, True), ("b", 0.4, False)], [("a </s>", 0.5, True)]],
    2: [
        [("a", 0.6, True), ("b", 0.4, True)],
        [("a </s>", 0.5, True), ("b c", 0.3, True), ("a c", 0.1, False)],
        [("b c </s>", 0.3, True)],
    ],
}


def test_search_tree_shows_what_each_step_knew():
    """A word is in the beam, ended or dropped, as its best path is by then."""
    chart = drawn(search_tree(SEARCHES))
    steps, beams = (param["bind"] for param in chart["params"])
    assert (steps["min"], steps["max"]) == (0, 3)
    assert (beams["min"], beams["max"]) == (1, 2)
    rows = chart["layer"][0]["data"]["values"]
    states = {
        (row["beam"], row["step"], row["word"], row["y"]): row["state"]
        for row in rows
    }
    assert states[1, 1, "b", 1] == states[1, 3, "b", 1] == "dropped"
    assert states[1, 1, "a", 1] == states[2, 2, "b", 1] == "in the beam"
    assert states[1, 2, "a", 1] == states[2, 2, "a", 1] == "ended"
    assert states[2, 3, "</s>", 3] == states[1, 3, "</s>", 2] == "ended"
    assert (1, 1, "</s>", 2) not in states  # not looked at yet
    title = chart["title"]["text"]["expr"]
    assert "0.30  b c" in title
    assert "0.50  a </s>" in title
