"""The whole model: against PyTorch's layers, against leaks, and misused."""

import dataclasses
import math
import os
import shutil
import sysconfig
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing import assert_close

from transformer_annotated import Transformer, TransformerConfig
from transformer_annotated.model import parameter_count, shift_right
from transformer_annotated.positions import LearnedPositions

PAD, V = 0, 50
SMALL = TransformerConfig(V, layers=2, d_model=16, d_ff=32, heads=4, dropout=0)
NORMS = pytest.mark.parametrize(
    "pre_norm", [False, True], ids=["post-norm", "pre-norm"]
)
SWITCHED = dataclasses.replace(
    SMALL,
    d_k=3,
    pad=V - 1,
    learned_positions=12,
    pre_norm=True,
    attention_bias=True,
)
BOTH = pytest.mark.parametrize(
    "config", [SMALL, SWITCHED], ids=["paper", "not"]
)


def sentences(rows, length, pad=None):
    """Random ids ``(rows, length)``; with a pad, of different lengths."""
    ids = torch.randint(1, V - 1, (rows, length))
    if pad is not None:
        for row in range(1, rows):
            ids[row, length - row :] = pad
    return ids


# Against PyTorch's layers


class Reference(nn.Module):
    """The paper's model put together from the layers of torch.nn."""

    def __init__(self, c):
        """Build the stacks, without the norms that nn.Transformer adds."""
        super().__init__()
        self.config = c
        sizes = (c.d_model, c.heads, c.d_ff, c.dropout, "relu", 1e-6, True)
        self.embedding = nn.Embedding(c.vocab_size, c.d_model)
        self.encoder, self.decoder = (
            nn.ModuleList(kind(*sizes, c.pre_norm) for _ in range(c.layers))
            for kind in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
        )
        self.norms = nn.ModuleList(
            nn.LayerNorm(c.d_model, 1e-6) if c.pre_norm else nn.Identity()
            for _ in range(2)
        )

    def embed(self, ids):
        """Scaled embeddings and the formula of section 3.5, by loops."""
        d = self.config.d_model
        waves = (math.sin, math.cos)
        table = [
            [waves[j % 2](p / 10000 ** ((j - j % 2) / d)) for j in range(d)]
            for p in range(ids.size(1))
        ]
        x = self.embedding(ids) * math.sqrt(d)
        return x + torch.tensor(table, dtype=x.dtype)

    def forward(self, src, tgt):
        """Logits ``(B, T, V)``; in these masks True is forbidden."""
        hidden = src == self.config.pad
        later = torch.ones(tgt.size(1), tgt.size(1)).triu(1).bool()
        x = self.embed(src)
        for layer in self.encoder:
            x = layer(x, src_key_padding_mask=hidden)
        memory, y = self.norms[0](x), self.embed(tgt)
        for layer in self.decoder:
            y = layer(y, memory, later, memory_key_padding_mask=hidden)
        return self.norms[1](y) @ self.embedding.weight.T


def attention_pairs(ours, theirs):
    """Our parameters of an attention, each with a view of theirs."""
    for kind in dict(ours.w_q.named_parameters()):
        for i, linear in enumerate((ours.w_q, ours.w_k, ours.w_v)):
            yield (
                getattr(linear, kind),
                getattr(theirs, f"in_proj_{kind}"),
                slice(i * ours.d_model, (i + 1) * ours.d_model),
            )
        yield getattr(ours.w_o, kind), getattr(theirs.out_proj, kind), ...


def layer_pairs(ours, theirs):
    """Our parameters of a layer, each with a view of theirs."""
    yield from attention_pairs(ours.self_attention, theirs.self_attn)
    if hasattr(ours, "cross_attention"):
        yield from attention_pairs(ours.cross_attention, theirs.multihead_attn)
    modules = [(ours.feed_forward.w_1, theirs.linear1)]
    modules += [(ours.feed_forward.w_2, theirs.linear2)]
    residuals = [m for n, m in ours.named_children() if "residual" in n]
    for i, residual in enumerate(residuals):
        modules.append((residual.norm, getattr(theirs, f"norm{i + 1}")))
    for mine, other in modules:
        yield mine.weight, other.weight, ...
        yield mine.bias, other.bias, ...


def pairs(ours, theirs):
    """All our parameters, each with its counterpart in the reference."""
    yield ours.embeddings.weight, theirs.embedding.weight, ...
    stacks = (ours.encoder, ours.decoder), (theirs.encoder, theirs.decoder)
    for i, (mine, other) in enumerate(zip(*stacks, strict=True)):
        for layer, counterpart in zip(mine.layers, other, strict=True):
            yield from layer_pairs(layer, counterpart)
        for p, q in zip(
            mine.norm.parameters(), theirs.norms[i].parameters(), strict=True
        ):
            yield p, q, ...


@NORMS
@pytest.mark.parametrize("pad", [None, PAD], ids=["full", "padded"])
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_model_equals_one_made_of_torchs_layers(pre_norm, pad, bias):
    """With weights copied over: the same logits, and the same gradients."""
    config = dataclasses.replace(SMALL, pre_norm=pre_norm, attention_bias=bias)
    ours, theirs = Transformer(config).double(), Reference(config).double()
    matched = list(pairs(ours, theirs))
    assert {id(p) for p, *_ in matched} == {id(p) for p in ours.parameters()}
    with torch.no_grad():
        for p in theirs.parameters():
            p.zero_()  # also the biases that we may not have
        for p, q, where in matched:
            p.normal_(std=0.3)
            q[where] = p
    src, tgt = sentences(3, 7, pad), sentences(3, 6, pad)
    labels = torch.randint(V, (18,))
    logits = ours(src, tgt), theirs(src, tgt)
    assert_close(*logits)
    for output in logits:
        F.cross_entropy(output.flatten(0, 1), labels).backward()
    for p, q, where in matched:
        assert_close(p.grad, q.grad[where])


# Nothing leaks


@BOTH
def test_changing_a_token_changes_nothing_before_it(config):
    """The prediction at t sees the target up to t, to the last bit."""
    model = Transformer(config).eval()
    src, tgt = sentences(2, 6), sentences(2, 8)
    before = model(src, tgt)
    for t in range(8):
        changed = tgt.clone()
        changed[:, t] = changed[:, t] % (V - 2) + 1
        after = model(src, changed)
        assert torch.equal(before[:, :t], after[:, :t])
        assert not torch.equal(before[:, t:], after[:, t:])


@BOTH
def test_padding_changes_nothing(config):
    """A sentence alone and inside a padded batch gives the same."""
    model = Transformer(config).eval()
    src, tgt = sentences(3, 9, config.pad), sentences(3, 8, config.pad)
    together = model(src, tgt)
    for row in range(3):
        words = src[row : row + 1, : 9 - row], tgt[row : row + 1, : 8 - row]
        alone = model(*words)
        assert_close(together[row : row + 1, : 8 - row], alone)


def test_every_source_word_reaches_every_prediction():
    """The memory has a vector for each word, and all are looked at."""
    model = Transformer(SMALL).eval()
    src, tgt = sentences(1, 5), sentences(1, 4)
    memory = model.encode(src)
    assert memory.shape == (1, 5, 16)
    before = model(src, tgt)
    for s in range(5):
        changed = src.clone()
        changed[0, s] = changed[0, s] % (V - 2) + 1
        assert (model(changed, tgt) != before).any(-1).all()


# One matrix


def test_one_matrix_serves_in_three_places():
    """Source, target and logits: one parameter, one storage, one gradient."""
    model = Transformer(SMALL)
    large = [n for n, p in model.named_parameters() if V in p.shape]
    assert large == ["embeddings.weight"]
    storages = [p.untyped_storage().data_ptr() for p in model.parameters()]
    assert len(set(storages)) == len(storages) == len(model.state_dict())
    src, tgt = torch.tensor([[7, 8]]), torch.tensor([[9]])
    hidden = model.decode(tgt, model.encode(src), src)
    chosen = hidden[..., 0].sum()  # the sum of all is 0 after a norm
    (inside,) = torch.autograd.grad(chosen, model.embeddings.weight)
    assert inside.any(-1).nonzero().flatten().tolist() == [7, 8, 9]
    (through,) = torch.autograd.grad(
        model(src, tgt).logsumexp(-1).sum(), model.embeddings.weight
    )
    assert through.any(-1).all()


@BOTH
def test_weights_survive_safetensors(config, tmp_path):
    """Saved and loaded, another model gives the same, bit for bit."""
    torch.manual_seed(1)
    model = Transformer(config).eval()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    torch.manual_seed(2)
    other = Transformer(config).eval()
    words = sentences(2, 5), sentences(2, 4)
    assert not torch.equal(model(*words), other(*words))
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(model(*words), other(*words))


# Sizes

TABLE_3 = [  # what differs from base, the paper's count, ours, in millions
    ("base", {}, 65, 63.0),
    ("A 1", {"heads": 1, "d_k": 512, "d_v": 512}, None, 63.0),
    ("A 4", {"heads": 4, "d_k": 128, "d_v": 128}, None, 63.0),
    ("A 16", {"heads": 16, "d_k": 32, "d_v": 32}, None, 63.0),
    ("A 32", {"heads": 32, "d_k": 16, "d_v": 16}, None, 63.0),
    ("B 16", {"d_k": 16}, 58, 56.0),
    ("B 32", {"d_k": 32}, 60, 58.3),
    ("C N 2", {"layers": 2}, 36, 33.6),
    ("C N 4", {"layers": 4}, 50, 48.3),
    ("C N 8", {"layers": 8}, 80, 77.7),
    ("C d 256", {"d_model": 256, "d_k": 32, "d_v": 32}, 28, 26.8),
    ("C d 1024", {"d_model": 1024, "d_k": 128, "d_v": 128}, 168, 163.8),
    ("C ff 1024", {"d_ff": 1024}, 53, 50.5),
    ("C ff 4096", {"d_ff": 4096}, 90, 88.2),
    ("D 0.0", {"dropout": 0.0}, None, 63.0),
    ("D 0.2", {"dropout": 0.2}, None, 63.0),
    ("E", {"learned_positions": 256}, None, 63.3),
]
EACH_ROW = pytest.mark.parametrize(
    ("change", "paper", "ours"), [r[1:] for r in TABLE_3], ids=lambda r: str(r)
)


@EACH_ROW
def test_table_3_can_be_built_and_counted(change, paper, ours):
    """Every row; where the paper has a count, 41,100 tokens would give it."""
    config = dataclasses.replace(TransformerConfig.base(37_000), **change)
    count = parameter_count(config)
    assert round(count / 1e6, 1) == ours
    if paper:
        fitting = dataclasses.replace(config, vocab_size=41_100)
        assert round(parameter_count(fitting) / 1e6) == paper
        assert round(count / 1e6) != paper


def test_counting_takes_no_memory():
    """A model that fits nowhere can be counted."""
    config = TransformerConfig(2**20, layers=1000, d_model=2**14, d_ff=2**16)
    assert parameter_count(config) > 10**12


def test_base_and_big_have_the_papers_sizes():
    """Table 3's first and last row; heads of 64 in both."""
    base, big = TransformerConfig.base(37_000), TransformerConfig.big(37_000)
    sizes = [dataclasses.astuple(config)[1:5] for config in (base, big)]
    assert sizes == [(6, 512, 2048, 8), (6, 1024, 4096, 16)]
    assert (base.dropout, big.dropout) == (0.1, 0.3)
    assert base.head_sizes == big.head_sizes == (64, 64)
    assert parameter_count(base) == 63_045_632
    assert round(parameter_count(big) / 1e6, 1) == 214.2


def test_tiny_has_the_sizes_of_its_peers():
    """Four layers of 128, as in the benchmarks of small models."""
    sizes = dataclasses.astuple(TransformerConfig.tiny(100))[:5]
    assert sizes == (100, 4, 128, 256, 4)


def test_switches_are_off_by_default():
    """Post-norm, sinusoids, no bias in attention, no dropout inside."""
    c = TransformerConfig.base(37_000)
    assert not (c.pre_norm or c.attention_bias or c.learned_positions)
    assert c.attention_dropout == 0


def test_stacks_have_n_layers_and_no_norm_at_the_end():
    """Only with pre-norm does something follow the last layer."""
    model = Transformer(SMALL)
    assert len(model.encoder.layers) == len(model.decoder.layers) == 2
    for stack in (model.encoder, model.decoder):
        assert isinstance(stack.norm, nn.Identity)
    model = Transformer(SWITCHED)
    for stack in (model.encoder, model.decoder):
        assert isinstance(stack.norm, nn.LayerNorm) and stack.norm.eps == 1e-6


def test_everything_is_d_model_wide():
    """Embeddings, sub-layers and stacks give vectors of one size."""
    model, widths = Transformer(SMALL), []
    parts = [model.embeddings, *model.encoder.layers, *model.decoder.layers]
    parts += [m for n, m in model.named_modules() if n.endswith("attention")]
    parts += [m for n, m in model.named_modules() if n.endswith("forward")]
    for part in parts:
        part.register_forward_hook(
            lambda _, inputs, output: widths.append(output.size(-1))
        )
    model(sentences(2, 5), sentences(2, 4))
    assert widths == [16] * len(widths) and len(widths) == len(parts) + 1


# Starting values and dropout


def test_initial_values():
    """Xavier's matrices, zero biases, unit norms; no two layers alike."""
    config = TransformerConfig(2000, layers=2, d_model=64, d_ff=256, heads=4)
    model = Transformer(config)
    assert abs(model.embeddings.weight.std() * 8 - 1) < 0.02  # not Xavier's
    matrices = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            matrices.append(module.weight)
            bound = math.sqrt(6 / sum(module.weight.shape))
            assert 0.97 * bound < module.weight.abs().max() <= bound
            assert abs(module.weight.std() / (bound / 3**0.5) - 1) < 0.05
            assert module.bias is None or module.bias.eq(0).all(), name
        if isinstance(module, nn.LayerNorm):
            assert module.weight.eq(1).all() and module.bias.eq(0).all()
    assert len(matrices) == 2 * 6 + 2 * 10
    for i, one in enumerate(matrices):
        for other in matrices[:i]:
            assert not torch.equal(one, other)


def test_an_untrained_model_guesses():
    """Its loss is near that of holding all tokens equally likely."""
    model = Transformer(TransformerConfig.tiny(1000)).eval()
    src, tgt = torch.randint(1, 1000, (2, 20, 15))
    inputs, labels = shift_right(tgt)
    logits = model(src, inputs)
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert abs(loss - math.log(1000)) < 1


def test_dropout_acts_on_embeddings_and_positions():
    """Sums of the two lose their share, in both stacks, in training only."""
    model = Transformer(dataclasses.replace(SMALL, dropout=0.5, d_model=64))
    entered = []
    for stack in (model.encoder, model.decoder):
        stack.register_forward_pre_hook(lambda _, x: entered.append(x[0]))
    words = sentences(20, 9), sentences(20, 9)
    model.train()(*words)
    model.eval()(*words)
    for dropped, whole in zip(entered[:2], entered[2:], strict=True):
        gone = dropped == 0
        assert abs(gone.float().mean() - 0.5) < 0.03
        assert_close(dropped[~gone], 2 * whole[~gone])


def test_dropout_rates_reach_their_places():
    """Both rates of the configuration, each where it belongs."""
    config = dataclasses.replace(SMALL, dropout=0.1, attention_dropout=0.2)
    model = Transformer(config)
    for layer in (*model.encoder.layers, *model.decoder.layers):
        assert layer.self_attention_residual.dropout.p == 0.1
        assert layer.feed_forward_residual.dropout.p == 0.1
        assert layer.self_attention.dropout == 0.2
    assert model.dropout.p == 0.1
    assert model.decoder.layers[0].cross_attention.dropout == 0.2


def test_learned_positions_are_a_switch():
    """Row (E): a table for the source, and one for the target."""
    model = Transformer(SWITCHED).eval()
    tables = model.source_positions, model.target_positions
    assert all(isinstance(p, LearnedPositions) for p in tables)
    assert tables[0].table is not tables[1].table
    for positions in tables:
        assert 0.6 < positions.table.std() < 0.8  # as long as sinusoids
    words = sentences(1, 4), sentences(1, 4)
    before = model(*words)
    for positions in tables:
        with torch.no_grad():
            positions.table[2] += 1
        after = model(*words)
        assert not torch.equal(before, after)
        before = after


# Teacher forcing, and learning


def test_shift_right_puts_each_label_one_step_ahead():
    """What is read at t + 1 is what was to be answered at t."""
    target = torch.tensor([[1, 7, 8, 2], [1, 9, 2, 0]])
    inputs, labels = shift_right(target)
    assert inputs.tolist() == [[1, 7, 8], [1, 9, 2]]
    assert labels.tolist() == [[7, 8, 2], [9, 2, 0]]
    for wrong in (target[0], target[:, :1]):
        with pytest.raises(ValueError, match="target: shape"):
            shift_right(wrong)


@NORMS
def test_a_small_model_learns_a_dozen_sentences(pre_norm):
    """Two layers, to zero loss and back without a teacher, in seconds."""
    torch.manual_seed(0)
    config = TransformerConfig(
        V, layers=2, d_model=64, d_ff=128, heads=4, dropout=0, pre_norm=pre_norm
    )
    model = Transformer(config)
    src, whole = torch.randint(3, V, (2, 12, 8))
    whole[:, 0], whole[:, -1] = 1, 2
    whole[6:, 5], whole[6:, 6:], src[:6, 6:] = 2, PAD, PAD
    inputs, labels = shift_right(whole)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3, betas=(0.9, 0.98))
    for _ in range(120):
        logits = model(src, inputs).flatten(0, 1)
        loss = F.cross_entropy(logits, labels.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.02
    with torch.no_grad():
        written = inputs[:, :1]
        for t in range(labels.size(1)):
            word = model.eval()(src, written)[:, -1:].argmax(-1)
            real = labels[:, t] != PAD
            assert word[real, 0].equal(labels[real, t])
            word = whole[:, t + 1 : t + 2].where(~real[:, None], word)
            written = torch.cat([written, word], 1)


# Compiled, exported, in half precision


needs_compiler = pytest.mark.skipif(
    not shutil.which(os.environ.get("CXX", "g++"))
    or not Path(sysconfig.get_path("include"), "Python.h").exists()
    or " " in torch.__file__,
    reason="inductor needs a C++ compiler, Python's headers, and a path "
    "without spaces",
)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method")  # torch's own
@pytest.mark.parametrize(
    ("config", "backend"),
    [
        pytest.param(SMALL, "inductor", marks=needs_compiler),
        (SWITCHED, "aot_eager"),
    ],
)
def test_model_compiles(config, backend, tmp_path, monkeypatch):
    """torch.compile gives one graph, with the same values and gradients.

    Inductor's cache does not know for which instructions its kernels were
    compiled (ATEN_CPU_CAPABILITY), so each run has a cache of its own.
    """
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model = Transformer(dataclasses.replace(config, layers=1))
    compiled = torch.compile(
        model, fullgraph=True, dynamic=True, backend=backend
    )
    for lengths in ((7, 5), (4, 9)):
        src, tgt = (sentences(3, n, config.pad) for n in lengths)
        results = []
        for run in (model, compiled):
            logits = run(src, tgt)
            loss = logits.logsumexp(-1).sum()
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            results.append((logits, *gradients))
        assert_close(*results, atol=1e-4, rtol=1e-4)


def test_model_exports():
    """torch.export gives a program for all batch sizes and lengths."""
    model = Transformer(SMALL).eval()
    batch, source, target = (
        torch.export.Dim(name, min=2, max=64) for name in ("B", "S", "T")
    )
    program = torch.export.export(
        model,
        (sentences(2, 5), sentences(2, 4)),
        dynamic_shapes={
            "src": {0: batch, 1: source},
            "tgt": {0: batch, 1: target},
        },
    ).module()
    for rows, lengths in ((2, (5, 4)), (3, (9, 12))):
        words = [sentences(rows, n, PAD) for n in lengths]
        assert_close(program(*words), model(*words))


def test_model_lives_on_one_device():
    """Masks and positions are made where the ids are."""
    model = Transformer(SMALL).to("meta")
    src, tgt = (sentences(2, n).to("meta") for n in (5, 4))
    assert model(src, tgt).device.type == "meta"


@BOTH
def test_bfloat16_autocast(config):
    """Mixed precision runs, forwards and back, close to single precision."""
    model = Transformer(config)
    words = sentences(3, 7, config.pad), sentences(3, 6)
    exact = model(*words)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(*words)
        loss = logits.float().logsumexp(-1).mean()
    loss.backward()
    assert logits.dtype == torch.bfloat16
    assert_close(logits.float(), exact, atol=0.1, rtol=0.1)
    for p in model.parameters():
        assert p.grad.dtype == torch.float32 and p.grad.isfinite().all()


def test_model_in_bfloat16():
    """All weights in half precision: positions follow."""
    model = Transformer(SMALL).eval()
    words = sentences(3, 7, PAD), sentences(3, 6)
    exact = model(*words)
    half = model.bfloat16()(*words)
    assert half.dtype == torch.bfloat16
    assert_close(half.float(), exact, atol=0.15, rtol=0.1)


# Any configuration


@settings(max_examples=40)
@given(
    layers=st.integers(1, 3),
    half=st.integers(1, 6),
    d_ff=st.integers(1, 20),
    heads=st.integers(1, 5),
    d_k=st.integers(1, 7),
    d_v=st.integers(1, 7),
    lengths=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    switches=st.tuples(*[st.booleans()] * 3),
)
def test_any_configuration_works(
    layers, half, d_ff, heads, d_k, d_v, lengths, switches
):
    """Built, counted and run, whatever the sizes."""
    pre_norm, bias, learned = switches
    d = 2 * half
    config = TransformerConfig(
        9, layers, d, d_ff, heads, d_k, d_v, 0.0, 0, 8 * learned, pre_norm, bias
    )
    model = Transformer(config).double().eval()  # two components amplify
    width = heads * (2 * d_k + 2 * d_v)
    attention = width * d + bias * (heads * (2 * d_k + d_v) + d)
    feed_forward = 2 * d * d_ff + d_ff + d
    count = layers * (3 * attention + 2 * feed_forward + 5 * 2 * d) + 9 * d
    count += 2 * 8 * d * learned + 2 * 2 * d * pre_norm
    assert count == sum(p.numel() for p in model.parameters())
    assert count == parameter_count(config)
    src, tgt = (torch.randint(1, 9, (2, n)) for n in lengths)
    logits = model(src, tgt)
    assert logits.shape == (2, lengths[1], 9) and logits.isfinite().all()


# Bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 0}, "vocab_size: 0, expected at least 1"),
        ({"layers": 0}, "layers: 0, expected at least 1"),
        ({"d_model": -2}, "d_model: -2, expected at least 1"),
        ({"d_model": 512.0}, "d_model: 512.0, expected an int"),
        ({"d_ff": "2048"}, "d_ff: '2048', expected an int"),
        ({"heads": True}, "heads: True, expected an int"),
        (
            {"heads": 7},
            "heads: 7 does not divide d_model 512; give d_k and d_v",
        ),
        ({"heads": 7, "d_k": 64}, "heads: 7 does not divide d_model 512"),
        ({"d_k": 0}, "d_k: 0, expected at least 1"),
        ({"d_v": 0}, "d_v: 0, expected at least 1"),
        ({"vocab_size": None}, "vocab_size: None, expected an int"),
        ({"d_model": 7, "heads": 7}, "d_model: 7, expected an even number"),
        ({"dropout": 1.0}, "dropout: 1.0, expected 0 <= dropout < 1"),
        ({"dropout": math.nan}, "dropout: nan"),
        ({"attention_dropout": -0.1}, "attention_dropout: -0.1"),
        ({"pad": 0.0}, "pad: 0.0, expected an int"),
        ({"learned_positions": 2.5}, "learned_positions: 2.5, expected an int"),
        ({"pre_norm": "false"}, "pre_norm: 'false', expected True or False"),
        ({"attention_bias": 1}, "attention_bias: 1, expected True or False"),
        ({"dropout": None}, "dropout: None, expected a number"),
        ({"dropout": False}, "dropout: False, expected"),
        ({"pad": 37_000}, "pad: 37000, but the vocabulary has 37000 tokens"),
        ({"pad": -1}, "pad: -1, expected at least 0"),
        (
            {"learned_positions": -1},
            "learned_positions: -1, expected at least 0",
        ),
    ],
)
def test_impossible_configurations_are_refused(change, message):
    """The field and what is wrong with it are named."""
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(TransformerConfig.base(37_000), **change)


def test_configuration_is_frozen():
    """Nobody changes it under a model that has been built."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        SMALL.layers = 3
    odd = dataclasses.replace(SMALL, d_model=7, heads=7, learned_positions=5)
    assert Transformer(odd)(sentences(1, 4), sentences(1, 5)).shape == (1, 5, V)


GOOD = torch.tensor([[5, 6], [7, SWITCHED.pad]])


@pytest.mark.parametrize(
    ("src", "tgt", "message"),
    [
        (GOOD + 1, GOOD, "src: 50 in sentence 1, position 1.*50 tokens"),
        (GOOD, GOOD - 6, "tgt: -1 in sentence 0, position 0"),
        (GOOD.float(), GOOD, "src: dtype torch.float32"),
        (GOOD, GOOD.double(), "tgt: dtype torch.float64"),
        (GOOD[:, :0], GOOD, r"src: shape \(2, 0\)"),
        (GOOD, GOOD[:, :0], r"tgt: shape \(2, 0\)"),
        (GOOD[0], GOOD, r"src: shape \(2,\)"),
        (GOOD, [[1]], "tgt: list, expected a tensor"),
        (GOOD[:1], GOOD, "tgt: 2 sentences, but src has 1"),
        (GOOD[:, [1, 1]], GOOD, "src: sentence 1 has padding .* nothing else"),
        (GOOD[[1, 0]][:, [1, 1]], GOOD, "src: sentence 0 has padding"),
        (GOOD.flip(1), GOOD, "src: sentence 1 has padding .* before a word"),
        (GOOD, GOOD.flip(1), "tgt: sentence 1 has padding .* before a word"),
        (GOOD, GOOD[:, [0, 1, 0]], "tgt: sentence 1 has padding .* before"),
        (
            GOOD[:1].repeat(2, 7),
            GOOD,
            "length: 14 positions, but 12 were learn",
        ),
        (GOOD, GOOD[:1].repeat(2, 7), "length: 14 positions, but 12"),
    ],
)
def test_wrong_sentences_are_refused(src, tgt, message):
    """Ids, shapes, padding and lengths that cannot be meant."""
    with pytest.raises(ValueError, match=message):
        Transformer(SWITCHED)(src, tgt)


def test_what_does_not_belong_together_is_refused():
    """Memory and source of others."""
    model = Transformer(SMALL).eval()
    src, tgt = sentences(2, 4), sentences(2, 6)
    memory = model.encode(src)
    for wrong, message in (
        ((tgt, memory, src[:1]), "tgt: 2 sentences, but src has 1"),
        ((tgt, memory, src[:, :1]), r"memory: shape .*src has \(2, 1\)"),
        ((tgt, memory[:, :2], src), r"memory: shape \(2, 2, 16\)"),
        ((tgt, memory[..., :8], src), r"memory: .* d_model is 16"),
    ):
        with pytest.raises(ValueError, match=message):
            model.decode(*wrong)


def test_padding_alone_is_never_nan():
    """Where values cannot be checked, an empty sentence gives numbers."""
    model = Transformer(SMALL)
    unchecked = torch.compile(model, backend="eager", fullgraph=True)
    src = torch.tensor([[5, 6], [PAD, PAD]])
    logits = unchecked(src, torch.tensor([[1, 5], [1, PAD]]))
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())
