"""Positions inside the score: what they do to it, and what they leave."""

import math
from itertools import product

import pytest
import torch
from torch.testing import assert_close

from experiments.parity import compare
from transformer_annotated.after import sequences
from transformer_annotated.after.rotary import (
    POSITIONS,
    LinearBias,
    RelativeConfig,
    RelativePosition,
    RotaryPosition,
    distances,
    frequencies,
    relative_transformer,
    rotate,
)
from transformer_annotated.after.sequences import (
    KINDS,
    LONGEST,
    TASKS,
    SequenceModel,
    accuracy_by_position,
    look_back,
    repeat_segment,
    train_sequences,
)
from transformer_annotated.charts.looking import attention_explorer
from transformer_annotated.decoding import beam_search, greedy_decode
from transformer_annotated.positions import shift_matrix
from transformer_annotated.workshop.files import load_result
from transformer_annotated.workshop.models import start_decoding
from transformer_annotated.workshop.recipe import read_recipe, run_recipe
from transformer_annotated.workshop.translator import Translator

EACH_POSITION = pytest.mark.parametrize("position", POSITIONS)


def a_model(position, **changes):
    """A small model in evaluation mode."""
    torch.manual_seed(0)
    sizes = {"layers": 2, "d_model": 16, "d_ff": 32, "heads": 2} | changes
    config = RelativeConfig(30, position=position, **sizes)
    return relative_transformer(config).eval()


def scores(q, k, position, start=0):
    """Scores ``(B, h, T, S)`` of queries and keys from a position on."""
    q, k, bias = position(q, k, start)
    plain = q @ k.mT / math.sqrt(q.size(-1))
    return plain if bias is None else plain + bias[..., start:]


# --- rotations


def test_a_rotation_is_the_shift_matrix_of_positions():
    """The query at position m is turned by the matrix that goes back m."""
    torch.manual_seed(0)
    q = torch.randn(1, 1, 20, 12)
    turned, _, _ = RotaryPosition(12)(q, q)
    for m in range(20):
        expected = shift_matrix(-m, 12) @ q[0, 0, m]
        assert_close(turned[0, 0, m], expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    "position", [RotaryPosition(8), RelativePosition(8, 3), LinearBias(2)]
)
@pytest.mark.parametrize("start", [1, 50])
def test_scores_do_not_change_when_all_positions_shift(position, start):
    """What counts is how far two words are apart."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 2, 9, 8)
    moved = scores(q, k, position, start)
    assert_close(scores(q, k, position), moved, rtol=1e-4, atol=1e-5)


def test_dog_and_i_of_the_lecture():
    """Positions 4 and 1 score as 6 and 3 do, and as 5 and 1 do not."""
    torch.manual_seed(0)
    dog, i = torch.randn(2, 2)
    angle = torch.tensor([[0.7]])

    def score(m, n):
        return (rotate(dog[None], m * angle) * rotate(i[None], n * angle)).sum()

    assert_close(score(4, 1), score(6, 3))
    assert abs(score(4, 1) - score(5, 1)) > 0.01
    cos, sin = math.cos(2.1), math.sin(2.1)
    between = torch.tensor([[cos, -sin], [sin, cos]])
    assert_close(score(4, 1), i @ between @ dog)


def test_a_rotation_changes_no_length():
    """Of a query, or of a pair of its components."""
    x = torch.randn(3, 5, 8)
    turned = rotate(x, torch.randn(5, 4))
    pairs = [y.unflatten(-1, (-1, 2)).norm(dim=-1) for y in (x, turned)]
    assert_close(*pairs)


@pytest.mark.parametrize("d_k", [4, 16, 64])
@pytest.mark.parametrize("factor", [1.0, 3.0, 8.0])
def test_scaling_of_frequencies(d_k, factor):
    """NTK keeps the fastest and divides the slowest; linear divides all."""
    plain = frequencies(d_k)
    ntk, linear = (frequencies(d_k, factor, s) for s in ("ntk", "linear"))
    assert ntk[0] == plain[0] == 1
    assert_close(ntk[-1], plain[-1] / factor)
    assert_close(linear, plain / factor)
    ratio = plain / ntk
    assert (ratio.diff() >= 0).all()
    assert frequencies(d_k, 1.0, "linear").equal(plain)


# --- against the reference


def test_weights_are_those_of_roformer():
    """With copied weights, to two millionths."""
    [row] = compare("rotary")
    assert row["difference"] < row["bound"] == 2e-6


def test_scores_are_those_of_llama():
    """Which pairs component i with i + d/2, so that rows are permuted."""
    [row] = compare("rotary, halves")
    assert row["largest"] > 1 and row["difference"] < row["bound"] == 1e-5


def test_dynamic_scaling_is_that_of_llama():
    """The factor follows the length, once it is beyond the trained one."""
    rows = compare("dynamic NTK")
    assert len(rows) == 3
    for row in rows:
        assert row["difference"] < row["bound"] == 2e-5


# --- vectors and slopes of distances


def test_clipped_vectors_by_hand():
    """A score has q · r added, with r the vector of the clipped distance."""
    torch.manual_seed(0)
    position = RelativePosition(4, clip=2)
    q, k = torch.randn(2, 1, 1, 6, 4)
    _, same, bias = position(q, k)
    assert same is k and bias.shape == (1, 1, 6, 6)
    for i in range(6):
        for j in range(6):
            row = max(-2, min(2, j - i)) + 2
            known = q[0, 0, i] @ position.table[row] / 2
            assert_close(bias[0, 0, i, j], known)


def test_slopes_of_eight_heads():
    """A half, a quarter, … as in the paper that has them."""
    q = torch.zeros(1, 8, 3, 4)
    _, _, bias = LinearBias(8)(q, q)
    assert_close(bias[:, 2, 0], -2 * 0.5 ** torch.arange(1, 9))
    assert distances(2, 1, 3).tolist() == [[-3, -2, -1, 0], [-4, -3, -2, -1]]


# --- whole models


@EACH_POSITION
def test_step_by_step_is_all_at_once(position):
    """Keys that were turned go into the cache, each at its place."""
    model = a_model(position)
    src, tgt = torch.randint(4, 30, (3, 5)), torch.randint(4, 30, (3, 40))
    with torch.no_grad():
        whole = model.decode(tgt, model.encode(src), src)
    decoder = start_decoding(model, src)
    steps = torch.stack([decoder.hidden(x) for x in tgt.unbind(1)], 1)
    assert_close(steps, whole, rtol=1e-4, atol=1e-5)


@EACH_POSITION
def test_searches_agree(position):
    """A beam of one is greedy, in any order of rows."""
    model = a_model(position)
    src = torch.randint(4, 30, (4, 6))
    [best] = zip(*beam_search(model, src, beam=1, alpha=0.0), strict=True)
    assert [x.tokens for x in best] == greedy_decode(model, src)
    wide = beam_search(model, src.flip(0), beam=3)
    assert len(wide) == 4


def test_a_recipe_trains_resumes_translates_and_explains(tmp_path):
    """As any kind of model does; the weights are those that it used."""
    changes = [
        *("train_size=20", "valid_size=5", "depth=0", "d_model=16", "heads=2"),
        *("layers=1", "d_ff=16", "steps=1", "kind=relative"),
    ]
    recipe = read_recipe("grammar", [f"model.{c}" if "kind" in c else c
                                     for c in changes])  # fmt: skip
    run_recipe(recipe, tmp_path, progress_bar=False)
    longer = read_recipe(tmp_path / "config.toml", ["steps=2"])
    state = run_recipe(longer, tmp_path, resume=True, progress_bar=False)
    assert state.step == 2
    translator = Translator.load(tmp_path)
    attention = translator.model.decoder.layers[0].self_attention
    assert isinstance(attention.position, RotaryPosition)
    text = "the dog sleeps"
    assert isinstance(translator.translate(text), str)
    maps = translator.explain(text, "der Hund schläft")
    rows = maps.decoder_attentions.sum(-1)
    assert_close(rows, torch.ones_like(rows))
    attention_explorer(maps).to_dict()


@pytest.mark.parametrize("kind", KINDS)
def test_small_models_see_nothing_that_comes_later(kind):
    """An answer does not change with what follows it."""
    torch.manual_seed(0)
    model = SequenceModel(kind).eval()
    ids = torch.randint(16, (2, 20))
    changed = ids.clone()
    changed[:, 12:] = (ids[:, 12:] + 1) % 16
    with torch.no_grad():
        a, b = model(ids), model(changed)
    assert_close(a[:, :12], b[:, :12], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(a[:, 12:], b[:, 12:])
    assert a.shape == (2, 20, 16)


# --- tasks and results


def test_tasks_by_hand():
    """Each answer is where its token says, or where the segment goes on."""
    chance = torch.Generator().manual_seed(0)
    ids, answers = look_back(5, 20, chance)
    for row, wanted in zip(ids.tolist(), answers.tolist(), strict=True):
        for t, token in enumerate(row):
            back = token % 4 + 1
            assert wanted[t] == (row[t - back] if t >= back else -1)
    ids, answers = repeat_segment(50, 40, chance)
    for row, wanted in zip(ids.tolist(), answers.tolist(), strict=True):
        period = next(p for p in range(1, 40) if row[p] == row[0])
        assert 4 <= period <= 8
        assert wanted[:period] == [-1] * period
        assert wanted[period:-1] == row[period + 1 :]
        assert row[period:] == row[:-period]


def test_accuracy_counts_what_is_asked(monkeypatch):
    """A model that knows all answers has 1 wherever one is asked for."""
    known = {}

    def watched(*given):
        ids, answers = look_back(*given)
        known["logits"] = torch.nn.functional.one_hot(answers.clamp(min=0), 16)
        return ids, answers

    monkeypatch.setitem(sequences.TASKS, "look back", watched)
    found = accuracy_by_position(lambda ids: known["logits"], "look back", 64)
    assert found == dict.fromkeys(range(0, LONGEST, 4), 1.0)


def test_training_is_the_same_each_time():
    """A seed decides all."""
    (a, losses), (b, again) = (
        train_sequences("relative", "look back", 3, steps=3) for _ in "ab"
    )
    assert losses == again and len(losses) == 3
    assert_close(a.state_dict(), b.state_dict())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RelativeConfig(9, position="rotery"), "mean 'rotary'"),
        (lambda: SequenceModel("learnt"), "mean 'learned'"),
        (lambda: train_sequences("rotary", "look bck"), "mean 'look back'"),
        (lambda: frequencies(8, scaling="nkt"), "mean 'ntk'"),
        (lambda: frequencies(7), "^d_k: 7, expected an even number"),
        (lambda: RotaryPosition(2), "^d_k: 2, expected an even number from 4"),
        (lambda: frequencies(8, 0.5), "^factor: 0.5, expected at least 1"),
        (lambda: RelativePosition(8, 0), "^clip: 0, expected at least 1"),
        (
            lambda: RelativeConfig(9, d_model=30, heads=6),
            "^d_k: 5, expected an even number",
        ),
        (
            lambda: RelativeConfig(9, learned_positions=5),
            "^learned_positions: 5, expected 0",
        ),
    ],
)
def test_bad_input_gets_one_line(call, message):
    """What was given, and what would do."""
    with pytest.raises(ValueError, match=message) as problem:
        call()
    assert "\n" not in str(problem.value)


def test_the_comparison_rests_on_enough_seeds():
    """Each kind on each task, three times or more."""
    found = load_result("rotary")
    assert {(row["task"], row["kind"]) for row in found["summary"]} == set(
        product(TASKS, KINDS)
    )
    assert all(row["runs"] >= 3 for row in found["summary"])
