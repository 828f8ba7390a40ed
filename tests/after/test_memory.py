"""The Neural Turing Machine: addressing, a memory to write on, three tasks."""

from itertools import product

import pytest
import torch
from torch.testing import assert_close

from experiments.memory import sparse, without_writing
from transformer_annotated.after.memory import (
    BITS,
    INPUTS,
    MACHINES,
    OUTPUTS,
    TASKS,
    Head,
    LSTMAlone,
    NeuralTuringMachine,
    bit_error,
    content_weights,
    copy_items,
    interpolate,
    priority_sort,
    read,
    repeat_copy,
    sharpen,
    shift,
    train_machine,
    write,
    wrong_bits,
)
from transformer_annotated.workshop.files import load_result

BACK, STAY, FORWARD = torch.eye(3)[:, None]  # (1, 3) each


def some_weights(sequences=3, slots=5):
    """Random weights that sum to 1."""
    torch.manual_seed(0)
    return torch.randn(sequences, slots).softmax(-1)


def chance():
    """A generator that begins the same each time."""
    return torch.Generator().manual_seed(0)


# --- the four steps


def test_a_large_strength_picks_the_match():
    """Whatever the key's length; and none at all looks everywhere."""
    torch.manual_seed(0)
    memory = torch.randn(4, 6, 8)
    slot = torch.tensor([0, 5, 2, 3])
    key = 0.1 * memory[torch.arange(4), slot]
    sharp = content_weights(memory, key, torch.full((4, 1), 1e4))
    assert_close(sharp, torch.nn.functional.one_hot(slot, 6).float())
    even = content_weights(memory, key, torch.zeros(4, 1))
    assert_close(even, torch.full((4, 6), 1 / 6))


def test_the_gate_chooses_between_content_and_before():
    """One is content, zero is where the head was, a half is between."""
    content, previous = some_weights(2), some_weights(2).flip(-1)
    for gate, expected in (
        (1.0, content),
        (0.0, previous),
        (0.5, (content + previous) / 2),
    ):
        found = interpolate(content, previous, torch.full((2, 1), gate))
        assert_close(found, expected)


def test_a_certain_shift_moves_by_one_and_wraps():
    """Around a circle: the last slot's neighbour is the first."""
    weights = some_weights()
    for kernel, by in ((BACK, -1), (STAY, 0), (FORWARD, 1)):
        assert_close(shift(weights, kernel), weights.roll(by, -1))
    last = torch.tensor([[0.0, 0, 0, 1]])
    assert shift(last, FORWARD).tolist() == [[1, 0, 0, 0]]
    first = torch.tensor([[1.0, 0, 0, 0]])
    assert shift(first, BACK).tolist() == [[0, 0, 0, 1]]


def test_each_sequence_has_its_own_shift():
    """A kernel a row, and an uncertain one spreads the weight."""
    weights = torch.tensor([[0.0, 1, 0, 0]]).repeat(3, 1)
    kernel = torch.stack([BACK[0], FORWARD[0], torch.tensor([0.2, 0.5, 0.3])])
    expected = [[1.0, 0, 0, 0], [0, 0, 1, 0], [0.2, 0.5, 0.3, 0]]
    assert_close(shift(weights, kernel), torch.tensor(expected))


def test_a_large_power_sharpens_to_one_slot():
    """And a power of 1 changes nothing."""
    weights = some_weights()
    assert_close(sharpen(weights, torch.ones(3, 1)), weights)
    squared = weights**2 / (weights**2).sum(-1, keepdim=True)
    assert_close(sharpen(weights, torch.full((3, 1), 2.0)), squared)
    best = torch.nn.functional.one_hot(weights.argmax(-1), 5).float()
    for power in (1e3, 1e6):  # as the formula is written: 0 / 0
        assert_close(sharpen(weights, torch.full((3, 1), power)), best)


# --- memory


def test_erasing_all_and_adding_overwrites():
    """One slot, and no other."""
    torch.manual_seed(0)
    memory, new = torch.randn(2, 4, 3), torch.randn(2, 3)
    at = torch.tensor([[0.0, 1, 0, 0], [0, 0, 0, 1]])
    after = write(memory, at, torch.ones(2, 3), new)
    assert_close(read(after, at), new)
    others = at == 0
    assert_close(after[others], memory[others])
    kept = write(memory, at, torch.zeros(2, 3), new)
    assert_close(read(kept, at), read(memory, at) + new)


def test_reading_is_a_weighted_mean():
    """As in attention: the same weights, the same sum."""
    memory, weights = torch.randn(3, 5, 2), some_weights()
    expected = torch.einsum("bn,bnm->bm", weights, memory)
    assert_close(read(memory, weights), expected)


# --- the machine


def test_weights_sum_to_one():
    """Of both heads, at every step, for any number of slots."""
    torch.manual_seed(0)
    model = NeuralTuringMachine(INPUTS, OUTPUTS)
    for slots in (None, 1, 2, 40):
        x = torch.randn(3, 12, INPUTS)
        logits, reading, writing = model.run(x, slots)
        assert logits.shape == (3, 12, OUTPUTS)
        for weights in (reading, writing):
            assert weights.shape == (3, 12, slots or model.slots)
            assert (weights >= 0).all()
            assert_close(weights.sum(-1), torch.ones(3, 12))


def test_a_head_that_only_moves_forward():
    """With the gate shut and a certain shift it walks along the slots."""
    head = Head(4, 3)
    with torch.no_grad():
        head.commands.weight.zero_()
        head.commands.bias.copy_(
            torch.tensor([0, 0, 0, 0, -30.0, -30, -30, 30, 30])
        )
    weights, memory = torch.eye(5)[:1], torch.zeros(1, 5, 3)
    for step in range(1, 8):
        weights = head(torch.randn(1, 4), memory, weights)
        assert weights.argmax().item() == step % 5
        assert weights.max() > 0.999


def test_gradients_reach_every_parameter():
    """Through all steps: nothing in the machine is a hard choice."""
    torch.manual_seed(0)
    model = NeuralTuringMachine(INPUTS, OUTPUTS)
    x, _ = copy_items(4, chance(), 3)
    model(x).square().sum().backward()
    for name, weight in model.named_parameters():
        assert weight.grad.isfinite().all(), name
        assert weight.grad.abs().sum() > 0, name


def test_answers_do_not_depend_on_what_comes_later():
    """A machine reads from left to right."""
    torch.manual_seed(0)
    model = NeuralTuringMachine(INPUTS, OUTPUTS)
    x = torch.randn(2, 9, INPUTS)
    assert_close(model(x)[:, :5], model(x[:, :5]))


# --- tasks


def test_copy_by_hand():
    """Items, a mark, then silence in which the items are asked for."""
    x, answers = copy_items(2, chance(), 3)
    assert x.shape == (2, 7, INPUTS) and answers.shape == (2, 3, BITS)
    assert_close(x[:, :3, :BITS], answers)
    assert x[:, 3].sum(-1).tolist() == [1, 1] and x[0, 3, BITS] == 1
    assert not x[:, 4:].any()


def test_repeat_copy_by_hand():
    """The number stands beside the mark; an end mark follows the answers."""
    x, answers = repeat_copy(2, chance(), 3, 2)
    assert x.shape == (2, 3 + 1 + 7, INPUTS)
    assert answers.shape == (2, 7, OUTPUTS)
    items = x[:, :3, :BITS]
    assert_close(answers[:, :6, :BITS], torch.cat([items, items], 1))
    assert x[:, 3, BITS:].tolist() == [[1, 0.5], [1, 0.5]]
    assert answers[..., BITS].tolist() == 2 * [[0] * 6 + [1]]


def test_priority_sort_by_hand():
    """The highest priority first; priorities are between −1 and 1."""
    x, answers = priority_sort(50, chance(), 4)
    priority = x[:, :4, BITS + 1]
    assert priority.min() >= -1 and priority.max() < 1
    for row in range(50):
        order = sorted(range(4), key=lambda i: -priority[row, i])
        assert_close(answers[row], x[row, order, :BITS])


def test_wrong_bits_are_counted():
    """By the side of zero."""
    logits = torch.tensor([3.0, -2.0, 0.5, -0.5])
    assert wrong_bits(logits, torch.tensor([1.0, 0, 0, 1])) == 0.5


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("task", TASKS)
def test_every_machine_trains_on_every_task(kind, task):
    """Two updates; the same seed is the same run."""
    model, errors = train_machine(kind, task, seed=1, steps=2, batch=4)
    assert errors == train_machine(kind, task, seed=1, steps=2, batch=4)[1]
    sizes = [high for _, high in TASKS[task][1]]
    assert 0 <= bit_error(model, task, *sizes, sequences=8) <= 1


def test_more_slots_need_no_more_parameters():
    """Nothing learned depends on their number."""
    sizes = [
        sum(p.numel() for p in NeuralTuringMachine(8, 7, slots).parameters())
        for slots in (2, 200)
    ]
    assert sizes[0] == sizes[1]


def test_the_lstm_alone_has_no_fewer_parameters():
    """The comparison does not favour the machine."""
    machine, alone = (
        sum(p.numel() for p in make().parameters())
        for make in (MACHINES["ntm"], LSTMAlone)
    )
    assert machine <= alone < 1.1 * machine


# --- the experiment


def test_a_machine_without_writing_keeps_its_memory_blank():
    """What it reads is what was there at the start; its own copy is whole."""
    torch.manual_seed(0)
    model = NeuralTuringMachine(INPUTS, OUTPUTS, state=False).eval()
    blank, x = without_writing(model), torch.randn(2, 6, INPUTS)
    other = x.clone()
    other[:, :-1] = torch.randn(2, 5, INPUTS)  # the last step is the same
    with torch.no_grad():
        assert_close(blank(x)[:, -1], blank(other)[:, -1])
        assert not torch.allclose(model(x)[:, -1], model(other)[:, -1])


def test_weights_that_can_be_seen_are_stored():
    """By step and slot, with two digits."""
    weights = torch.tensor([[0.0, 1.0], [0.0549, 0.9451], [0.5, 0.06]])
    assert sparse(weights) == [
        [0, 1, 1.0], [1, 1, 0.95], [2, 0, 0.5], [2, 1, 0.06]
    ]  # fmt: skip


def test_how_many_learn_rests_on_enough_seeds():
    """Each machine on each task, three times; all that was run is told."""
    found = load_result("memory")
    runs = {(r["machine"], r["task"]): r["runs"] for r in found["summary"]}
    assert runs.keys() == set(product(MACHINES, TASKS))
    assert min(runs.values()) >= 3
    for row in found["rows"]:
        asked = [tuple(entry["sizes"]) for entry in row["error"]]
        trained = [high for _, high in TASKS[row["task"]][1]]
        assert tuple(trained) in asked  # the largest of training, and beyond
        assert any(sum(sizes) > sum(trained) for sizes in asked)


# --- bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: NeuralTuringMachine(8, 7, slots=0),
            "slots: 0, expected at least 1",
        ),
        (
            lambda: NeuralTuringMachine(8, 7)(torch.zeros(1, 2, 8), 0),
            "slots: 0, expected at least 1",
        ),
        (
            lambda: NeuralTuringMachine(8, 7, width=0),
            "width: 0, expected at least 1",
        ),
        (
            lambda: content_weights(
                torch.ones(1, 0, 3), torch.ones(1, 3), torch.ones(1, 1)
            ),
            "slots: 0, expected at least 1",
        ),
        (
            lambda: content_weights(
                torch.ones(1, 4, 3), torch.ones(1, 5), torch.ones(1, 1)
            ),
            "key: 5 numbers, but a slot has 3",
        ),
        (
            lambda: read(torch.ones(1, 0, 3), torch.ones(1, 0)),
            "slots: 0, expected at least 1",
        ),
        (
            lambda: read(torch.ones(1, 4, 3), torch.ones(1, 5)),
            "weights: 5, but the memory has 4 slots",
        ),
        (
            lambda: write(
                torch.ones(1, 4, 3), torch.ones(1, 4), *torch.ones(2, 1, 2)
            ),
            "erase: 2 numbers, but a slot has 3",
        ),
        (lambda: copy_items(1, chance(), 0), "items: 0, expected at least 1"),
        (
            lambda: repeat_copy(1, chance(), 2, 0),
            "repeats: 0, expected at least 1",
        ),
        (
            lambda: NeuralTuringMachine(8, 7)(torch.zeros(1, 2, 5)),
            r"x: shape \(1, 2, 5\), expected \(B, T, 8\), at least one",
        ),
        (
            lambda: NeuralTuringMachine(8, 7)(torch.zeros(1, 0, 8)),
            r"x: shape \(1, 0, 8\), expected \(B, T, 8\), at least one",
        ),
        (
            lambda: train_machine("ntn", "copy"),
            "unknown kind of machine, 'ntn'; did you mean 'ntm'",
        ),
        (
            lambda: train_machine("ntm", "copi"),
            "unknown task, 'copi'; did you mean 'copy'",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(call, message):
    """With what was given, and what was expected."""
    with pytest.raises(ValueError, match=f"^{message}") as problem:
        call()
    assert "\n" not in str(problem.value)
