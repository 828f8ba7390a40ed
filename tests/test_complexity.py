"""Costs on paper are those of the code: of layers, and of the model."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from experiments.complexity import LSTM, MultiHead, conclusions, crossing
from transformer_annotated.attention import attention
from transformer_annotated.complexity import (
    KINDS,
    SUSTAINED_FLOPS,
    Recurrent,
    RecurrentSteps,
    RestrictedAttention,
    SelfAttention,
    build_layer,
    earliest_steps,
    fitted_exponent,
    forward_flops,
    gradient_reach,
    layer_costs,
    multiply_adds,
    path_lengths,
    sequential_products,
    training_flops,
    training_step_flops,
)
from transformer_annotated.model import (
    Transformer,
    TransformerConfig,
    parameter_count,
)
from transformer_annotated.workshop.files import load_result, paper_tables

PAPER = paper_tables()
TABLE = {row["model"]: row for row in PAPER["table2"]}
BASE, BIG = TABLE["Transformer (base model)"], TABLE["Transformer (big)"]
SMALL = TransformerConfig(50, layers=2, d_model=16, d_ff=32, heads=4)
EACH_KIND = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.parametrize("sizes", [(30, 25), (1, 1), (3, 40)])
@pytest.mark.parametrize(
    "config",
    [SMALL, replace(SMALL, d_k=3, pre_norm=True, attention_bias=True)],
    ids=["paper", "not"],
)
def test_operations_follow_from_the_config(config, sizes):
    """The closed form counts what torch's counter sees."""
    source, target = sizes
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        src = torch.ones(1, source, dtype=torch.long)
        tgt = torch.ones(1, target, dtype=torch.long)
        Transformer(config)(src, tgt)
    assert counter.get_total_flops() == forward_flops(config, source, target)


@pytest.mark.parametrize(
    ("sizes", "steps", "cost", "fraction"),
    [
        (TransformerConfig.base, 1e5, 3.3e18, 0.29),
        (TransformerConfig.big, 3e5, 2.3e19, 0.42),
    ],
)
def test_operations_beside_the_papers_estimate(sizes, steps, cost, fraction):
    """Three times a forward pass, and the fractions that the chapter names."""
    config = sizes(37_000)
    rule = 6 * parameter_count(config) * 25_000  # forward, and twice back
    assert training_step_flops(config) == pytest.approx(rule, rel=0.02)
    assert training_step_flops(config) * steps / cost == pytest.approx(
        fraction, abs=0.005
    )
    assert training_step_flops(config, 50_000) == 2 * training_step_flops(
        config
    )
    assert training_step_flops(config, length=100) > training_step_flops(
        config, length=10
    )


def test_training_cost_is_time_and_gpus_and_speed():
    """The paper's two figures, from its hours."""
    assert training_flops(1, 1, "K40") == 3600 * 3.7e12
    assert f"{training_flops(12, 8):.1e}" == f"{BASE['flops']:.1e}"
    assert f"{training_flops(3.5 * 24, 8):.1e}" == f"{BIG['flops']:.1e}"


def test_the_speeds_assumed():
    """Those of the paper's footnote."""
    tera = {name: speed / 1e12 for name, speed in SUSTAINED_FLOPS.items()}
    assert tera == PAPER["training"]["tflops_assumed"]
    assert tera == {"K80": 2.8, "K40": 3.7, "M40": 6.0, "P100": 9.5}
    with pytest.raises(ValueError, match=r"unknown GPU, 'P10'.*'P100'"):
        training_flops(1, 1, "P10")


# --- Table 1


def test_table_1_is_quoted_right():
    """Four layers, with the orders that the paper prints."""
    rows = [tuple(row.values()) for row in PAPER["table1"]]
    assert rows == [
        ("Self-Attention", "O(n^2 d)", "O(1)", "O(1)"),
        ("Recurrent", "O(n d^2)", "O(n)", "O(n)"),
        ("Convolutional", "O(k n d^2)", "O(1)", "O(log_k(n))"),
        ("Self-Attention (restricted)", "O(r n d)", "O(1)", "O(n/r)"),
    ]


@EACH_KIND
@pytest.mark.parametrize("sizes", [(12, 8, 3), (1, 4, 3), (16, 6, 5)])
def test_table_1_is_what_the_layers_do(kind, sizes):
    """Counted products, the longest chain of them, and the shape."""
    n, d, k = sizes
    layer = build_layer(kind, d, k)
    assert layer(torch.zeros(2, n, d)).shape == (2, n, d)
    costs = layer_costs(kind, n, d, k)
    assert multiply_adds(layer, n, d) == costs.multiply_adds
    assert sequential_products(layer, n, d) == costs.sequential


def test_table_1_by_hand():
    """Three words of two components, kernels and windows of three."""
    costs = {kind: tuple(layer_costs(kind, 3, 2, 3)) for kind in KINDS}
    assert costs == {
        "self-attention": (36, 2, 1),
        "recurrent": (24, 3, 3),
        "convolutional": (36, 1, 1),
        "dilated convolutional": (36, 1, 1),
        "separable convolutional": (30, 2, 1),
        "restricted self-attention": (36, 2, 2),
    }


@pytest.mark.parametrize(
    ("kind", "of_n", "of_d", "of_k"),
    [
        ("self-attention", 2, 1, 0),
        ("recurrent", 1, 2, 0),
        ("convolutional", 1, 2, 1),
        ("dilated convolutional", 1, 2, 1),
        ("separable convolutional", 1, 2, 0),  # while k is far below d
        ("restricted self-attention", 1, 1, 1),
    ],
)
def test_exponents_of_counted_operations(kind, of_n, of_d, of_k):
    """Fitted to what torch counts, within 2 % of Table 1."""

    def counted(n=32, d=4096, k=3):
        with torch.device("meta"):
            return multiply_adds(build_layer(kind, d, k), n, d)

    sizes, kernels = [128, 256, 512, 1024], [3, 5, 9, 17]
    for power, values, costs in (
        (of_n, sizes, [counted(n=n) for n in sizes]),
        (of_d, sizes, [counted(d=d) for d in sizes]),
        (of_k, kernels, [counted(k=k) for k in kernels]),
    ):
        found = fitted_exponent(values, costs)
        assert found == pytest.approx(power, rel=0.02, abs=0.02)


def test_an_exponent_by_hand():
    """A cube, with a factor; and the middle of a line and a square."""
    assert fitted_exponent([1, 2, 4], [5, 40, 320]) == pytest.approx(3)
    assert fitted_exponent([1, 4], [2, 16]) == pytest.approx(1.5)


def test_where_attention_begins_to_cost_more():
    """Bare, at n = d; with its projections beside an LSTM, at n = 2 d."""
    d = 32
    rnn, lstm = Recurrent(d), LSTM(d, d, batch_first=True)
    bare, whole = SelfAttention(), MultiHead(d, heads=4)
    for n in (1, d - 1, d, d + 1, 2 * d - 1, 2 * d, 2 * d + 1):
        costs = [multiply_adds(x, n, d) for x in (bare, rnn, whole, lstm)]
        assert (costs[0] > costs[1], costs[0] < costs[1]) == (n > d, n < d)
        assert (costs[2] > costs[3]) == (n > 2 * d)
        assert (costs[2] < costs[3]) == (n < 2 * d)
        assert costs[2] > costs[1]


def test_convolutions_beside_recurrence_and_attention():
    """k matrices where a cell has two; separable with k = n, term by term."""
    n, d = 24, 16
    rnn = multiply_adds(Recurrent(d), n, d)
    for k in (2, 3, 5):
        kernel = multiply_adds(build_layer("convolutional", d, k), n, d)
        assert kernel == k / 2 * rnn
    wide = build_layer("separable convolutional", d, n)
    assert multiply_adds(wide, n, d) == n**2 * d + n * d**2
    feed_forward = nn.Sequential(nn.Linear(d, 4 * d), nn.Linear(4 * d, d))
    ours = multiply_adds(SelfAttention(), n, d) + multiply_adds(
        feed_forward, n, d
    )
    assert ours == 2 * n**2 * d + 8 * n * d**2


@pytest.mark.parametrize("r", [3, 5, 31])
def test_restricted_attention_is_attention_with_a_window(r):
    """Also where the window is larger than the sentence."""
    x, i = torch.randn(2, 12, 8), torch.arange(12)
    window = (i[:, None] - i).abs() <= r // 2
    torch.testing.assert_close(
        RestrictedAttention(r)(x), attention(x, x, x, window)[0]
    )


def test_what_is_counted():
    """Products alone; and those of fused kernels, too."""
    assert multiply_adds(nn.Tanh(), 5, 4) == 0
    assert multiply_adds(LSTM(4, 4, batch_first=True), 5, 4) == 8 * 5 * 4**2
    layer = Recurrent(4).double()
    assert multiply_adds(layer, 5, 4) == 2 * 5 * 4**2
    assert layer.weight_hh_l0.device.type == "cpu"  # the layer is left alone
    deep = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    assert sequential_products(deep, 5, 4) == 3


# --- paths


@EACH_KIND
@pytest.mark.parametrize("n", [1, 2, 9, 10, 27, 28])
def test_path_lengths_are_exact(kind, n):
    """Gradients need as many steps as Table 1 has, and reach all by then."""
    steps = path_lengths(kind, n, k=3)
    assert steps.max() == steps[-1, 0] == layer_costs(kind, n, 4, 3).path
    both_sides = kind.endswith("self-attention")
    assert torch.equal(
        steps > 0,
        torch.ones(n, n).bool() if both_sides else torch.ones(n, n).tril() > 0,
    )


def test_paths_by_distance():
    """One word a step, two, powers of three, at once, one to either side."""
    distance = torch.arange(10)
    expected = {
        "self-attention": torch.ones(10),
        "recurrent": distance + 1,
        "convolutional": (distance + 1) // 2,
        "dilated convolutional": torch.tensor([0, 1, 1] + [2] * 6 + [3]),
        "separable convolutional": (distance + 1) // 2,
        "restricted self-attention": distance,
    }
    for kind, steps in expected.items():
        found = path_lengths(kind, 10, k=3)[:, 0]
        assert found.tolist() == steps.clamp(min=1).tolist(), kind


def test_recurrent_steps_end_in_the_recurrent_layer():
    """The first states are right first; after n steps all are."""
    torch.manual_seed(0)
    steps, rnn = RecurrentSteps(6, steps=4), Recurrent(6)
    weights = steps.cell.state_dict().items()
    rnn.load_state_dict({f"{name}_l0": weight for name, weight in weights})
    x = torch.randn(1, 7, 6)
    torch.testing.assert_close(steps(x)[:, :4], rnn(x)[:, :4])
    assert not torch.allclose(steps(x)[:, 4:], rnn(x)[:, 4:])
    steps.steps = 7
    torch.testing.assert_close(steps(x), rnn(x))


def test_gradient_reach_of_a_mask():
    """What a causal mask hides has no gradient."""

    class Causal(nn.Module):
        def forward(self, x):
            mask = torch.ones(x.size(1), x.size(1)).tril() > 0
            return attention(x, x, x, mask)[0]

    reach = gradient_reach(Causal(), 6, 4)
    assert torch.equal(reach, torch.ones(6, 6).tril() > 0)


def test_a_short_path_keeps_the_gradient():
    """Sixty words away it is as large as nearby, or next to nothing."""
    torch.manual_seed(0)
    x = torch.randn(1, 64, 64, requires_grad=True)
    far = {}
    for layer in (Recurrent(64), MultiHead(64, heads=4)):
        (grad,) = torch.autograd.grad(layer(x)[0, -1].sum(), x)
        near, *_, distant = grad[0].norm(dim=-1).flip(0)[1:]
        far[type(layer)] = (distant / near).item()
    assert far[Recurrent] < 1e-6
    assert 0.1 < far[MultiHead] < 10


def test_units_of_a_stack_that_can_run_at_once():
    """Along a diagonal with lateral connections; without, a layer a step."""
    wave = earliest_steps(3, 5, lateral=True)
    assert wave.tolist() == [[1, 2, 3, 4, 5], [2, 3, 4, 5, 6], [3, 4, 5, 6, 7]]
    assert wave.max() == 5 + 3 - 1
    assert wave.flatten().bincount().max() == 3  # units at once
    free = earliest_steps(3, 5, lateral=False)
    assert free.tolist() == [[1] * 5, [2] * 5, [3] * 5]


# --- bad input


def test_sizes_and_names_that_make_no_sense():
    """One line that names what is wrong."""
    for call in (
        lambda: build_layer("recurent", 4),
        lambda: layer_costs("recurent", 4, 4),
    ):
        with pytest.raises(ValueError, match=r"layer, 'recurent'; .*'recurr"):
            call()
    for call, message in (
        (lambda: layer_costs("recurrent", 0, 4), "n: 0, expected at least 1"),
        (lambda: build_layer("recurrent", 2.5), r"d: 2\.5, expected an int"),
        (lambda: build_layer("convolutional", 4, 1), "k: 1, expected at least"),
        (lambda: RestrictedAttention(4), "r: 4, expected an odd number"),
        (lambda: layer_costs(KINDS[-1], 4, 4, 4), "r: 4, expected an odd"),
        (lambda: path_lengths("recurrent", 0), "n: 0, expected at least 1"),
        (lambda: earliest_steps(0, 3, True), "layers: 0, expected at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


# --- what was measured


def test_the_conclusions_follow_from_what_was_measured():
    """Exponents and crossings, computed anew from the stored rows."""
    stored = load_result("complexity")
    for name, found in conclusions(stored["rows"]).items():
        assert stored[name] == found
    for row in stored["rows"]:
        if row["layer"] in KINDS:
            k = stored["window" if "restricted" in row["layer"] else "kernel"]
            costs = layer_costs(row["layer"], row["n"], row["d"], k)
            assert row["multiply_adds"] == costs.multiply_adds


def test_a_crossing_by_hand():
    """Between two lengths, on a line in logarithms; the last one counts."""
    line = {n: n for n in (1, 4, 16, 64)}
    square = {n: n**2 / 8 for n in line}
    assert crossing(square, line) == 8
    assert crossing(line, square) is None  # cheaper for good
    bumpy = {1: 2, 4: 2, 16: 8, 64: 128}
    assert crossing(bumpy, line) == 32
