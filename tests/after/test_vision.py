"""Pictures as sentences: what a ViT computes, and what it does not know."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers import ViTConfig, ViTForImageClassification

from experiments import vision as experiment
from transformer_annotated.after.vision import (
    DIGITS,
    KINDS,
    LatentTransformer,
    SmallCNN,
    SmallMLP,
    VisionConfig,
    VisionTransformer,
    build_model,
    grid_positions,
    patches,
    predict,
    teach,
    train_images,
    window_mask,
)
from transformer_annotated.positions import shift_matrix
from transformer_annotated.workshop.files import load_result
from transformer_annotated.workshop.models import record_attention

EACH_KIND = pytest.mark.parametrize("kind", KINDS)
WIDE = VisionConfig(7, 8, 12, 3, 4, layers=2, d_model=32, d_ff=48, heads=4)


def a_model(config=WIDE):
    """A small model with lively positions, in evaluation mode."""
    torch.manual_seed(0)
    model = VisionTransformer(config).eval()
    if config.positions == "learned":
        nn.init.normal_(model.table)
    return model


def put_together(parts, rows, columns, channels, patch):
    """Images ``(B, C, H, W)`` of patches ``(B, N, C * p * p)``."""
    x = parts.view(-1, rows, columns, channels, patch, patch)
    x = x.permute(0, 3, 1, 4, 2, 5)
    return x.reshape(-1, channels, rows * patch, columns * patch)


# --- patches and positions


def test_patches_by_hand():
    """Row by row, and each of them row by row."""
    image = torch.arange(16).view(1, 1, 4, 4)
    assert patches(image, 2).tolist() == [
        [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    ]
    colours = torch.arange(8).view(1, 2, 2, 2)
    assert patches(colours, 2).tolist() == [[list(range(8))]]
    x = torch.rand(3, 2, 6, 9)
    assert put_together(patches(x, 3), 2, 3, 2, 3).equal(x)


@pytest.mark.parametrize("patch", [1, 2, 4])
def test_patches_are_a_convolution_with_steps(patch):
    """Of as many pixels as a kernel is wide."""
    torch.manual_seed(0)
    images, embed = torch.rand(2, 3, 8, 12), nn.Linear(3 * patch**2, 16)
    kernels = embed.weight.view(16, 3, patch, patch)
    expected = nn.functional.conv2d(images, kernels, embed.bias, patch)
    found = embed(patches(images, patch))
    assert_close(found, expected.flatten(2).mT, rtol=1e-4, atol=1e-5)


def test_rows_and_columns_turn_apart():
    """A row down turns the first half alone, a column right the second."""
    grid = grid_positions(4, 5, 24).view(4, 5, 24)
    turn, stay = shift_matrix(1, 12), torch.eye(12)
    down, right = torch.block_diag(turn, stay), torch.block_diag(stay, turn)
    assert_close(grid[1:], grid[:-1] @ down.T, rtol=1e-4, atol=1e-5)
    assert_close(grid[:, 1:], grid[:, :-1] @ right.T, rtol=1e-4, atol=1e-5)
    assert len({tuple(row) for row in grid.flatten(0, 1).tolist()}) == 20


def test_windows_by_hand():
    """Neighbours in the plane, not on the line; the class token sees all."""
    mask = window_mask(3, 4, 1)
    assert mask.shape == (13, 13) and mask[0].all() and mask[:, 0].all()
    near = mask[1:, 1:]
    for i, j in product(range(12), repeat=2):
        apart = max(abs(i // 4 - j // 4), abs(i % 4 - j % 4))
        assert near[i, j] == (apart <= 1)
    assert not near[3, 4] and near[3, 7]  # the end of a row, the one below


# --- the model


def copied(ours, theirs):
    """Give our model the weights of theirs."""
    p = ours.config.patch
    convolution = theirs.vit.embeddings.patch_embeddings.projection
    pairs = [(ours.output, theirs.classifier),
             (ours.encoder.norm, theirs.vit.layernorm)]  # fmt: skip
    for a, b in zip(ours.encoder.layers, theirs.vit.layers, strict=True):
        attention, other = a.self_attention, b.attention
        pairs += [
            (attention.w_q, other.q_proj),
            (attention.w_k, other.k_proj),
            (attention.w_v, other.v_proj),
            (attention.w_o, other.o_proj),
            (a.feed_forward.w_1, b.mlp.fc1),
            (a.feed_forward.w_2, b.mlp.fc2),
            (a.self_attention_residual.norm, b.layernorm_before),
            (a.feed_forward_residual.norm, b.layernorm_after),
        ]
    with torch.no_grad():
        ours.embed.weight.copy_(convolution.weight.view(-1, 3 * p * p))
        ours.embed.bias.copy_(convolution.bias)
        ours.class_token.copy_(theirs.vit.embeddings.cls_token[0, 0])
        ours.table.copy_(theirs.vit.embeddings.position_embeddings[0])
        for a, b in pairs:
            a.load_state_dict(b.state_dict())
    return ours


def test_logits_are_those_of_transformers():
    """With copied weights, within 1e-5; the largest difference is printed."""
    torch.manual_seed(0)
    theirs = ViTForImageClassification(
        ViTConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=48, image_size=(8, 12), patch_size=4,
            num_labels=7,
        )
    ).eval()  # fmt: skip
    for parameter in theirs.parameters():  # zeros would hide mistakes
        nn.init.normal_(parameter, std=0.3)
    ours = copied(VisionTransformer(WIDE), theirs).eval()
    images = torch.randn(4, 3, 8, 12)
    with torch.no_grad():
        expected, found = theirs(images).logits, ours(images)
    print(f"ViT logits {(found - expected).abs().max():.1e}")
    assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_vit_base_has_its_86_million_parameters():
    """By default; from shapes alone."""
    with torch.device("meta"):
        base = VisionTransformer(VisionConfig())
    assert sum(p.numel() for p in base.parameters()) == 86_567_656
    assert base.config.grid == (14, 14)


@pytest.mark.parametrize("positions", ["learned", "grid"])
def test_patches_in_another_order_with_their_positions(positions):
    """Are the same picture: all that a ViT knows of the plane is the table."""
    model = a_model(replace(WIDE, positions=positions))
    images, order = torch.rand(5, 3, 8, 12), torch.randperm(6)
    dealt = put_together(patches(images, 4)[:, order], 2, 3, 3, 4)
    with torch.no_grad():
        before, unplaced = model(images), model(dealt)
        model.table[1:] = model.table[1:][order]
        after = model(dealt)
    assert_close(after, before, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(unplaced, before, atol=1e-2)


def test_without_positions_a_picture_is_a_bag():
    """And patches in any order have the same logits."""
    model = a_model(replace(WIDE, positions="none"))
    images, order = torch.rand(5, 3, 8, 12), torch.randperm(6)
    dealt = put_together(patches(images, 4)[:, order], 2, 3, 3, 4)
    with torch.no_grad():
        assert_close(model(dealt), model(images), rtol=1e-4, atol=1e-5)
    assert not any(p is model.table for p in trained_parameters(model))


def trained_parameters(model):
    """Those that a gradient reaches."""
    return [p for p in model.parameters() if p.requires_grad]


@pytest.mark.parametrize("window", [0, 1])
def test_hidden_patches_change_nothing(window):
    """Whatever is painted on them; and weights on them are zero."""
    model = a_model(replace(WIDE, window=window))
    images, visible = torch.rand(3, 3, 8, 12), torch.rand(3, 6) < 0.5
    painted = patches(images, 4)
    painted[~visible] = torch.rand(48)
    other = put_together(painted, 2, 3, 3, 4)
    with torch.no_grad(), record_attention(model) as seen:
        found = model(images, visible)
        assert_close(model(other, visible), found, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(model(other), model(images), atol=1e-3)
        everything = torch.ones_like(visible)
        assert_close(model(images, everything), model(images))
    for weights in seen[:2]:  # (B, h, N + 1, N + 1)
        hidden = ~visible[:, None, None].expand(-1, 4, 7, -1)
        assert weights[..., 1:][hidden].eq(0).all()


def test_windows_keep_far_patches_apart():
    """Weights are zero outside of the window, in every layer and head."""
    config = replace(DIGITS, window=1)
    model = a_model(config)
    with torch.no_grad(), record_attention(model) as seen:
        model(torch.rand(2, 1, 8, 8))
    near = window_mask(4, 4, 1)
    assert len(seen) == 2
    for weights in seen:
        assert weights[:, :, ~near].eq(0).all()
        assert weights[:, :, near].gt(0).all()


def test_latents_compare_few_with_many():
    """Eight look at 64 pixels, and then at one another."""
    model = build_model("latents").eval()
    assert isinstance(model, LatentTransformer)
    with torch.no_grad(), record_attention(model) as seen:
        model(torch.rand(2, 1, 8, 8))
    assert [tuple(w.shape[-2:]) for w in seen] == [(8, 64), (8, 8)]


# --- rivals and training


@EACH_KIND
def test_models_have_about_as_many_parameters(kind):
    """Within four per cent of the ViT's."""
    sizes = [
        sum(p.numel() for p in trained_parameters(build_model(k)))
        for k in (kind, "ViT")
    ]
    assert abs(sizes[0] / sizes[1] - 1) < 0.04
    stored = load_result("vision")["parameters"]
    assert stored[kind] == sizes[0]


@EACH_KIND
def test_training_is_the_same_each_time(kind):
    """A seed decides all, whatever else was drawn before."""
    torch.manual_seed(0)
    images, labels = torch.rand(20, 1, 8, 8), torch.arange(20) % 10

    def once(draws):
        torch.manual_seed(3)
        model = build_model(kind)
        torch.rand(draws)
        return train_images(model, images, labels, 4, seed=1), model

    (losses, model), (again, _) = once(1), once(2)
    assert losses == again and len(losses) == 4
    assert predict(model, images).shape == (20,)


def test_a_student_becomes_its_teacher():
    """Probabilities as targets: cross-entropy is least where they agree."""
    torch.manual_seed(0)
    teacher, student = build_model("MLP"), build_model("MLP")
    images = torch.rand(30, 1, 8, 8)
    targets = teach(teacher, images, 4.0)
    assert_close(targets.sum(-1), torch.ones(30))
    hotter = teach(teacher, images, 8.0)
    assert (hotter.amax(-1) < targets.amax(-1)).all()

    def apart():
        said = teach(student, images, 4.0)
        return (said - targets).abs().max()

    before = apart()
    losses = train_images(student, images, targets, 200, temperature=4.0)
    assert apart() < before / 4
    assert losses[0] > losses[-1] > 16 * 2.2  # of ten classes, times 4 · 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: patches(torch.rand(1, 1, 8, 9), 2),
            "^patch: 2 × 2 pixels do not divide an image of 8 × 9",
        ),
        (lambda: patches(torch.rand(8, 8), 2), r"^images: shape \(8, 8\)"),
        (lambda: patches(torch.rand(1, 1, 8, 8), 0), "^patch: 0, expected"),
        (
            lambda: VisionConfig(patch=15),
            "^patch: 15 × 15 pixels do not divide an image of 224 × 224",
        ),
        (
            lambda: VisionConfig(positions="learnt"),
            "^unknown positions, 'learnt'; did you mean 'learned'",
        ),
        (lambda: VisionConfig(window=-1), "^window: -1, expected at least 0"),
        (lambda: VisionConfig(classes=0), "^classes: 0, expected at least 1"),
        (lambda: VisionConfig(heads=7), "^heads: 7 does not divide d_model"),
        (lambda: grid_positions(2, 2, 6), "^d_model: 6, expected a multiple"),
        (lambda: window_mask(2, 2, 0), "^window: 0, expected at least 1"),
        (lambda: build_model("VIT"), "^unknown kind, 'VIT'; did you mean"),
        (
            lambda: LatentTransformer(DIGITS, 0),
            "^latents: 0, expected at least 1",
        ),
        (
            lambda: SmallCNN(replace(DIGITS, height=6), (1, 1, 1)),
            "^images: 6 × 8 pixels, but two poolings need multiples of 4",
        ),
        (
            lambda: train_images(
                SmallMLP(DIGITS), torch.rand(3, 1, 8, 8), torch.zeros(2).long()
            ),
            "^targets: 2, but there are 3 images",
        ),
        (
            lambda: train_images(
                SmallMLP(DIGITS), torch.rand(0, 1, 8, 8), torch.zeros(0).long()
            ),
            "^images: 0, expected at least 1",
        ),
        (lambda: patches(torch.rand(1, 1, 0, 8), 2), "^height: 0, expected"),
        (
            lambda: a_model()(torch.rand(2, 3, 8, 12), torch.ones(2, 9) > 0),
            r"^visible: shape \(2, 9\), but images and patches are \(2, 6\)",
        ),
    ],
)
def test_bad_input_gets_one_line(call, message):
    """What was given, and what would do."""
    with pytest.raises(ValueError, match=message) as problem:
        call()
    assert "\n" not in str(problem.value)


@EACH_KIND
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 3, 8, 8), "^images: 3 channels, but the model was made for 1$"),
        (
            (1, 1, 8, 12),
            "^images: 8 × 12 pixels, but the model was made for 8 × 8$",
        ),
        (
            (1, 1, 9, 8),
            "^images: 9 × 8 pixels, but the model was made for 8 × 8$",
        ),
        ((1, 8, 8), r"^images: shape \(1, 8, 8\), expected 4 dimensions"),
    ],
)
def test_images_of_another_size_get_one_line(kind, shape, message):
    """Which names both sizes, whatever the model."""
    with pytest.raises(ValueError, match=message):
        build_model(kind)(torch.rand(shape))


# --- the experiment


def test_images_are_moved_without_ink_coming_back():
    """By a pixel; what leaves is gone."""
    image = torch.arange(1.0, 10).view(1, 1, 3, 3)
    right = experiment.moved_by(image, 0, 1)[0, 0].tolist()
    assert right == [[0, 1, 2], [0, 4, 5], [0, 7, 8]]
    up = experiment.moved_by(image, -1, 0)[0, 0].tolist()
    assert up == [[4, 5, 6], [7, 8, 9], [0, 0, 0]]
    assert image[0, 0, 2, 2] == 9


def test_one_shuffle_for_all_images():
    """Each pixel goes where that of any other image goes."""
    images = torch.rand(5, 1, 4, 4)
    mixed = experiment.shuffled(images)
    assert not mixed.equal(images)
    assert mixed.flatten(1).sort().values.equal(images.flatten(1).sort().values)
    assert experiment.shuffled(images[2:3]).equal(mixed[2:3])


def test_tests_and_training_share_no_image():
    """The first are learned from, the last tested on."""
    train, _, tests, _ = experiment.digits()
    assert len(train) + len(tests) < 1797
    known = {tuple(x.flatten().tolist()) for x in train}
    assert not any(tuple(x.flatten().tolist()) in known for x in tests)


def test_the_comparison_rests_on_enough_seeds():
    """Each kind with each number of images, three times or more."""
    found = load_result("vision")
    runs = [
        (r["experiment"], r["way"], r["kind"], r["size"]) for r in found["rows"]
    ]
    wanted = {
        ("digits", images, kind, size)
        for images, kind, size in product(
            experiment.IMAGES, KINDS, experiment.SIZES
        )
    }
    assert wanted <= set(runs)
    assert all(runs.count(run) >= 3 for run in set(runs))
