"""Charts of recurrent models hold the numbers that they are given."""

from tests.charts.drawing import drawn
from transformer_annotated.charts.recurrent import comparison, sentence_map


def test_a_map_joins_what_means_the_same():
    """Each sentence is a point, and can be read."""
    rows = [
        {"situation": "s", "roles": r, "meaning": r, "sentence": r + w,
         "x": x, "y": 1.0}
        for r in ("as named", "exchanged")
        for w, x in (("1", 0.0), ("2", 1.0))
    ]  # fmt: skip
    spec = drawn(sentence_map(rows))
    assert spec["data"]["values"] == rows
    assert spec["layer"][0]["encoding"]["detail"]["field"] == "meaning"


def test_a_comparison_has_a_panel_to_choose():
    """Means lie inside their bands, whichever is shown."""
    rows = [
        {"panel": panel, "x": x, "model": model, "BLEU": 5, "low": 4, "high": 6}
        for panel in ("length", "time")
        for x in (1, 2)
        for model in ("RNN", "LSTM")
    ]
    spec = drawn(comparison(rows))
    assert spec["data"]["values"] == rows
    assert "panel" in [param["name"] for param in spec["params"]]
