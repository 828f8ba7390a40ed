"""Positions inside the score: what they do to it, and what they leave."""

import math

import pytest
import torch
from torch.testing import assert_close
from transformers import LlamaConfig, RoFormerConfig
from transformers.models.llama.modeling_llama import (
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)
from transformers.models.roformer.modeling_roformer import (
    RoFormerSelfAttention,
    RoFormerSinusoidalPositionalEmbedding,
)

from transformer_annotated.after import rotary
from transformer_annotated.after.rotary import (
    KINDS,
    LONGEST,
    POSITIONS,
    LinearBias,
    RelativeConfig,
    RelativePosition,
    RotaryPosition,
    SequenceModel,
    accuracy_by_position,
    distances,
    dynamic_factor,
    frequencies,
    look_back,
    relative_transformer,
    repeat_segment,
    rotate,
    train_sequences,
)
from transformer_annotated.attention import MultiHeadAttention
from transformer_annotated.decoding import beam_search, greedy_decode
from transformer_annotated.positions import shift_matrix
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
    """With copied weights; the largest difference is printed."""
    torch.manual_seed(0)
    config = RoFormerConfig(
        hidden_size=32, num_attention_heads=4, attention_probs_dropout_prob=0.0
    )
    theirs, ours = RoFormerSelfAttention(config), MultiHeadAttention(32, 4)
    for w, name in ((ours.w_q, "query"), (ours.w_k, "key")):
        other = getattr(theirs, name)
        torch.nn.init.zeros_(other.bias)
        w.weight.data = other.weight.data
    ours.position = RotaryPosition(8)
    table = RoFormerSinusoidalPositionalEmbedding(50, 8)
    x = torch.randn(2, 50, 32)
    with torch.no_grad():
        wave = table.create_weight()[None, None]
        expected = theirs(x, sinusoidal_pos=wave)[1]
        found = ours.weights(x, x)
    print(f"RoFormer weights {(found - expected).abs().max():.1e}")
    assert_close(found, expected, rtol=1e-5, atol=1e-6)


def llama(**rope):
    """Llama's angles, for heads of 16 that were trained on 32 positions."""
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=32,
        rope_parameters={"rope_theta": 10000.0} | rope,
    )
    return LlamaRotaryEmbedding(config)


def test_scores_are_those_of_llama():
    """Which pairs component i with i + d/2, so that rows are permuted."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 4, 30, 16)
    halves = [x.unflatten(-1, (-1, 2)).mT.flatten(-2) for x in (q, k)]
    cos, sin = llama(rope_type="default")(q, torch.arange(30)[None])
    turned = apply_rotary_pos_emb(*halves, cos, sin)
    expected = turned[0] @ turned[1].mT / 4
    found = scores(q, k, RotaryPosition(16))
    print(f"Llama scores {(found - expected).abs().max():.1e}")
    assert_close(found, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("length", [20, 33, 96])
def test_dynamic_scaling_is_that_of_llama(length):
    """The factor follows the length, once it is beyond the trained one."""
    position = torch.arange(length)
    reference = llama(rope_type="dynamic", factor=2.0)
    cos, _ = reference(torch.zeros(1), position[None])
    factor = dynamic_factor(length, 32, 2.0)
    angles = position[:, None] * frequencies(16, factor)
    difference = (angles.cos() - cos[0, :, :8]).abs().max()
    print(f"Llama dynamic NTK, {length} positions {difference:.1e}")
    assert difference < 2e-5


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


@pytest.mark.parametrize("kind", KINDS)
def test_small_models_see_nothing_that_comes_later(kind):
    """An answer does not change with what follows it."""
    torch.manual_seed(0)
    model = SequenceModel(kind).eval()
    ids = torch.randint(32, (2, 20))
    changed = ids.clone()
    changed[:, 12:] = (ids[:, 12:] + 1) % 32
    with torch.no_grad():
        a, b = model(ids), model(changed)
    assert_close(a[:, :12], b[:, :12], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(a[:, 12:], b[:, 12:])
    assert a.shape == (2, 20, 32)


# --- tasks and results


def test_tasks_by_hand():
    """Each answer is where its token says, or where the segment goes on."""
    chance = torch.Generator().manual_seed(0)
    ids, answers = look_back(5, 20, chance)
    for row, wanted in zip(ids.tolist(), answers.tolist(), strict=True):
        for t, token in enumerate(row):
            back = token % 8 + 1
            assert wanted[t] == (row[t - back] if t >= back else -1)
    ids, answers = repeat_segment(50, 40, chance)
    for row, wanted in zip(ids.tolist(), answers.tolist(), strict=True):
        period = next(p for p in range(1, 40) if row[p] == row[0])
        assert 8 <= period <= 16
        assert wanted[:period] == [-1] * period
        assert wanted[period:-1] == row[period + 1 :]
        assert row[period:] == row[:-period]


def test_accuracy_counts_what_is_asked(monkeypatch):
    """A model that knows all answers has 1 wherever one is asked for."""
    known = {}

    def watched(*given):
        ids, answers = look_back(*given)
        known["logits"] = torch.nn.functional.one_hot(answers.clamp(min=0), 32)
        return ids, answers

    monkeypatch.setitem(rotary.TASKS, "look back", watched)
    found = accuracy_by_position(lambda ids: known["logits"], "look back", 64)
    assert found == [1.0] * (LONGEST // 8)


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
