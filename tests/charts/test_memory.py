"""Charts of a memory: weights over time, and errors against length."""

from tests.charts.drawing import drawn
from transformer_annotated.charts.memory import access_pattern, error_curves

ROWS = [
    {"run": run, "head": head, "step": step, "slot": step, "weight": 0.9}
    for run in ("copy", "sort")
    for head in ("write", "read")
    for step in range(3)
]
MARKS = [{"run": "copy", "step": 2}, {"run": "sort", "step": 1}]


def test_each_head_has_a_panel_with_its_weights():
    """And a rule where the input ends; a menu chooses the run."""
    spec = drawn(access_pattern(ROWS, MARKS, slots=5))
    assert "run" in {param["name"] for param in spec["params"]}
    for panel, head in zip(spec["vconcat"], ("write", "read"), strict=True):
        assert panel["title"] == f"{head} head"
        cells, rule = panel["layer"]
        wanted = [row for row in ROWS if row["head"] == head]
        assert cells["data"]["values"] == wanted
        assert rule["data"]["values"] == MARKS
        assert cells["encoding"]["x"]["scale"]["domain"] == [0, 3]
        assert cells["encoding"]["y"]["scale"]["domain"] == [0, 5]


def test_errors_have_a_line_for_each_seed():
    """A rule at the longest of training, another at guessing."""
    rows = [
        {"machine": name, "seed": seed, "length": n, "error": 0.1}
        for name in ("NTM", "LSTM")
        for seed in (0, 1)
        for n in (4, 8)
    ]
    spec = drawn(error_curves(rows, trained=4))
    lines, longest, guessing = spec["layer"]
    assert lines["data"]["values"] == rows
    assert lines["encoding"]["detail"]["field"] == "seed"
    assert longest["data"]["values"] == [{"length": 4}]
    assert guessing["data"]["values"] == [{"error": 0.5}]
