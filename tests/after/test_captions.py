"""Scenes whose answers are known, and captioners that look at them."""

from itertools import combinations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from transformer_annotated.after.captions import (
    CAPTIONERS,
    FIRST_DIGIT,
    GRID,
    LONGEST,
    MAP,
    NAMES,
    SIDE,
    WORDS,
    Captioner,
    FeatureMap,
    RecurrentCaptioner,
    caption_table,
    cell_weights,
    compose_scenes,
    digit_steps,
    draw_scenes,
    find_looks,
    train_captioner,
    words_of,
    write_captions,
)
from transformer_annotated.after.digits import load_digits
from transformer_annotated.decoding import beam_search, greedy_decode
from transformer_annotated.text import BOS, EOS, PAD
from transformer_annotated.workshop.models import start_decoding

EACH_KIND = pytest.mark.parametrize("kind", CAPTIONERS)


def chance(seed=0):
    """A generator that begins the same each time."""
    return torch.Generator().manual_seed(seed)


def a_captioner(kind):
    """An untrained captioner in evaluation mode."""
    torch.manual_seed(0)
    return CAPTIONERS[kind]().eval()


# --- scenes


def test_gold_cells_hold_the_digits():
    """In all pairs of cells; every other cell is blank."""
    cells = torch.tensor(list(combinations(range(9), 2)))  # (36, 2)
    images = torch.randint(1, 17, (36, 2, 8, 8), generator=chance())
    digits = torch.randint(10, (36, 2), generator=chance())
    scenes = compose_scenes(images, digits, cells)
    picture = scenes.images.view(36, GRID, 8, GRID, 8).transpose(2, 3)
    picture = picture.flatten(1, 2)  # (36, 9, 8, 8)
    for i, pair in enumerate(cells.tolist()):
        for cell in range(9):
            inside = picture[i, cell]
            if cell in pair:
                assert torch.equal(inside, images[i, pair.index(cell)])
            else:
                assert not inside.any()


def test_captions_say_what_is_where():
    """Above, unless both are in one row; in reading order."""
    images = torch.ones(3, 2, 8, 8, dtype=torch.long)
    digits = torch.tensor([[3, 7], [7, 3], [0, 9]])
    cells = torch.tensor([[1, 4], [2, 3], [6, 8]])
    captions = compose_scenes(images, digits, cells).captions.tolist()
    assert [" ".join(words_of(ids)) for ids in captions] == [
        "a three above a seven",
        "a seven above a three",
        "a zero left of a nine",
    ]
    for ids in captions:
        assert ids[0] == BOS and ids.count(EOS) == 1
        assert set(ids[ids.index(EOS) + 1 :]) <= {PAD}


def test_all_captions_differ():
    """A caption can be turned back into relation and digits."""
    table = caption_table().view(-1, LONGEST)
    assert len(table.unique(dim=0)) == len(table) == 200


def test_digit_steps_are_those_of_the_digits():
    """The labels at these steps are the digits' names, in order."""
    scenes = draw_scenes(50, chance())
    labels = scenes.captions[:, 1:].gather(1, digit_steps(scenes.captions))
    assert_close(labels - FIRST_DIGIT, scenes.digits)


def test_test_scenes_have_digits_of_their_own():
    """No handwriting of testing occurs in training."""
    images, _ = load_digits()
    images = (16 * images).round().long().flatten(1)
    parts = {
        test: {tuple(image.tolist()) for image in part}
        for test, part in ((True, images[-500:]), (False, images[:-500]))
    }
    for test in (True, False):
        scenes = draw_scenes(40, chance(), test)
        picture = scenes.images.view(40, GRID, 8, GRID, 8).transpose(2, 3)
        picture = picture.reshape(40, 9, 64)
        for i, pair in enumerate(scenes.cells.tolist()):
            for cell in pair:
                assert tuple(picture[i, cell].tolist()) in parts[test]


def test_the_same_seed_draws_the_same_scenes():
    """And another seed others."""
    for first, second in zip(
        draw_scenes(5, chance()), draw_scenes(5, chance()), strict=True
    ):
        assert torch.equal(first, second)
    other = draw_scenes(5, chance(1)).images
    assert not torch.equal(draw_scenes(5, chance()).images, other)


# --- looking


def test_cells_are_sums_of_their_places():
    """Each place belongs to the cell that contains it."""
    for place in range(MAP * MAP):
        row, column = divmod(place, MAP)
        weights = torch.zeros(MAP * MAP)
        weights[place] = 1
        cell = row // 2 * GRID + column // 2
        assert cell_weights(weights)[cell] == 1
    torch.manual_seed(0)
    maps = torch.randn(2, 3, 4, MAP * MAP).softmax(-1)
    assert_close(cell_weights(maps).sum(-1), torch.ones(2, 3, 4))


@EACH_KIND
def test_a_blank_picture_is_looked_at_evenly(kind):
    """Without biases and positions no place differs from another."""
    model = a_captioner(kind)
    with torch.no_grad():
        model.encoder.positions.zero_()
        for layer in model.encoder.modules():
            if isinstance(layer, nn.Conv2d):
                layer.bias.zero_()
    maps = model.maps(
        torch.zeros(1, SIDE * SIDE, dtype=torch.long),
        draw_scenes(1, chance()).captions[:, :-1],
    )
    assert_close(maps, torch.full_like(maps, 1 / (MAP * MAP)))


@EACH_KIND
def test_maps_sum_to_one(kind):
    """For each layer and word; heads are averaged."""
    scenes = draw_scenes(3, chance())
    model = a_captioner(kind)
    maps = model.maps(scenes.images, scenes.captions[:, :-1])
    layers = 2 if kind == "transformer" else 1
    assert maps.shape == (layers, 3, LONGEST - 1, MAP * MAP)
    assert_close(maps.sum(-1), torch.ones(maps.shape[:-1]))


@EACH_KIND
def test_maps_are_those_that_the_model_used(kind):
    """Where the map is zero, the picture may change without effect."""
    scenes = draw_scenes(2, chance())
    model, inputs = a_captioner(kind), scenes.captions[:, :-1]
    memory = model.encode(scenes.images)
    with torch.no_grad():
        if kind == "transformer":
            layer = model.decoder.layers[0]
            x = model.target_positions(model.embeddings(inputs))
            x = x + layer.self_attention(
                *3 * [layer.self_attention_residual.norm(x)],
                torch.ones(7, 7).tril().bool(),
            )
            query = layer.cross_attention_residual.norm(x)
            expected = layer.cross_attention.weights(query, memory).mean(1)
        else:
            states, _ = model.read(inputs, model.start(memory, scenes.images))
            w_q, w_k, u = model.attention.learned
            hidden = (states @ w_q)[:, :, None] + (memory @ w_k)[:, None]
            expected = (hidden.tanh() @ u).softmax(-1)
    assert_close(model.maps(scenes.images, inputs)[0], expected)


@EACH_KIND
def test_looks_say_what_was_named_and_where(kind):
    """The same as asking word by word."""
    scenes, model = draw_scenes(4, chance()), a_captioner(kind)
    looks = find_looks(model, scenes)
    inputs = scenes.captions[:, :-1]
    logits = model(scenes.images, inputs)
    weights = cell_weights(model.maps(scenes.images, inputs))
    for i, steps in enumerate(digit_steps(scenes.captions).tolist()):
        for which, step in enumerate(steps):
            named = logits[i, step].argmax().item() - FIRST_DIGIT
            assert looks.named[i, which] == named
            at = weights[:, i, step]  # (layers, 9)
            assert_close(looks.cells[:, i, which], at.argmax(-1))
            gold = scenes.cells[i, which]
            assert_close(looks.on_digit[:, i, which], at[:, gold])


# --- writing


@EACH_KIND
def test_word_by_word_is_at_once(kind):
    """Cached decoding of pictures, with rows that change places."""
    scenes, model = draw_scenes(4, chance()), a_captioner(kind)
    inputs = scenes.captions[:, :-1].clamp(min=4)  # without padding
    with torch.no_grad():
        whole = model(scenes.images, inputs)
    decoder = start_decoding(model, scenes.images)
    rows = torch.arange(4)
    for t in range(inputs.size(1)):
        found = decoder.next_logits(inputs[rows, t])
        seen = found.isfinite()  # padding and start never follow
        assert_close(found[seen], whole[rows, t][seen], rtol=1e-4, atol=1e-5)
        if t == 2:
            order = torch.tensor([2, 0, 3])
            decoder.reorder(order)
            rows = rows[order]


@EACH_KIND
def test_beam_search_is_unchanged_on_images(kind):
    """A beam of one is the greedy choice, asked of the whole model."""
    scenes, model = draw_scenes(3, chance()), a_captioner(kind)
    greedy = greedy_decode(model, scenes.images, extra_length=0)
    for i, (best,) in enumerate(
        beam_search(model, scenes.images, beam=1, extra_length=0)
    ):
        assert best.tokens == greedy[i]
    tokens = torch.tensor([[BOS]])
    with torch.no_grad():
        for _ in range(6):
            logits = model(scenes.images[:1], tokens)[0, -1]
            logits[[PAD, BOS]] = -torch.inf
            tokens = torch.cat([tokens, logits.argmax().view(1, 1)], 1)
    ids = tokens[0, 1:].tolist()
    ids = ids[: ids.index(EOS)] if EOS in ids else ids
    assert greedy[0][: len(ids)] == ids


@EACH_KIND
def test_a_captioner_learns_one_scene_by_heart(kind):
    """Then beam search writes its caption, and only the image tells which."""
    scenes = draw_scenes(2, chance(3))
    torch.manual_seed(0)
    model = CAPTIONERS[kind]()
    adam = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(120):
        logits = model(scenes.images, scenes.captions[:, :-1])
        loss = nn.functional.cross_entropy(
            logits.mT, scenes.captions[:, 1:], ignore_index=PAD
        )
        adam.zero_grad()
        loss.backward()
        adam.step()
    expected = [" ".join(words_of(ids)) for ids in scenes.captions.tolist()]
    assert len(set(expected)) == 2
    assert write_captions(model.eval(), scenes.images) == expected


@EACH_KIND
def test_training_is_repeatable(kind):
    """The same seed, the same losses."""
    first, second = (
        train_captioner(kind, seed=1, steps=2, batch=4)[1] for _ in range(2)
    )
    assert first == second and len(first) == 2


def test_names_of_ten_digits():
    """A word for each, behind all the others."""
    assert len(NAMES) == 10 and WORDS[FIRST_DIGIT:] == NAMES


# --- bad input


def images(*shape):
    """Pixels without ink."""
    return torch.zeros(shape, dtype=torch.long)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draw_scenes(0, chance()), "scenes: 0, expected at least 1"),
        (
            lambda: compose_scenes(images(1, 0, 8, 8), images(1, 0), images(1)),
            r"images: shape \(1, 0, 8, 8\), expected \(B, 2, 8, 8\), at least",
        ),
        (
            lambda: compose_scenes(
                images(0, 2, 8, 8), images(0, 2), images(0, 2)
            ),
            r"images: shape \(0, 2, 8, 8\), expected \(B, 2, 8, 8\), at least",
        ),
        (
            lambda: compose_scenes(
                images(2, 2, 8, 8), images(3, 2), images(2, 2)
            ),
            r"digits: shape \(3, 2\), but there are 2 scenes with 2 digits",
        ),
        (
            lambda: compose_scenes(
                images(2, 2, 8, 8), images(2, 2), images(2, 2)
            ),
            "cells: expected two different ones in each scene",
        ),
        (
            lambda: compose_scenes(
                images(1, 2, 8, 8), images(1, 2), torch.tensor([[3, 9]])
            ),
            "cells: 9, expected at most 8",
        ),
        (
            lambda: compose_scenes(
                images(1, 2, 8, 8),
                torch.tensor([[3, 10]]),
                torch.tensor([[1, 2]]),
            ),
            "digits: 10, expected at most 9",
        ),
        (
            lambda: FeatureMap(8)(images(1, 64)),
            r"images: shape \(1, 64\), expected \(B, 576\), a row of pixels",
        ),
        (
            lambda: write_captions(Captioner(), images(0, 576)),
            r"images: shape \(0, 576\), expected \(B, 576\), a row of pixels",
        ),
        (
            lambda: RecurrentCaptioner().encode(images(2, 24, 24)),
            r"images: shape \(2, 24, 24\), expected \(B, 576\), a row of",
        ),
        (
            lambda: train_captioner("lstn"),
            "unknown captioner, 'lstn'; did you mean 'lstm'",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(call, message):
    """With what was given, and what was expected."""
    with pytest.raises(ValueError, match=f"^{message}") as problem:
        call()
    assert "\n" not in str(problem.value)
