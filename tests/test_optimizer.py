"""The schedule by its formula, Adam by hand, and runs that are resumed."""

import copy
import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from transformer_annotated import Transformer, TransformerConfig
from transformer_annotated.optimizer import NoamOptimizer, adam, noam_rate

SCHEDULES = {
    "d_model": st.integers(1, 4096),
    "warmup": st.integers(1, 20_000),
    "factor": st.floats(0.01, 10),
}


def weights(seed=0, dtype=torch.float32):
    """A matrix and a vector to train."""
    generator = torch.Generator().manual_seed(seed)
    return [
        nn.Parameter(torch.randn(*shape, generator=generator, dtype=dtype))
        for shape in ((4, 3), (5,))
    ]


def give_gradients(parameters, seed):
    """Draw a gradient for each parameter, of very different sizes."""
    generator = torch.Generator().manual_seed(seed)
    for i, p in enumerate(parameters):
        p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)
        p.grad *= 10.0 ** (-3 * i)


def run(optimizer, parameters, updates):
    """Take updates, each with gradients of its own."""
    for seed in updates:
        optimizer.zero_grad()
        give_gradients(parameters, seed)
        optimizer.step()


def save_and_load(state):
    """The state after a file that may hold no code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# The schedule


@pytest.mark.parametrize(
    ("d_model", "peak"), [(512, 6.987712e-4), (1024, 4.941059e-4)]
)
def test_peak_of_the_papers_models(d_model, peak):
    """Base and big model reach their highest rate at step 4,000."""
    assert noam_rate(4000, d_model) == pytest.approx(peak, rel=1e-6)
    assert noam_rate(3999, d_model) < peak
    assert noam_rate(4001, d_model) < peak


@pytest.mark.parametrize(
    ("step", "rate"),
    [(1, 1.746928e-7), (2000, 3.493856e-4), (16_000, 3.493856e-4)],
)
def test_rate_of_the_base_model(step, rate):
    """Known answers on the way up and on the way down."""
    assert noam_rate(step, 512) == pytest.approx(rate, rel=1e-6)


def test_the_warmup_of_the_paper_is_the_default():
    """4,000 steps and the factor 1, for function and optimiser."""
    assert noam_rate(7, 512) == noam_rate(7, 512, 4000, 1.0)
    optimizer = NoamOptimizer(weights(), 512)
    assert optimizer.schedule == {"d_model": 512, "warmup": 4000, "factor": 1.0}


@given(**SCHEDULES, share=st.floats(0, 1))
def test_rises_linearly_during_the_warmup(d_model, warmup, factor, share):
    """Until the warm-up ends the rate is proportional to the step."""
    step = 1 + int(share * (warmup - 1))
    first = noam_rate(1, d_model, warmup, factor)
    assert noam_rate(step, d_model, warmup, factor) == pytest.approx(
        step * first, rel=1e-9
    )


@given(**SCHEDULES, times=st.integers(1, 1000))
def test_falls_as_the_inverse_square_root(d_model, warmup, factor, times):
    """After k times the warm-up the rate is the peak divided by √k."""
    peak = noam_rate(warmup, d_model, warmup, factor)
    assert peak == pytest.approx(factor * (d_model * warmup) ** -0.5, rel=1e-9)
    assert noam_rate(times * warmup, d_model, warmup, factor) == pytest.approx(
        peak / times**0.5, rel=1e-9
    )


@given(**SCHEDULES, step=st.integers(1, 200_000))
def test_rate_rises_to_the_peak_and_then_falls(d_model, warmup, factor, step):
    """Strictly up before the end of the warm-up, strictly down after it."""
    now = noam_rate(step, d_model, warmup, factor)
    later = noam_rate(step + 1, d_model, warmup, factor)
    assert (later > now) if step < warmup else (later < now)


@pytest.mark.parametrize("name", ["step", "d_model", "warmup"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_sizes_below_one_are_refused(name, value):
    """Above all step 0, where the formula has no value."""
    arguments = {"step": 1, "d_model": 512, "warmup": 4000, name: value}
    with pytest.raises(ValueError, match=f"^{name}: {value}, expected a"):
        noam_rate(**arguments)


@pytest.mark.parametrize("factor", [0, -1.0, float("inf"), float("nan")])
def test_factors_that_teach_nothing_are_refused(factor):
    """By the function, and by the optimiser before the first step."""
    with pytest.raises(ValueError, match=r"^factor: "):
        noam_rate(1, 512, factor=factor)
    with pytest.raises(ValueError, match=r"^factor: "):
        NoamOptimizer(weights(), 512, factor=factor)


@pytest.mark.parametrize("name", ["d_model", "warmup"])
def test_optimizer_refuses_a_schedule_at_once(name):
    """A bad schedule is refused when it is given, not at the first step."""
    with pytest.raises(ValueError, match=f"^{name}: 0, expected"):
        NoamOptimizer(weights(), **{"d_model": 512, name: 0})


# Adam


def test_adam_has_the_papers_values():
    """β₁ = 0.9, β₂ = 0.98, ε = 1e-9, no weight decay, no other variant."""
    for optimizer in (adam(weights()), NoamOptimizer(weights(), 8).adam):
        (group,) = optimizer.param_groups
        assert group["betas"] == (0.9, 0.98)
        assert group["eps"] == 1e-9
        assert group["lr"] == 0
        assert group["weight_decay"] == 0
        assert not group["amsgrad"]
        assert not group["maximize"]


def test_adam_does_nothing_until_a_rate_is_set():
    """Its learning rate is 0."""
    parameters = weights()
    before = copy.deepcopy(parameters)
    run(adam(parameters), parameters, range(2))
    assert_close(parameters, before, rtol=0, atol=0)


def test_updates_are_adams_by_hand():
    """Moments, bias correction, root, ε outside the root, rate of the step."""
    parameters = weights(dtype=torch.float64)
    expected = [p.detach().clone() for p in parameters]
    m = [torch.zeros_like(p) for p in expected]
    v = [torch.zeros_like(p) for p in expected]
    optimizer = NoamOptimizer(parameters, d_model=16, warmup=4, factor=3.0)
    for step in range(1, 11):
        give_gradients(parameters, step)
        rate = 3 * 16**-0.5 * min(step**-0.5, step * 4**-1.5)
        for i, p in enumerate(parameters):
            m[i] = 0.9 * m[i] + 0.1 * p.grad
            v[i] = 0.98 * v[i] + 0.02 * p.grad**2
            mean, square = m[i] / (1 - 0.9**step), v[i] / (1 - 0.98**step)
            expected[i] -= rate * mean / (square.sqrt() + 1e-9)
        optimizer.step()
        assert optimizer.steps == step
        assert optimizer.rate == pytest.approx(rate, rel=1e-12)
        assert_close(parameters, expected, rtol=1e-10, atol=1e-12)


def test_epsilon_counts_where_gradients_are_tiny():
    """A gradient as small as ε moves a parameter half as far, not as far."""
    parameter = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = NoamOptimizer([parameter], d_model=1, warmup=1)
    parameter.grad = torch.full_like(parameter, 1e-9)
    optimizer.step()
    assert parameter.item() == pytest.approx(-0.5, rel=1e-6)


def test_fused_adam_agrees_with_the_plain_loop():
    """The fast kernel is used on this device and gives the same numbers."""
    fast, slow = weights(), weights()
    fused = adam(fast)
    plain = torch.optim.Adam(
        slow, lr=0.0, betas=(0.9, 0.98), eps=1e-9, foreach=False, fused=False
    )
    assert fused.param_groups[0]["fused"]
    for optimizer, parameters in ((fused, fast), (plain, slow)):
        optimizer.param_groups[0]["lr"] = 1e-2
        run(optimizer, parameters, range(50))
    assert_close(fast, slow, rtol=1e-5, atol=1e-6)


def test_fused_adam_only_where_there_is_one():
    """A device without the kernel gets the plain one instead of an error."""
    parameters = [nn.Parameter(torch.zeros(3, device="meta"))]
    optimizer = NoamOptimizer([*parameters, *weights()], 8)
    assert not optimizer.adam.param_groups[0]["fused"]
    only = NoamOptimizer(parameters, 8)
    parameters[0].grad = torch.zeros(3, device="meta")
    only.step()
    assert only.steps == 1


def test_agrees_with_a_scheduler_of_torch():
    """LambdaLR counts from 0 and the rate from 1; the runs are the same."""
    ours, theirs = weights(), weights()
    noam = NoamOptimizer(ours, d_model=16, warmup=5, factor=2.0)
    plain = torch.optim.Adam(
        theirs, lr=2.0 * 16**-0.5, betas=(0.9, 0.98), eps=1e-9, fused=True
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        plain, lambda n: min((n + 1) ** -0.5, (n + 1) * 5**-1.5)
    )
    for seed in range(20):
        give_gradients(ours, seed)
        give_gradients(theirs, seed)
        noam.step()
        assert noam.rate == pytest.approx(scheduler.get_last_lr()[0])
        plain.step()
        scheduler.step()
    assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


# The optimiser


def test_one_tick_for_each_update():
    """Accumulated gradients are one update; looking at the rate is none."""
    parameters = weights()
    optimizer = NoamOptimizer(parameters, 16, warmup=10)
    assert (optimizer.steps, optimizer.rate) == (0, 0.0)
    for _ in range(3):  # three parts of a batch
        sum((p**2).sum() for p in parameters).backward()
    optimizer.step()
    assert (optimizer.rate, optimizer.rate) == (noam_rate(1, 16, 10),) * 2
    assert optimizer.steps == 1


def test_zero_grad_forgets():
    """After it, no parameter has a gradient, and none moves by it."""
    parameters = weights()
    optimizer = NoamOptimizer(parameters, 16)
    give_gradients(parameters, 0)
    optimizer.zero_grad()
    assert all(p.grad is None for p in parameters)


def test_parameters_without_a_gradient_stay():
    """A parameter that was not used, or is frozen, is left alone."""
    used, unused = weights()
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    before = [p.detach().clone() for p in (used, unused, frozen)]
    optimizer = NoamOptimizer([used, unused, frozen], 16, warmup=1)
    give_gradients([used], 0)
    optimizer.step()
    assert not torch.equal(used, before[0])
    assert torch.equal(unused, before[1])
    assert torch.equal(frozen, before[2])
    assert set(optimizer.state_dict()["adam"]["state"]) == {0}


def test_parameters_may_be_a_generator():
    """As ``model.parameters()`` is one; a tied matrix comes once."""
    model = Transformer(TransformerConfig(9, 1, 8, 8, 2, dropout=0.0))
    optimizer = NoamOptimizer(model.parameters(), 8)
    (group,) = optimizer.adam.param_groups
    assert len(group["params"]) == len(list(model.parameters()))


def test_no_parameters_are_refused():
    """An empty list is a mistake."""
    with pytest.raises(ValueError, match="empty"):
        NoamOptimizer([], 8)


def test_trains_a_compiled_model():
    """The parameters of a compiled model are the model's own."""
    model = nn.Linear(3, 1, bias=False)
    compiled = torch.compile(model, backend="eager")
    optimizer = NoamOptimizer(compiled.parameters(), 16, warmup=1)
    before = model.weight.detach().clone()
    compiled(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert_close(before - model.weight, torch.full((1, 3), 0.25))


# Resuming


@pytest.mark.parametrize("before", [0, 1, 3, 8])
def test_resumed_run_is_the_same_to_the_last_bit(before):
    """Stopped within or after the warm-up, saved, loaded, continued."""
    whole, first = weights(), weights()
    run(NoamOptimizer(whole, 16, warmup=5), whole, range(12))

    stopped = NoamOptimizer(first, 16, warmup=5)
    run(stopped, first, range(before))
    second = [nn.Parameter(p.detach().clone()) for p in first]
    resumed = NoamOptimizer(second, 16, warmup=5)
    resumed.load_state_dict(save_and_load(stopped.state_dict()))
    assert (resumed.steps, resumed.rate) == (stopped.steps, stopped.rate)
    run(resumed, second, range(before, 12))
    assert resumed.steps == 12
    for p, q in zip(whole, second, strict=True):
        assert torch.equal(p, q)


def test_resumed_run_of_a_model_is_the_same():
    """The whole model, with a parameter that never has a gradient."""
    config = TransformerConfig(9, 1, 8, 8, 2, dropout=0.0)

    def losses(model, optimizer, steps):
        for step in steps:
            torch.manual_seed(step)
            src, tgt = torch.randint(1, 9, (2, 2, 4))
            loss = model(src, tgt).logsumexp(-1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()

    torch.manual_seed(0)
    model = Transformer(config)
    model.register_parameter("unused", nn.Parameter(torch.ones(1)))
    twin = copy.deepcopy(model)
    optimizer = NoamOptimizer(model.parameters(), 8, warmup=2)
    whole = list(losses(model, optimizer, range(6)))

    optimizer = NoamOptimizer(twin.parameters(), 8, warmup=2)
    parts = list(losses(twin, optimizer, range(3)))
    saved = save_and_load([twin.state_dict(), optimizer.state_dict()])
    again = copy.deepcopy(twin)
    again.load_state_dict(saved[0])
    optimizer = NoamOptimizer(again.parameters(), 8, warmup=2)
    optimizer.load_state_dict(saved[1])
    assert parts + list(losses(again, optimizer, range(3, 6))) == whole


def test_loaded_state_is_a_copy():
    """Two optimisers with one origin do not change each other's moments."""
    first, second = weights(), weights()
    one, two = NoamOptimizer(first, 16), NoamOptimizer(second, 16)
    run(one, first, range(2))
    run(two, second, range(2))
    expected = copy.deepcopy(two.state_dict())
    two.load_state_dict(one.state_dict())
    run(one, first, range(2, 4))
    assert_close(two.state_dict()["adam"]["state"], expected["adam"]["state"])


def test_settings_come_from_the_constructor():
    """A state from a device without the fused kernel does not switch it off."""
    first, second = weights(), weights()
    one, two = NoamOptimizer(first, 16), NoamOptimizer(second, 16)
    run(one, first, range(2))
    state = save_and_load(one.state_dict())
    state["adam"]["param_groups"][0].update(fused=False, eps=1.0)
    two.load_state_dict(state)
    (group,) = two.adam.param_groups
    assert group["fused"] and group["eps"] == 1e-9


def test_state_of_another_model_is_refused():
    """With both sizes named, and before anything changes."""
    one = NoamOptimizer(weights(), 16)
    run(one, one.adam.param_groups[0]["params"], range(2))
    state = one.state_dict()
    matrix, vector = weights()
    fewer = NoamOptimizer([matrix], 16)
    with pytest.raises(ValueError, match="of 2 parameters, but there are 1"):
        fewer.load_state_dict(state)
    more = NoamOptimizer([matrix, vector, *weights()], 16)
    with pytest.raises(ValueError, match="of 2 parameters, but there are 4"):
        more.load_state_dict(state)
    other = NoamOptimizer([nn.Parameter(torch.ones(4, 4)), vector], 16)
    with pytest.raises(
        ValueError, match=r"0 has the shape \(4, 3\), .*\(4, 4\)"
    ):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="expected steps and adam"):
        other.load_state_dict(state["adam"])
    for optimizer in (fewer, more, other):
        assert optimizer.steps == 0 and not optimizer.adam.state
