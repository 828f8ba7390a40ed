"""Recurrent cells, scores and models: known answers, and one pipeline."""

import json
import lzma
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from experiments.recurrent import scores
from tests.site import ROOT
from transformer_annotated import Transformer, TransformerConfig
from transformer_annotated.attention import attention_weights
from transformer_annotated.charts.common import heatmap
from transformer_annotated.charts.looking import attention_explorer
from transformer_annotated.decoding import beam_search, greedy_decode
from transformer_annotated.recurrent import (
    LOCATIONS,
    SCORES,
    GlobalAttention,
    RecurrentConfig,
    RecurrentModel,
    additive_score,
    cosine_score,
    dot_score,
    general_score,
    gru_step,
    location_score,
    lstm_step,
    rnn_step,
    scaled_dot_score,
)
from transformer_annotated.text import EOS
from transformer_annotated.workshop.checkpoints import list_checkpoints
from transformer_annotated.workshop.files import load_result
from transformer_annotated.workshop.recipe import read_recipe, run_recipe
from transformer_annotated.workshop.translator import Translator

KINDS = [
    RecurrentConfig(30, cell, score, layers, 8, both)
    for cell, score, layers, both in (
        ("rnn", "none", 1, False),
        ("gru", "additive", 1, True),
        ("lstm", "none", 2, True),
        ("lstm", "general", 2, False),
        ("lstm", "dot", 1, True),
        ("gru", "cosine", 1, False),
        ("rnn", "location", 1, True),
        ("lstm", "scaled-dot", 1, False),
    )
]
EACH_KIND = pytest.mark.parametrize(
    "config", KINDS, ids=lambda c: f"{c.cell}-{c.score}"
)


def a_model(config, seed=0):
    """A model in double precision, ready for use."""
    torch.manual_seed(seed)
    return RecurrentModel(config).double().eval()


def sentences(rows=3, length=6, padded=True):
    """Ids, the last rows shorter than the first."""
    torch.manual_seed(1)
    ids = torch.randint(4, 30, (rows, length))
    if padded:
        for row in range(1, rows):
            ids[row, length - row :] = 0
    return ids


# Cells


@pytest.mark.parametrize(
    ("step", "module"),
    [(rnn_step, nn.RNN), (gru_step, nn.GRU), (lstm_step, nn.LSTM)],
)
def test_cells_are_those_of_torch(step, module):
    """Written out or as a kernel, states agree to a millionth."""
    torch.manual_seed(0)
    theirs, x = module(3, 5), torch.randn(7, 2, 3)
    zero = torch.zeros(2, 5)
    state, states = (zero, zero) if step is lstm_step else zero, []
    for word in x:
        state = step(word, state, *theirs.parameters())
        states.append(state[0] if step is lstm_step else state)
    assert_close(torch.stack(states), theirs(x)[0], atol=1e-6, rtol=0)


def test_an_open_gate_keeps_the_cell():
    """With f = 1 and i = 0 the cell, and its gradient, pass unchanged."""
    c = torch.randn(2, 4, requires_grad=True)
    bias = torch.tensor([-1e4, 1e4, 0.0, 0.0]).repeat_interleave(4)
    zeros = torch.zeros(16, 4)
    _, kept = lstm_step(c, (c, c), zeros, zeros, bias, torch.zeros(16))
    assert_close(kept, c)
    assert_close(torch.autograd.grad(kept.sum(), c)[0], torch.ones(2, 4))


@pytest.mark.parametrize("module", [nn.RNN, nn.GRU, nn.LSTM])
def test_a_state_depends_on_all_words_so_far_and_no_other(module):
    """So it has to wait for them, one after the other."""
    torch.manual_seed(0)
    x = torch.randn(1, 9, 4, requires_grad=True)
    states = module(4, 4, batch_first=True)(x)[0]
    (gradient,) = torch.autograd.grad(states[0, 5].sum(), x)
    felt = gradient[0].abs().sum(-1) > 0
    assert felt.tolist() == [t <= 5 for t in range(9)]


# Scores

Q = torch.tensor([[1.0, 2.0]])
K = torch.tensor([[3.0, 4.0], [0.0, -1.0]])


@pytest.mark.parametrize(
    ("found", "by_hand"),
    [
        (dot_score(Q, K), [11, -2]),
        (scaled_dot_score(Q, K), [11 / math.sqrt(2), -math.sqrt(2)]),
        (general_score(Q, K, torch.tensor([[0.0, 1], [1, 0]])), [10, -1]),
        (
            cosine_score(Q, K, 5.0),
            [5 * 11 / (5 * math.sqrt(5)), -10 / math.sqrt(5)],
        ),
        (location_score(Q, K, torch.tensor([[1.0, 0, 9], [2, 3, 9]])), [5, 6]),
        (
            additive_score(
                Q, K, torch.eye(2), torch.eye(2), torch.tensor([1.0, -1.0])
            ),
            [math.tanh(4) - math.tanh(6), math.tanh(1) - math.tanh(1)],
        ),
    ],
    ids=["dot", "scaled-dot", "general", "cosine", "location", "additive"],
)
def test_scores_by_hand(found, by_hand):
    """One query, two keys."""
    assert_close(found, torch.tensor([by_hand], dtype=torch.float32))


def test_scaled_dot_score_is_the_score_of_attention():
    """The paper's score is the dot product over the root of d_k."""
    q, k = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 5, 8)
    assert_close(scaled_dot_score(q, k), dot_score(q, k) / math.sqrt(8))
    assert_close(scaled_dot_score(q, k).softmax(-1), attention_weights(q, k))


def test_cosine_score_is_torch_cosine_similarity():
    """Content-based scores do not depend on lengths."""
    q, k = torch.randn(2, 4, 8), torch.randn(2, 5, 8)
    expected = F.cosine_similarity(q.unsqueeze(-2), k.unsqueeze(-3), dim=-1)
    assert_close(cosine_score(q, k), expected)
    assert_close(cosine_score(3 * q, 5 * k), expected)


def test_additive_score_is_a_network_on_the_concatenation():
    """Two matrices on q and k are one matrix on q and k laid end to end."""
    q, k = torch.randn(2, 4, 8), torch.randn(2, 5, 8)
    w_q, w_k, u = torch.randn(8, 3), torch.randn(8, 3), torch.randn(3)
    pairs = torch.cat(
        torch.broadcast_tensors(q.unsqueeze(-2), k.unsqueeze(-3)), dim=-1
    )
    expected = (pairs @ torch.cat([w_q, w_k])).tanh() @ u
    assert_close(additive_score(q, k, w_q, w_k, u), expected)


def test_general_score_is_a_bilinear_form():
    """With the identity it is the dot product; sizes may differ."""
    q, k = torch.randn(2, 4, 8), torch.randn(2, 5, 8)
    assert_close(general_score(q, k, torch.eye(8)), dot_score(q, k))
    w = torch.randn(8, 4)
    expected = torch.einsum("btd,de,bse->bts", q, w, k[..., :4])
    assert_close(general_score(q, k[..., :4], w), expected)


def test_location_score_never_sees_a_key():
    """It maps a query straight to one score for each position."""
    q, w = torch.randn(2, 4, 8), torch.randn(8, 7)
    expected = torch.einsum("btd,ds->bts", q, w[:, :5])
    for k in torch.randn(2, 2, 5, 8):
        assert_close(location_score(q, k, w), expected)


def test_attention_does_not_see_distance():
    """Annotations in another order get the same weights, in that order."""
    torch.manual_seed(0)
    look, order = GlobalAttention("additive", 8), torch.randperm(9)
    states, memory = torch.randn(1, 4, 8), torch.randn(1, 9, 8)
    mask = torch.ones(1, 9, dtype=torch.bool)
    weights = look.weights(states, memory, mask)
    assert_close(
        look.weights(states, memory[:, order], mask), weights[..., order]
    )
    assert_close(
        look(states, memory[:, order], mask), look(states, memory, mask)
    )


# Models


@EACH_KIND
def test_padding_changes_nothing(config):
    """A sentence has the same logits alone and in company."""
    model, src, tgt = a_model(config), sentences(), sentences(3, 5)
    together = model(src, tgt)
    for i in range(3):
        alone = model(src[i : i + 1, : 6 - i], tgt[i : i + 1, : 5 - i])
        assert_close(together[i, : 5 - i], alone[0])


def test_the_encoder_reads_from_both_ends():
    """Two ways are one ``nn.LSTM`` that is bidirectional."""
    model = a_model(RecurrentConfig(30, "lstm", "dot", 1, 8, True))
    both = nn.LSTM(8, 4, batch_first=True, bidirectional=True).double()
    ahead, back = (way.state_dict() for way in model.encoder.ways)
    both.load_state_dict(
        ahead | {f"{name}_reverse": value for name, value in back.items()}
    )
    src = sentences(padded=False)
    memory = model.encode(src)
    assert_close(memory, both(model.embeddings(src))[0])
    ends = torch.cat([memory[:, -1, :4], memory[:, 0, 4:]], -1)
    assert_close(model.context(memory, src), ends)


def test_a_fixed_context_is_all_that_the_decoder_sees():
    """Other states of the encoder may change; with attention they matter."""
    src, tgt = sentences(padded=False), sentences(3, 5)
    for score, same in (("none", True), ("dot", False)):
        model = a_model(RecurrentConfig(30, "lstm", score, 1, 8))
        memory = model.encode(src)
        other = memory.clone()
        other[:, 2] += 1
        a, b = (model.decode(tgt, m, src) for m in (memory, other))
        assert torch.equal(a, b) == same


@EACH_KIND
def test_weights_of_attention_sum_to_one_over_words(config):
    """And padding gets none."""
    if config.score == "none":
        return
    weights = a_model(config).alignment(sentences(), sentences(3, 5))
    assert_close(weights.sum(-1), torch.ones(3, 5).double())
    assert weights[2, :, 4:].eq(0).all()


def test_only_a_location_score_limits_the_length():
    """It has a weight for each position, and no more of them."""
    assert {c.score for c in KINDS} == {"none", *SCORES}
    for config in KINDS:
        limit = LOCATIONS if config.score == "location" else 0
        assert config.learned_positions == limit


@EACH_KIND
def test_searches_find_what_the_whole_pass_finds(config):
    """Greedy tokens are the most probable ones; a beam is no worse."""
    model, src = a_model(config).float(), sentences()
    found = greedy_decode(model, src, extra_length=4)
    best = beam_search(model, src, beam=3, extra_length=4)
    for i, tokens in enumerate(found):
        one = src[i : i + 1, : 6 - i]
        read = torch.tensor([[1, *tokens]])
        logits = model(one, read)[0].clone()
        logits[:, [0, 1]] = -math.inf
        said = logits.argmax(-1).tolist()
        assert said[: len(tokens)] == tokens
        if len(tokens) < 6 - i + 4:
            assert said[-1] == EOS
        assert math.isfinite(best[i][0].score)


# One pipeline

SMALL = [
    "train_size=60",
    "valid_size=10",
    "corpus.depth=0",
    "d_model=16",
    "batch_tokens=200",
    "warmup=10",
    "log_every=2",
    "validate_every=4",
    "checkpoint_every=4",
]
RECIPES = ("rnn-grammar", "lstm-grammar", "lstm-attention-grammar")


@pytest.mark.parametrize("name", RECIPES)
def test_a_recurrent_model_runs_through_everything(name, tmp_path):
    """Recipe, trainer, resume, checkpoint, translator, and explain."""
    recipe = read_recipe(name, [*SMALL, "steps=8"])
    run_recipe(recipe, tmp_path / "a", progress_bar=False)
    run_recipe(
        read_recipe(name, [*SMALL, "steps=4"]),
        tmp_path / "b",
        progress_bar=False,
    )
    run_recipe(recipe, tmp_path / "b", resume=True, progress_bar=False)
    weights = [
        Translator.load(tmp_path / run).model.state_dict() for run in "ab"
    ]
    assert_close(*weights, rtol=0, atol=0)
    assert len(list_checkpoints(tmp_path / "b" / "checkpoints")) == 2

    translator = Translator.load(tmp_path / "a", device="cpu")
    text = "der Hund schläft ."
    assert translator.translate([text, ""])[1] == ""
    assert translator.n_best(text, n=2)
    if recipe.model.score == "none":
        with pytest.raises(ValueError, match=r"^model: it has no attention"):
            translator.explain(text)
        return
    maps = translator.explain(text, target="the dog sleeps .")
    assert maps.cross_attentions.shape == (1, 1, 5, 5)
    assert maps.encoder_attentions.shape == (0, 1, 5, 5)
    chart = heatmap(
        {"alignment": maps.cross_attentions[0, 0]},
        maps.output_tokens,
        maps.source_tokens,
    )
    assert len(chart.data.values) == 25
    assert attention_explorer(maps).to_dict()
    translator.save(tmp_path / "c")
    again = Translator.load(tmp_path / "c", device="cpu")
    assert again.model.config == translator.model.config


# What the paper and the chapter say


def test_the_transformer_has_neither_recurrence_nor_convolution():
    """Not one module of it."""
    model = Transformer(TransformerConfig.tiny(30))
    others = (nn.RNNBase, nn.RNNCellBase, nn.modules.conv._ConvNd)
    assert not any(isinstance(part, others) for part in model.modules())


@pytest.mark.parametrize("dilated", [False, True])
def test_convolutions_reach_as_far_as_they_are_stacked(dilated):
    """Distance grows with layers: by one each, or twofold if dilated."""
    for layers in (1, 2, 3, 4):
        x = torch.ones(1, 1, 65, requires_grad=True)
        y = x
        for i in range(layers):
            gap = 2**i if dilated else 1
            kernel = torch.ones(1, 1, 3)
            y = F.conv1d(y, kernel, padding=gap, dilation=gap)
        (gradient,) = torch.autograd.grad(y[0, 0, 32], x)
        far = 2**layers - 1 if dilated else layers
        assert gradient[0, 0].nonzero().flatten().tolist() == list(
            range(32 - far, 32 + far + 1)
        )


def test_two_heads_keep_apart_what_one_averages():
    """Two pairs of words with one mean."""
    words = torch.tensor([[1.0, 1], [-1, -1], [1, -1], [-1, 1]])
    one = torch.tensor([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]]) @ words
    assert torch.equal(one[0], one[1])
    first, second = torch.eye(4)[[0, 2]], torch.eye(4)[[1, 3]]
    two = torch.cat([first @ words, second @ words], -1)
    assert not torch.equal(two[0], two[1])


def test_the_comparison_is_what_its_translations_say():
    """Scores again, from what every model wrote; equal sizes and seeds."""
    stored = load_result("recurrent")
    raw = lzma.decompress(
        (ROOT / "results/recurrent/translations.json.xz").read_bytes()
    )
    assert scores(json.loads(raw)) == stored["rows"]
    counts = [row["parameters"] for row in stored["rows"]]
    assert len(counts) == 4 * len(stored["seed"])
    assert max(counts) < 1.02 * min(counts)


# Bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cell": "ltsm"}, "unknown cell, 'ltsm'; did you mean 'lstm'"),
        ({"score": "aditive"}, "unknown score, 'aditive'; did you mean 'add"),
        ({"score": "x"}, "unknown score, 'x'; known: none, dot, additive"),
        ({"d_model": 7, "bidirectional": True}, "d_model: 7, expected an even"),
        ({"d_model": 0}, "d_model: 0, expected at least 1"),
        ({"dropout": 1.0}, "dropout: 1.0, expected 0 <= dropout < 1"),
        ({"pad": 40}, "pad: 40, but the vocabulary has 30 tokens"),
        ({"layers": "2"}, "layers: '2', expected an int"),
    ],
)
def test_configurations_that_cannot_be_meant(changes, message):
    """Refused when they are written down, with the nearest name."""
    with pytest.raises(ValueError, match=f"^{message}"):
        RecurrentConfig(30, **changes)


def test_tensors_that_do_not_belong_together():
    """Each is named, with its shape."""
    model, src, tgt = a_model(KINDS[1]), sentences(), sentences(3, 5)
    memory = model.encode(src)
    with pytest.raises(ValueError, match=r"^tgt: 2 sentences, but src has 3"):
        model.decode(tgt[:2], memory, src)
    with pytest.raises(ValueError, match=r"^memory: shape \(3, 5, 8\), but"):
        model.decode(tgt, memory[:, :5], src)
    with pytest.raises(ValueError, match=r"^src: sentence 1 has padding"):
        model.encode(src.flip(1))
    with pytest.raises(ValueError, match=r"^src: 30 in sentence 0"):
        model.encode(torch.full((1, 2), 30))
