"""The explorer of attention shows every weight at its place."""

import math
import re
from types import SimpleNamespace

import pytest
import torch
import vl_convert
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.charts.drawing import drawn
from transformer_annotated.charts import looking
from transformer_annotated.charts.looking import (
    attention_explorer,
    head_heatmap,
)


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


def drawn_weights(chart):
    """The weights by (sentence, kind, layer, head), and the pieces."""
    spec = chart.to_dict()
    found = {}
    for row in spec["data"]["values"]:
        place = (row["sentence"], row["kind"], row["layer"], row["head"])
        assert place not in found
        numbers = [int(w or 0) for w in row["weights"].split(" ")]
        found[place] = torch.tensor(numbers).view(-1, row["keys"])
    (pieces,) = (p["value"] for p in spec["params"] if p["name"] == "pieces")
    return found, pieces


def test_attention_draws_what_was_explained():
    """Every weight of every head to a hundredth, and rows sum to 1."""
    panels = {
        "short": explained(["a", "</s>"], ["x", "y", "</s>"]),
        "long": explained(["a", "b", "a", "</s>"], ["x", "</s>"], seed=1),
    }
    found, pieces = drawn_weights(attention_explorer(panels))
    assert len(found) == 2 * 3 * 2 * 3
    for (i, kind, layer, head), weights in found.items():
        shown = list(panels.values())[i]
        exact = getattr(shown, f"{kind}_attentions")[layer - 1, head - 1]
        assert weights.sum(-1).eq(100).all()
        assert_close(weights / 100, exact, atol=0.01, rtol=0)
        assert weights.shape == tuple(map(len, pieces[i][kind]))


def test_attention_puts_the_right_pieces_at_the_axes():
    """Cross-attention: from what was said; the decoder's: what was read."""
    shown = explained(["der", "Hund", "</s>"], ["the", "dog", "</s>"])
    _, [pieces] = drawn_weights(attention_explorer(shown))
    assert pieces["cross"] == [shown.output_tokens, shown.source_tokens]
    assert pieces["decoder"] == [["<s>", "the", "dog"]] * 2
    assert pieces["encoder"] == [shown.source_tokens, shown.source_tokens]


def test_attention_tells_repeated_pieces_apart():
    """Two equal words are two rows and two columns, with their own lines."""
    shown = explained(["a", "a", "</s>"], ["b", "b", "b", "</s>"], 1, 1)
    svg = vl_convert.vegalite_to_svg(attention_explorer(shown).to_dict())
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
            assert float(mark[3]) == pytest.approx(exact, abs=0.01)


def test_attention_of_a_single_piece():
    """One query and one key: all the weight is theirs."""
    shown = explained(["</s>"], ["</s>"], layers=1, heads=1)
    weights, _ = drawn_weights(attention_explorer(shown))
    assert [w.tolist() for w in weights.values()] == [[[100]]] * 3
    spec = drawn(attention_explorer(shown))
    menus = [p["name"] for p in spec["params"] if "bind" in p]
    assert menus == ["kind", "chosen"]


def test_attention_opens_on_the_head_that_is_asked_for():
    """The menus show it first; a slider, for keyboards, chooses a query."""
    shown = explained(["a", "b", "</s>"], ["x", "</s>"], layers=2, heads=3)
    spec = drawn(attention_explorer(shown, first=("encoder", 2, 3)))
    values = {p["name"]: p.get("value") for p in spec["params"]}
    assert (values["kind"], values["layer"], values["head"]) == (
        "encoder",
        2,
        3,
    )
    (slider,) = (p for p in spec["params"] if p["name"] == "chosen")
    assert slider["value"] == 0  # all queries
    assert slider["bind"]["max"] == 3  # the longest side


def test_attention_refuses_two_models():
    """Their layers and heads cannot share a menu."""
    panels = {
        "a": explained(["</s>"], ["</s>"], layers=1),
        "b": explained(["</s>"], ["</s>"], layers=2),
    }
    with pytest.raises(ValueError, match=r"\[\(1, 3\), \(2, 3\)\]"):
        attention_explorer(panels)
    with pytest.raises(ValueError, match="explained"):
        attention_explorer({})


def test_head_heatmap_has_a_cell_for_each_head():
    """Layers of every kind on rows, and shades relative to the measure."""
    small, large = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])
    measures = {
        "far": {"encoder": small, "cross": large},
        "none": {"encoder": 0 * small, "cross": 0 * large},
    }
    spec = drawn(head_heatmap(measures))
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
    one = head_heatmap({"m": {"cross": small}}).to_dict()
    assert "bind" not in one["params"][0]


@given(st.lists(st.floats(0, 20), min_size=1, max_size=40))
def test_hundredths_sum_to_a_hundred(scores):
    """However a row is spread, rounding loses nothing and moves little."""
    weights = torch.tensor(scores).softmax(-1)
    rounded = looking._hundredths(weights)
    assert rounded.sum() == 100
    assert_close(rounded / 100, weights, atol=0.01, rtol=0)
    assert (rounded >= 0).all()
