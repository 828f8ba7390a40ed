"""Word by word equals all at once, whatever the layers and the precision."""

import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from transformer_annotated.decoding import beam_search, greedy_decode
from transformer_annotated.model import Transformer, TransformerConfig
from transformer_annotated.text import EOS
from transformer_annotated.workshop.incremental import (
    IncrementalDecoder,
    blockwise_topk,
    cache_bytes,
)

SMALL = TransformerConfig(50, layers=3, d_model=16, d_ff=32, heads=4)
KINDS = {
    "paper": SMALL,
    "pre-norm": dataclasses.replace(SMALL, pre_norm=True),
    "learned": dataclasses.replace(SMALL, learned_positions=40),
    "biases": dataclasses.replace(SMALL, attention_bias=True),
    "gelu": dataclasses.replace(SMALL, activation="gelu", norm_eps=1e-5),
    "d_k": dataclasses.replace(SMALL, d_k=3, d_v=7, pad=49),
}
EACH_KIND = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
DTYPES = [torch.float64, torch.float32, torch.bfloat16]
seeds = st.integers(0, 10**6)


def make_model(config):
    """A model whose biases are not all zero, as a trained one's are not."""
    torch.manual_seed(0)
    model = Transformer(config).eval()
    for p in model.parameters():
        if p.dim() == 1:
            p.data += 0.1 * torch.randn_like(p)
    return model


def sentences(config, rows, length, padded=False):
    """Random ids ``(rows, length)``, of different lengths if padded."""
    ids = torch.randint(3, 48, (rows, length))
    for row in range(1, rows) if padded else ():
        ids[row, length - row :] = config.pad
    return ids


def by_word(decoder, tgt):
    """Hidden vectors ``(R, T, d_model)``, one position after the other."""
    return torch.stack([decoder.hidden(x) for x in tgt.unbind(1)], 1)


@EACH_KIND
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_word_by_word_equals_all_at_once(config, dtype):
    """To within what 3 layers of rounding in this precision may do."""
    model = make_model(config).to(dtype)
    src, tgt = sentences(config, 3, 7, padded=True), sentences(config, 3, 37)
    with torch.no_grad():
        whole = model.decode(tgt, model.encode(src), src)
    close = 50 * torch.finfo(dtype).eps
    decoder = IncrementalDecoder(model, src)
    assert_close(by_word(decoder, tgt), whole, atol=close, rtol=close)


@EACH_KIND
@pytest.mark.parametrize("beam", [1, 3])
def test_searches_find_what_the_full_pass_finds(config, beam, monkeypatch):
    """Greedy and beam search with the model itself in the decoder's place."""
    model = make_model(config).double()
    src = sentences(config, 4, 6, padded=True)

    class Full(IncrementalDecoder):
        """Computes all words so far anew at each step."""

        def __init__(self, model, src):
            super().__init__(model, src)
            self.src, self.tgt = src, src[:, :0]

        def hidden(self, tokens):
            self.tgt = torch.cat([self.tgt, tokens[:, None]], 1)
            memory = self.model.encode(self.src)
            return self.model.decode(self.tgt, memory, self.src)[:, -1]

        def reorder(self, rows, same_sources=False):
            self.src, self.tgt = self.src[rows], self.tgt[rows]

    def search():
        if beam == 1:
            return greedy_decode(model, src, 9)
        found = beam_search(model, src, beam, n_best=beam, extra_length=9)
        return [[h.tokens for h in hypotheses] for hypotheses in found]

    fast = search()
    monkeypatch.setattr("transformer_annotated.decoding.start_decoding", Full)
    assert search() == fast


@EACH_KIND
@pytest.mark.parametrize("same_sources", [False, True])
def test_it_goes_on_with_the_rows_that_are_chosen(config, same_sources):
    """What follows is what these rows would have had from the start."""
    model = make_model(config).double()
    src = sentences(config, 2, 7, padded=True).repeat_interleave(2, 0)
    tgt = sentences(config, 4, 36)
    rows = torch.tensor([1, 0, 3, 3] if same_sources else [2, 0, 2, 1, 3])
    decoder = IncrementalDecoder(model, src)
    by_word(decoder, tgt[:, :4])
    decoder.reorder(rows, same_sources)
    rest = by_word(decoder, tgt[rows, 4:])
    with torch.no_grad():
        whole = model.decode(tgt[rows], model.encode(src[rows]), src[rows])
    assert_close(rest, whole[:, 4:])


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 3),
    st.tuples(*[st.integers(1, 6)] * 4),
    st.tuples(*[st.booleans()] * 3),
)
def test_any_configuration_decodes(layers, sizes, switches):
    """Whatever the sizes, and with every switch."""
    half, heads, d_k, d_v = sizes
    pre_norm, bias, learned = switches
    config = TransformerConfig(
        50, layers, 2 * half, 5, heads, d_k, d_v, 0.0, 0, 9 * learned, pre_norm,
        bias,
    )  # fmt: skip
    model = make_model(config).double()
    src, tgt = sentences(config, 2, 4), sentences(config, 2, 5)
    with torch.no_grad():
        whole = model.decode(tgt, model.encode(src), src)
    decoder = IncrementalDecoder(model, src)
    assert_close(by_word(decoder, tgt), whole, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("context", [torch.inference_mode, torch.enable_grad])
def test_it_needs_no_gradients(context):
    """In inference mode or not, nothing is recorded, and all is the same."""
    model = make_model(SMALL)
    src, tgt = sentences(SMALL, 2, 5), sentences(SMALL, 2, 6)
    wanted = by_word(IncrementalDecoder(model, src), tgt)
    with context():
        decoder = IncrementalDecoder(model, src)
        hidden = by_word(decoder, tgt[:, :3])
        decoder.reorder(torch.tensor([1, 0]))
        assert not decoder.next_logits(tgt[:, 3].flip(0)).requires_grad
    assert not hidden.requires_grad and hidden.equal(wanted[:, :3])


@EACH_KIND
def test_bfloat16_autocast(config):
    """Mixed precision is close to single precision."""
    model = make_model(config)
    src = sentences(config, 3, 7, padded=True)
    tgt = sentences(config, 3, 6)
    exact = by_word(IncrementalDecoder(model, src), tgt)
    with torch.autocast("cpu", torch.bfloat16):
        rough = by_word(IncrementalDecoder(model, src), tgt)
    close = 50 * torch.finfo(torch.bfloat16).eps
    assert_close(rough.float(), exact, atol=close, rtol=close)


def test_packed_weights_follow_the_model():
    """A decoder has the weights of its day, and the model keeps no copy."""
    model = make_model(SMALL)
    names = list(model.state_dict())
    src, tgt = sentences(SMALL, 2, 5), sentences(SMALL, 2, 6)
    before = by_word(IncrementalDecoder(model, src), tgt)
    with torch.no_grad():
        for layer in model.decoder.layers:
            layer.self_attention.w_q.weight.normal_()
            layer.cross_attention.w_q.weight.normal_()
        whole = model.decode(tgt, model.encode(src), src)
    after = by_word(IncrementalDecoder(model, src), tgt)
    assert not torch.allclose(before, after)
    assert_close(after, whole, atol=1e-5, rtol=1e-5)
    assert list(model.state_dict()) == names


def test_a_step_costs_the_same_for_every_word():
    """No word is computed twice, and the memory is projected once."""
    costs = []
    with torch.device("meta"):
        src, word = (torch.ones(1, n, dtype=torch.long) for n in (9, 1))
        decoder = IncrementalDecoder(Transformer(SMALL), src)
        for _ in range(40):
            with FlopCounterMode(display=False) as counter:
                decoder.hidden(word[0])
            costs.append(counter.get_total_flops())
    one_more_key = 2 * SMALL.layers * 2 * SMALL.d_model  # to score and to mix
    for one, other in itertools.pairwise(costs):
        assert other - one == one_more_key


def test_cache_size_follows_from_the_config():
    """The keys and values kept are as many bytes as the formula says."""
    config = KINDS["d_k"]
    decoder = IncrementalDecoder(make_model(config), sentences(config, 2, 7))
    by_word(decoder, sentences(config, 2, 40))
    memory = sum(x.nbytes for cache in decoder.memory for x in cache.kept)
    assert memory == 2 * cache_bytes(config, source=7, target=0)
    assert memory == 4 * cache_bytes(config, 7, 0, bytes_each=2)
    room = sum(x.nbytes for cache in decoder.past for x in cache.kept)
    used = 2 * cache_bytes(config, source=0, target=40)
    assert used <= room <= 2 * used


def test_padding_and_start_never_follow():
    """Their logits are minus infinity, in single precision as all others."""
    model = make_model(KINDS["d_k"]).double()
    decoder = IncrementalDecoder(model, sentences(KINDS["d_k"], 2, 5))
    logits = decoder.next_logits(torch.tensor([1, 1]))
    assert logits.dtype == torch.float32 and logits.shape == (2, 50)
    never = logits.isneginf().any(0).nonzero()[:, 0].tolist()
    assert never == [1, 49]


def test_what_does_not_belong_together_is_refused():
    """Tokens of another batch, none, unknown ones, and one too many."""
    config = dataclasses.replace(SMALL, learned_positions=4)
    src = torch.tensor([[5, 6, EOS], [7, EOS, 0]])
    decoder = IncrementalDecoder(make_model(config), src)
    for tokens, message in (
        ([1], r"tokens: shape \(1,\), expected \(2,\), one token a row"),
        ([[1], [1]], r"tokens: shape \(2, 1\), expected \(2,\)"),
        ([1, 50], "tokens: 50 in sentence 1"),
    ):
        with pytest.raises(ValueError, match=message):
            decoder.hidden(torch.tensor(tokens))
    by_word(decoder, sentences(config, 2, 4))
    with pytest.raises(ValueError, match="length: 5 positions, but 4 were"):
        decoder.hidden(torch.tensor([3, 3]))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 60),
    st.integers(1, 12),
    st.integers(1, 9),
    st.booleans(),
    seeds,
)
def test_blockwise_topk_is_topk(rows, size, k, width, ties, seed):
    """The largest numbers, in order; places where they really stand."""
    torch.manual_seed(seed)
    x = torch.randn(rows, size)
    x = x.round() if ties else x
    x[:, seed % size] = -math.inf
    values, places = blockwise_topk(x, k, width)
    assert_close(values, x.topk(min(k, size)).values, rtol=0, atol=0)
    assert_close(x.gather(1, places), values, rtol=0, atol=0)
    assert all(len(set(row)) == len(row) for row in places.tolist())
