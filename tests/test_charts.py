"""The charts hold the numbers that they are given, on the right axes."""

import json
import math
import re
from types import SimpleNamespace

import pytest
import torch
import vl_convert
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from transformer_annotated import charts
from transformer_annotated.optimizer import noam_rate
from transformer_annotated.positions import sinusoids

CURVE = [{"x": x, "y": x * k, "k": f"{k}"} for k in (1, 2) for x in (1, 2, 3)]
WEIGHTS = torch.rand(3, 2, 4).softmax(-1)
HEADS = {f"{i + 1}": w for i, w in enumerate(WEIGHTS)}
MATRICES = {0: torch.eye(2), 10: 2 * torch.eye(2)}
STEPS = [("first", "source", WEIGHTS[0]), ("then", "source", 9 * WEIGHTS[1])]
LINKS = {
    "moved": ("a b c .", "x z y .", [(0, 0), (1, 2), (2, 1), (3, 3)]),
    "not": ("a b .", "x y .", [(0, 0), (1, 1), (2, 2)]),
}
COUNTS = [{"model": "base", "ours": 63.0, "paper": 65}]
IDS = torch.tensor([[5, 2], [2, 0]])
PLAN = {"model": "base", "gpu": "P100", "work": 3.6e18, "peak": 1e13}
SIZES = [{"way": "a", "tokens": 2.0, "pairs": 3}] * 2
PARTS = [
    ("encoder", "in", "x"),
    ("encoder", "drop", "y"),
    ("decoder", "in", "z"),
]
SURE = {"none": (torch.tensor([0.95, 1.0, 0.25]), torch.tensor([1, 0, 1]) > 0)}
HISTORIES = {"abc": [("a", "b", "c"), ("ab", "c"), ("ab", "c")]}
BARS = [{"hours": 2, "run": "a"}, {"hours": 3.5, "run": "b"}]
SEARCHES = {
    1: [[("a", 0.6, True), ("b", 0.4, False)], [("a </s>", 0.5, True)]],
    2: [
        [("a", 0.6, True), ("b", 0.4, True)],
        [("a </s>", 0.5, True), ("b c", 0.3, True), ("a c", 0.1, False)],
        [("b c </s>", 0.3, True)],
    ],
}
LENGTHS = [
    {"words": n, "part": part, "kind": kind, "value": value}
    for n, value in ((1, 0.5), (2, 0.25))
    for part, kind in (("1-grams", "precision"), ("BLEU", "score"))
]
CHANGES = [
    {"row": "h = 1", "measure": "BLEU", "of": "the paper", "change": -0.9},
    {"row": "h = 1", "measure": "BLEU", "of": "here", "change": 2.0}
    | {"low": 1.5, "high": 2.5},
]
RUDE = "</script><script>alert(1)</script><!-- <b>"


def explained(source, said, layers=2, heads=3, seed=0):
    """What a model might attend to: rows that sum to 1, none ahead."""
    numbers = torch.Generator().manual_seed(seed)

    def weights(rows, columns, ahead=True):
        scores = 5 * torch.randn(
            layers, heads, rows, columns, generator=numbers
        )
        if not ahead:
            hidden = torch.ones(rows, columns).triu(1).bool()
            scores.masked_fill_(hidden, -math.inf)
        return scores.softmax(-1)

    return SimpleNamespace(
        source_tokens=source,
        input_tokens=["<s>", *said[:-1]],
        output_tokens=said,
        encoder_attentions=weights(len(source), len(source)),
        decoder_attentions=weights(len(said), len(said), ahead=False),
        cross_attentions=weights(len(said), len(source)),
    )


COSTS = [
    {"model": model, "task": task, "kind": kind, "cost": 2e19, "BLEU": bleu}
    for task in ("German", "French")
    for model, kind, bleu in (("a", "single", 20), ("b", "ours", 30))
]
CHARTS = {
    "attention": lambda: charts.attention(explained(["a", "a"], ["b", "c"])),
    "head_map": lambda: charts.head_map({"m": {"cross": WEIGHTS[0]}}),
    "curves": lambda: charts.curves(CURVE, "x", "y", "k", log_x=True),
    "heat_map": lambda: charts.heat_map(HEADS, ["a", "a"], list("wxyz")),
    "sharpness": charts.sharpness,
    "score_map": lambda: charts.score_map(
        {"dot": torch.eye(3)}, [-1, 0, 1], query=[0.5, -1]
    ),
    "word_map": lambda: charts.word_map(MATRICES, ["a", "b"], ["x", "y"]),
    "clocks": lambda: charts.clocks(sinusoids(5, 16)),
    "position_map": lambda: charts.position_map(sinusoids(5, 8)),
    "waves": lambda: charts.waves(sinusoids(5, 4), [6.28, 628.0]),
    "shift_map": lambda: charts.shift_map({1: torch.eye(2), 2: -torch.eye(2)}),
    "walk_map": lambda: charts.walk_map(STEPS, {"source": ["a", "a"]}),
    "count_chart": lambda: charts.count_chart(COUNTS),
    "batch_map": lambda: charts.batch_map({"one": (IDS, IDS[:, :1])}),
    "batch_sizes": lambda: charts.batch_sizes(SIZES, max_tokens=12),
    "slice_map": lambda: charts.slice_map([7, 8, 9], [0, 2, 3], ["a b", "c"]),
    "piece_map": lambda: charts.piece_map(HISTORIES, ["none", "ab", "x"], 1),
    "alignment_chart": lambda: charts.alignment_chart(LINKS),
    "dropout_map": lambda: charts.dropout_map(torch.eye(2, 3), draws=2),
    "stack_map": lambda: charts.stack_map(PARTS),
    "target_bars": lambda: charts.target_bars(list("abcd"), right="c"),
    "penalty_chart": lambda: charts.penalty_chart((5, 100)),
    "noam_chart": charts.noam_chart,
    "search_tree": lambda: charts.search_tree(SEARCHES),
    "length_bars": lambda: charts.length_bars(["a", "a b"], LENGTHS, start=2),
    "histogram": lambda: charts.histogram([1, 2, 2, 5], "x", 1.5, 4, bins=4),
    "bars": lambda: charts.bars(BARS, "hours", "run"),
    "cost_map": lambda: charts.cost_map(COSTS),
    "ablation": lambda: charts.ablation(CHANGES),
    "calibration_chart": lambda: charts.calibration_chart({"512": SURE}),
    "ring_map": lambda: charts.ring_map(torch.tensor([[[1, 1]] * 2] * 3)),
    "hours_chart": lambda: charts.hours_chart(
        [PLAN], [{"model": "base", "gpu": "P100", "hours": 12}]
    ),
}


@pytest.mark.parametrize("name", CHARTS)
def test_chart_compiles_and_draws(name):
    """Vega-Lite compiles each chart, and Vega draws it."""
    spec = CHARTS[name]().to_dict()
    assert "<path" in vl_convert.vegalite_to_svg(spec)


def test_every_chart_is_tried():
    """No chart function is missing above."""
    functions = {n for n in charts.__all__ if callable(getattr(charts, n))}
    assert functions == set(CHARTS)


def test_heat_map_puts_queries_on_rows_and_keys_on_columns():
    """The cell at (query i, key j) has the weight w[i, j] of its panel."""
    chart = CHARTS["heat_map"]().to_dict()
    assert chart["encoding"]["y"]["field"] == "query"
    assert chart["encoding"]["x"]["field"] == "key"
    drawn = torch.zeros_like(WEIGHTS)
    for row in chart["data"]["values"]:
        i, j = (int(row[axis].split()[0]) for axis in ("query", "key"))
        drawn[int(row["panel"]) - 1, i, j] = row["weight"]
    assert_close(drawn, WEIGHTS, atol=1e-4, rtol=0)


def test_score_map_marks_the_query():
    """The cross stands where the query is."""
    _, mark = CHARTS["score_map"]().to_dict()["layer"]
    (spot,) = mark["data"]["values"]
    assert mark["encoding"]["x"]["field"] == "x"
    assert (spot["x"], spot["y"]) == (0.5, -1)


def test_slice_map_puts_each_id_in_its_sentence():
    """Places run on through all sentences; the slider goes over these."""
    chart = CHARTS["slice_map"]().to_dict()
    rows = chart["data"]["values"]
    found = [(row["sentence"], row["place"], row["id"]) for row in rows]
    assert found == [(0, 0, 7), (0, 1, 8), (1, 2, 9)]
    (param,) = chart["params"]
    assert (param["bind"]["min"], param["bind"]["max"]) == (0, 1)
    long = charts.slice_map(range(9), [0, 9], ["x"]).to_dict()
    places = [(row["row"], row["column"]) for row in long["data"]["values"]]
    assert places[7:] == [(0, 7), (1, 0)]


def test_menu_only_where_there_is_a_choice():
    """One panel needs no menu; several have one, in the order given."""
    (param,) = CHARTS["heat_map"]().to_dict()["params"]
    assert param["bind"]["options"] == ["1", "2", "3"]
    one = charts.heat_map({"only": WEIGHTS[0]}, ["a", "b"], list("wxyz"))
    assert "bind" not in one.to_dict()["params"][0]


@pytest.mark.parametrize(
    ("name", "param", "keys", "expected"),
    [
        ("word_map", "step", ("step", "word", "x"), (10, "a", 2.0)),
        ("position_map", None, ("position", "component", "value"), (0, 1, 1.0)),
        ("clocks", "position", ("position", "pair", "tip_x"), (0, 1, 2.5)),
        ("waves", "pair", ("pair", "part", "value"), (1, "cosine", 1.0)),
        (
            "shift_map",
            "shift",
            ("shift", "row", "column", "value"),
            (2, 1, 1, -1),
        ),
        ("count_chart", None, ("count", "millions"), ("the paper's", 65)),
        ("dropout_map", "rate", ("draw", "position", "value"), (2, 1, 1.0)),
        ("target_bars", "epsilon", ("word", "right"), ("c", True)),
        ("stack_map", None, ("stack", "height", "step"), ("encoder", 1, "y")),
    ],
)
def test_charts_hold_the_numbers_they_are_given(name, param, keys, expected):
    """A value stands where its row says, and the slider is there."""
    chart = CHARTS[name]().to_dict()
    rows = chart["data"]["values"]
    assert expected in {tuple(row[key] for key in keys) for row in rows}
    if param:
        assert param in [p["name"] for p in chart["params"]]


def test_walk_map_numbers_words_and_limits_colours():
    """A word may come twice; the number shown is exact, its colour is not."""
    rows = CHARTS["walk_map"]().to_dict()["data"]["values"]
    assert {row["word"] for row in rows} == {"0 a", "1 a"}
    drawn = torch.tensor([r["value"] for r in rows if r["step"] == 1])
    assert_close(drawn, (9 * WEIGHTS[1]).flatten(), atol=0.01, rtol=0)
    assert max(row["colour"] for row in rows) <= 3


def test_batch_map_counts_padding():
    """Source and target stand side by side; the title says what is empty."""
    chart = CHARTS["batch_map"]().to_dict()
    cells = [(r["x"], r["y"], r["cell"]) for r in chart["data"]["values"]]
    assert sorted(cells) == [
        (0, 0, "source"),
        (0, 1, "source"),
        (1, 0, "source"),
        (1, 1, "padding"),
        (3, 0, "target"),
        (3, 1, "target"),
    ]
    assert "2 pairs, 17% padding" in chart["title"]["text"]["expr"]


def test_batch_sizes_draws_the_budget():
    """The line is that of full batches, 12 tokens over 2."""
    line, points = CHARTS["batch_sizes"]().to_dict()["layer"]
    assert line["data"]["values"] == [{"tokens": 2, "pairs": 6.0}]
    assert points["data"]["values"] == SIZES


def test_alignment_chart_draws_links_between_words():
    """A line from each word to its partner; crossing ones are marked."""
    chart = CHARTS["alignment_chart"]().to_dict()
    lines, left, right = chart["layer"]
    moved = [r for r in lines["data"]["values"] if r["panel"] == "moved"]
    assert [(r["y"], r["y2"]) for r in moved] == LINKS["moved"][2]
    assert [r["words"] for r in moved] == ["a – x", "b – y", "c – z", ". – ."]
    crossing = [r["line"] == "crosses another" for r in moved]
    assert crossing == [False, True, True, False]
    words = {
        (r["x"], r["y"]): r["word"]
        for r in left["data"]["values"]
        if r["panel"] == "moved"
    }
    assert words[0, 1] == "b" and words[1, 1] == "z"
    assert left["mark"]["align"] == "right"
    assert right["mark"]["align"] == "left"
    (param,) = chart["params"]
    assert param["bind"]["options"] == ["moved", "not"]


def test_calibration_chart_sorts_predictions_into_bins():
    """Two of three were surer than 0.9, and one of these was right."""
    _, line, _ = CHARTS["calibration_chart"]().to_dict()["layer"]
    low, high = line["data"]["values"]
    assert (low["sure"], low["right"], low["share"]) == (0.25, 1, 0.3333)
    assert (high["sure"], high["right"], high["share"]) == (0.975, 0.5, 0.6667)


@pytest.mark.parametrize(
    ("chart", "title"),
    [
        (
            lambda: charts.penalty_chart((5, 37_000)),
            "best p 0.900, loss there 1.38 nats",
        ),
        (
            lambda: charts.target_bars(list("abcd"), right="c"),
            "right 0.925, each other word 0.025",
        ),
    ],
)
def test_charts_compute_smoothed_targets(chart, title):
    """What Vega computes for the title is the known answer for 0.1."""
    assert title in vl_convert.vegalite_to_svg(chart().to_dict())


def test_piece_map_shows_each_word_whole_at_every_merge():
    """Whatever the slider says, the boxes spell the word without a gap."""
    chart = CHARTS["piece_map"]().to_dict()
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


def test_noam_chart_computes_the_learning_rate():
    """Vega's formulas give the rate of the sliders, and of the base model."""
    chart = charts.noam_chart(1000).to_dict()
    sliders = {p["name"]: p for p in chart["params"] if "bind" in p}
    assert {n: p["value"] for n, p in sliders.items()} == {
        "d_model": 512,
        "warmup": 4000,
        "factor": 1,
    }
    formulas = {
        step["as"]: step["calculate"]
        for layer in chart["layer"]
        for step in layer["transform"]
        if "datum.step" in step["calculate"]
    }
    functions = {"sqrt": math.sqrt, "min": min, "pow": pow}
    for step, d_model, warmup, factor in ((1, 64, 100, 2), (900, 512, 300, 1)):
        names = {"d_model": d_model, "warmup": warmup, "factor": factor}
        datum = SimpleNamespace(step=step)
        drawn = {
            name: eval(formula, {**functions, **names, "datum": datum})
            for name, formula in formulas.items()
        }
        assert drawn["rate"] == pytest.approx(noam_rate(step, **names))
        assert drawn["paper"] == pytest.approx(noam_rate(step, 512))


def test_noam_chart_marks_the_peak():
    """The point stands at the end of the warm-up, on the curve."""
    chart = charts.noam_chart().to_dict()
    (point,) = (
        layer
        for layer in chart["layer"]
        if layer["mark"]["type"] == "point" and layer["mark"].get("filled")
    )
    names = {"d_model": 256, "warmup": 900, "factor": 3, "sqrt": math.sqrt}
    at = {s["as"]: eval(s["calculate"], names) for s in point["transform"]}
    assert at["step"] == 900
    assert at["rate"] == pytest.approx(noam_rate(900, 256, 900, 3))


def test_ring_map_has_a_step_for_each_state():
    """A slider from before the first step to after the last."""
    counts = torch.stack([torch.eye(2) + step for step in range(3)])
    chart = charts.ring_map(counts).to_dict()
    assert chart["params"][0]["bind"]["max"] == 2
    rows = (
        chart["layer"][0]["data"]["values"]
        if "data" in chart["layer"][0]
        else chart["data"]["values"]
    )
    drawn = torch.zeros_like(counts)
    for row in rows:
        drawn[row["step"], row["worker"], row["chunk"]] = row["summands"]
    assert torch.equal(drawn, counts)


def test_hours_chart_divides_work_by_speed():
    """3.6e18 operations at 35 % of 1e13 on 8 GPUs are 35.7 hours."""
    spec = CHARTS["hours_chart"]().to_dict()
    svg = vl_convert.vegalite_to_svg(spec)
    assert "36 h" in svg
    assert {p["name"]: p["value"] for p in spec["params"]} == {
        "used": 35,
        "doublings": 3,
    }
    assert spec["layer"][2]["data"]["values"][0]["hours"] == 12


def test_search_tree_shows_what_each_step_knew():
    """A word is in the beam, ended or dropped, as its best path is by then."""
    chart = CHARTS["search_tree"]().to_dict()
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


def test_length_bars_show_the_output_of_the_slider():
    """The slider has a place for each output, and the title is its text."""
    chart = CHARTS["length_bars"]().to_dict()
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
    chart = CHARTS["histogram"]().to_dict()
    rows = chart["data"]["values"]
    assert [row["count"] for row in rows] == [1, 2, 0, 1]
    assert [row["from"] for row in rows] == [1, 2, 3, 4]
    inside = [row["where"] == "inside the interval" for row in rows]
    assert inside == [True, True, True, False]
    same = charts.histogram([3.0, 3.0], "x", 3, 3).to_dict()["data"]["values"]
    assert sum(row["count"] for row in same) == 2


def drawn_weights(chart):
    """The weights by (sentence, kind, layer, head), and the pieces."""
    spec = chart.to_dict()
    found = {}
    for row in spec["data"]["values"]:
        place = (row["sentence"], row["kind"], row["layer"], row["head"])
        assert place not in found
        numbers = torch.tensor(list(map(int, row["weights"].split())))
        found[place] = numbers.view(-1, row["keys"])
    (pieces,) = (p["value"] for p in spec["params"] if p["name"] == "pieces")
    return found, pieces


def test_attention_draws_what_was_explained():
    """Every weight of every head to a thousandth, and rows sum to 1."""
    panels = {
        "short": explained(["a", "</s>"], ["x", "y", "</s>"]),
        "long": explained(["a", "b", "a", "</s>"], ["x", "</s>"], seed=1),
    }
    drawn, pieces = drawn_weights(charts.attention(panels))
    assert len(drawn) == 2 * 3 * 2 * 3
    for (i, kind, layer, head), weights in drawn.items():
        exact = getattr(list(panels.values())[i], f"{kind}_attentions")[
            layer - 1, head - 1
        ]
        assert weights.sum(-1).eq(1000).all()
        assert_close(weights / 1000, exact, atol=1e-3, rtol=0)
        assert weights.shape == tuple(map(len, pieces[i][kind]))


def test_attention_puts_the_right_pieces_at_the_axes():
    """Cross-attention: from what was said; the decoder's: what was read."""
    shown = explained(["der", "Hund", "</s>"], ["the", "dog", "</s>"])
    _, [pieces] = drawn_weights(charts.attention(shown))
    assert pieces["cross"] == [shown.output_tokens, shown.source_tokens]
    assert pieces["decoder"] == [["<s>", "the", "dog"]] * 2
    assert pieces["encoder"] == [shown.source_tokens, shown.source_tokens]


def test_attention_tells_repeated_pieces_apart():
    """Two equal words are two rows and two columns, with their own lines."""
    shown = explained(["a", "a", "</s>"], ["b", "b", "b", "</s>"], 1, 1)
    svg = vl_convert.vegalite_to_svg(charts.attention(shown).to_dict())
    labels = re.findall(r">([^<>]+)</text>", svg)
    assert labels.count("a") == 2 * 2  # beside the lines, and on the axis
    assert labels.count("b") == 2 * 3
    weights = shown.cross_attentions[0, 0]
    for label, most in (
        (r'"key: (?P<j>\d); query: (?P<i>\d); weight: ([^;"]+)"', 0.0),
        (r'"row: (?P<i>\d); column: (?P<j>\d); weight: ([^;"]+);', 0.01),
    ):  # the cells of the heat map, and the lines, of which few are left out
        marks = list(re.finditer(f"aria-label={label}", svg))
        assert len(marks) == weights.ge(most).sum()
        for mark in marks:
            exact = weights[int(mark["i"]), int(mark["j"])].item()
            assert float(mark[3]) == pytest.approx(exact, abs=1e-3)


def test_attention_of_a_single_piece():
    """One query and one key: all the weight is theirs."""
    shown = explained(["</s>"], ["</s>"], layers=1, heads=1)
    drawn, _ = drawn_weights(charts.attention(shown))
    assert [w.tolist() for w in drawn.values()] == [[[1000]]] * 3
    spec = charts.attention(shown).to_dict()
    assert "<path" in vl_convert.vegalite_to_svg(spec)
    menus = [p["name"] for p in spec["params"] if "bind" in p]
    assert menus == ["kind"]


def test_attention_refuses_two_models():
    """Their layers and heads cannot share a menu."""
    panels = {
        "a": explained(["</s>"], ["</s>"], layers=1),
        "b": explained(["</s>"], ["</s>"], layers=2),
    }
    with pytest.raises(ValueError, match=r"\[\(1, 3\), \(2, 3\)\]"):
        charts.attention(panels)
    with pytest.raises(ValueError, match="explained"):
        charts.attention({})


def test_head_map_has_a_cell_for_each_head():
    """Layers of every kind on rows, and shades relative to the measure."""
    small, large = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])
    measures = {
        "far": {"encoder": small, "cross": large},
        "none": {"encoder": 0 * small, "cross": 0 * large},
    }
    spec = charts.head_map(measures).to_dict()
    rows = spec["data"]["values"]
    cells = [tuple(row.values()) for row in rows if row["measure"] == "far"]
    assert cells == [
        ("far", "encoder 1", 1, 1, 0.25),
        ("far", "encoder 1", 2, 2, 0.5),
        ("far", "cross 1", 1, 3, 0.75),
        ("far", "cross 1", 2, 4, 1),
    ]
    assert {row["share"] for row in rows if row["measure"] == "none"} == {0}
    assert spec["params"][0]["bind"]["options"] == ["far", "none"]
    assert "bind" not in CHARTS["head_map"]().to_dict()["params"][0]


@given(st.lists(st.floats(0, 20), min_size=1, max_size=40))
def test_thousandths_sum_to_a_thousand(scores):
    """However a row is spread, rounding loses nothing and moves little."""
    weights = torch.tensor(scores).softmax(-1)
    rounded = charts._thousandths(weights)
    assert rounded.sum() == 1000
    assert_close(rounded / 1000, weights, atol=1e-3, rtol=0)
    assert (rounded >= 0).all()


@pytest.mark.parametrize("name", ["heat_map", "attention", "bars"])
def test_no_text_ends_the_script_of_a_chart(name):
    """In the HTML of a chart, its text cannot be taken for a tag."""
    chart = {
        "heat_map": lambda: charts.heat_map(
            {RUDE: WEIGHTS[0]}, [RUDE] * 2, "wxyz"
        ),
        "attention": lambda: charts.attention(
            {RUDE: explained([RUDE, "</s>"], ["<b>", "</s>"])}
        ),
        "bars": lambda: charts.bars([{"n": 1, "run": RUDE}], "n", "run"),
    }[name]()
    html = chart._repr_mimebundle_()["text/html"]
    assert html.count("</script") == html.count("<script") == 1
    assert "<b>" not in html
    assert "<!--" not in html
    spec = html.rpartition("})(")[2].rpartition(", {")[0]
    assert RUDE in json.dumps(json.loads(spec))


def test_ablation_reaches_from_the_worst_run_to_the_best():
    """A line for each row of several runs, a point for each row."""
    chart = CHARTS["ablation"]().to_dict()
    (param,) = chart["params"]
    assert param["bind"]["options"] == ["BLEU"]
    _, line, point = chart["layer"]
    assert line["encoding"]["x"]["field"] == "low"
    assert line["encoding"]["x2"]["field"] == "high"
    assert point["encoding"]["x"]["field"] == "change"
    assert point["encoding"]["y"]["field"] == "row"
    colours = point["encoding"]["color"]["scale"]
    assert colours["domain"] == ["the paper", "here"]


def test_cost_map_has_a_menu_of_tasks():
    """One task at a time, each kind in its colour."""
    chart = CHARTS["cost_map"]().to_dict()
    (param,) = chart["params"]
    assert param["bind"]["options"] == ["German", "French"]
    assert chart["layer"][0]["encoding"]["x"]["scale"]["type"] == "log"
    colours = chart["layer"][0]["encoding"]["color"]["scale"]
    assert colours["domain"] == ["single", "ours"]
