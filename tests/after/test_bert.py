"""BERT and ELECTRA: masks by count, equality with the reference, heads."""

import random
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from transformers import BertConfig as TheirConfig
from transformers import BertModel

from experiments.parity import IDS, compare, copy_bert, reference
from experiments.parity import bert_config as a_config
from tests.charts.drawing import drawn
from tests.workshop.test_cli import call
from transformer_annotated.after.bert import (
    CLS,
    IGNORE,
    KIND,
    MASK,
    SEP,
    Bert,
    BertConfig,
    MaskedLanguageLoss,
    MaskedLanguageModel,
    Texts,
    class_loss,
    mask_tokens,
    segment_ids,
)
from transformer_annotated.after.electra import Electra, ElectraLoss
from transformer_annotated.after.heads import (
    HEADS,
    BertWithHead,
    HeadLoss,
    collate_examples,
    encode_example,
    fine_tune,
    predict,
)
from transformer_annotated.after.labels import (
    LABELS,
    book_tokenizer,
    label_roles,
    sample_examples,
    sample_stories,
    sample_trees,
)
from transformer_annotated.batching import collate
from transformer_annotated.charts.looking import head_heatmap
from transformer_annotated.decoding import beam_search, greedy_decode
from transformer_annotated.layers import ACTIVATIONS
from transformer_annotated.training import TrainingConfig, train
from transformer_annotated.workshop.checkpoints import (
    list_checkpoints,
    load_weights,
)
from transformer_annotated.workshop.models import attention_weights
from transformer_annotated.workshop.recipe import read_recipe, run_recipe
from transformer_annotated.workshop.translator import Translator

VOCABULARY = 40


def seeded(make, *arguments):
    """A module with parameters that are the same each time."""
    torch.manual_seed(0)
    return make(*arguments)


# --- masks


def test_masks_by_count():
    """15 % are chosen; of these 80 % masked, 10 % random, 10 % as before."""
    torch.manual_seed(0)
    ids = torch.randint(MASK + 1, 1000, (500, 400))
    inputs, chosen = mask_tokens(ids, 1000)
    n = ids.numel()
    changed = inputs != ids
    masked = inputs == MASK
    counts = {
        0.15: chosen.sum(),
        0.12: masked.sum(),
        0.015: (changed & ~masked).sum(),
    }
    for rate, count in counts.items():  # within five standard deviations
        assert abs(count - n * rate) < 5 * (n * rate * (1 - rate)) ** 0.5
    assert not (changed & ~chosen).any()
    assert inputs.max() < 1000 and inputs.min() == MASK


def test_special_tokens_are_never_chosen():
    """Neither padding, nor CLS, nor SEP."""
    torch.manual_seed(0)
    inputs, chosen = mask_tokens(IDS, VOCABULARY, rate=0.999)
    assert torch.equal(chosen, IDS > MASK)
    assert torch.equal(inputs[~chosen], IDS[~chosen])


def test_all_masked_for_electra():
    """With masked = 1 every chosen token is hidden."""
    torch.manual_seed(0)
    inputs, chosen = mask_tokens(IDS, VOCABULARY, 0.5, 1.0, 0.0)
    assert torch.equal(inputs == MASK, chosen)


@pytest.mark.parametrize("rate", [0, 1, -0.1, 1.5, float("nan")])
def test_a_rate_is_between_0_and_1(rate):
    """0 would ask for nothing, 1 would show nothing."""
    with pytest.raises(ValueError, match=r"rate: .*expected 0 < rate < 1"):
        mask_tokens(IDS, VOCABULARY, rate)


def test_fractions_sum_to_one_at_most():
    """Or the random words would overwrite the masks."""
    with pytest.raises(ValueError, match=r"masked, replaced: 0\.8 and 0\.3"):
        mask_tokens(IDS, VOCABULARY, masked=0.8, replaced=0.3)


def test_only_chosen_tokens_teach():
    """The gradient at the output is zero wherever nothing was asked."""
    learner = MaskedLanguageLoss(seeded(MaskedLanguageModel, a_config()))
    kept = []

    def keep(module, inputs, output):
        output.retain_grad()
        kept.append(output)

    learner.model.bert.register_forward_hook(keep)
    torch.manual_seed(3)
    _, chosen = mask_tokens(IDS, VOCABULARY)
    assert chosen.any() and not chosen.all()
    torch.manual_seed(3)
    loss = learner(IDS, IDS)
    loss.smoothed.backward()
    felt = kept[0].grad.abs().sum(-1) > 0
    assert torch.equal(felt, chosen) and loss.tokens == chosen.sum()
    assert loss.correct[~chosen].all()


# --- input and sizes


def test_segments():
    """0 up to the first separator, 1 after it, 0 for padding."""
    expected = [[0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1, 0, 0], [0] * 8]
    assert segment_ids(IDS).tolist() == expected


@pytest.mark.parametrize(
    ("config", "millions"),
    [
        (BertConfig(), 109.5),
        (BertConfig.large(), 335.1),
        (BertConfig(layers=6), 67.0),  # as a slide has it
        (replace(BertConfig.large(), layers=12), 184.0),
    ],
)
def test_parameters(config, millions):
    """BERT-base has 12 blocks and 109.5 million, BERT-large 24 and 335.1."""
    with torch.device("meta"):
        bert = Bert(config)
    count = sum(p.numel() for p in bert.parameters())
    assert round(count / 1e6, 1) == millions


def test_gelu_is_x_times_phi():
    """The activation is the exact one, with the normal distribution."""
    x = torch.linspace(-5, 5, 101, dtype=torch.double)
    phi = torch.distributions.Normal(0, 1).cdf(x)
    assert_close(ACTIVATIONS[BertConfig().activation](x), x * phi)


def test_layers_end_where_forward_does():
    """Vectors before the first layer, and after each."""
    bert = seeded(Bert, a_config()).eval()
    first, *_, last = layers = bert.layers(IDS)
    assert len(layers) == 3
    assert_close(first, bert.embeddings(IDS))
    assert_close(last, bert(IDS))


def test_padding_changes_nothing():
    """A text alone and beside longer ones has the same vectors."""
    bert = seeded(Bert, a_config()).double().eval()
    assert_close(bert(IDS)[1, :6], bert(IDS[1:2, :6])[0])


def test_both_sides_are_read():
    """The first word depends on the last, which no causal mask would allow."""
    bert = seeded(Bert, a_config()).eval()
    other = IDS.clone()
    other[2, 6] = 30
    assert not torch.allclose(bert(IDS)[2, 1], bert(other)[2, 1])


# --- equality with transformers


@pytest.mark.parametrize("model", ["BERT", "ELECTRA"])
def test_equal_to_transformers(model):
    """With copied weights, padded and in two segments, to a hundred-thousandth.

    The numbers are of size 1, in single precision.
    """
    for row in compare(model):
        assert row["difference"] < row["bound"] == 1e-5, row["part"]


def test_a_mask_is_needed_for_parity():
    """The comparison would notice: other segments, other vectors."""
    torch.manual_seed(0)
    theirs = reference(BertModel, TheirConfig, a_config())
    ours = Bert(a_config()).eval()
    copy_bert(ours, theirs)
    with torch.no_grad():
        wrong = theirs(input_ids=IDS).last_hidden_state
        assert (ours(IDS) - wrong)[IDS != 0].abs().max() > 1e-2


# --- pre-training


def some_texts(follows=False):
    """Encoded sentences, or stories, of the grammar."""
    words = book_tokenizer()
    if follows:
        stories = sample_stories(40)
        ids = [encode_example(words, story)[0] for story in stories]
        return words, Texts(ids, [story.label for story in stories])
    trees = sample_trees(60, depth=0)
    lines = (" ".join(label_roles(t, random).first) for t in trees)
    return words, Texts([words.encode(line) for line in lines])


LEARNERS = {
    "masked": (MaskedLanguageModel, MaskedLanguageLoss, False),
    "next": (
        MaskedLanguageModel,
        partial(MaskedLanguageLoss, next_sentence=True),
        True,
    ),
    "electra": (Electra, ElectraLoss, False),
}


def run(kind, folder, steps, resume=False):
    """Train a small model with the book's own trainer."""
    make, learner, follows = LEARNERS[kind]
    words, texts = some_texts(follows)
    model = seeded(make, a_config(vocab_size=words.vocab_size, dropout=0.1))
    config = TrainingConfig(
        steps=steps, batch_tokens=200, warmup=10, label_smoothing=0.0,
        log_every=2, validate_every=4, checkpoint_every=4, keep=5,
    )  # fmt: skip
    train(
        model, texts, texts, config, folder, resume, progress_bar=False,
        learner=learner,
    )  # fmt: skip
    return model


@pytest.mark.parametrize("kind", LEARNERS)
def test_a_stopped_run_goes_on_to_the_last_bit(kind, tmp_path):
    """Masks, forgeries and dropout are those of the run that never stopped."""
    whole = run(kind, tmp_path / "whole", 8)
    run(kind, tmp_path / "parts", 4)
    parts = run(kind, tmp_path / "parts", 8, resume=True)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, parts.state_dict()[name]), name
    again = seeded(type(whole), whole.config)
    load_weights(again, list_checkpoints(tmp_path / "parts/checkpoints")[-1])


@pytest.mark.parametrize("kind", LEARNERS)
def test_all_that_is_trained_gets_a_gradient(kind):
    """But for heads that a kind of pre-training does not use."""
    make, learner, follows = LEARNERS[kind]
    words, texts = some_texts(follows)
    model = seeded(make, a_config(vocab_size=words.vocab_size))
    batch = collate([texts.target(i) for i in range(20)], start=True)
    source = torch.tensor([texts.source(i) for i in range(20)])
    learner(model)(source, batch).smoothed.backward()
    still = {
        name.split(".")[-2]
        for name, p in model.named_parameters()
        if p.grad is None
    }
    unused = {"masked": {"pooler", "follows"}, "electra": {"pooler"}}
    assert still == unused.get(kind, set())


def test_a_forgery_that_is_right_is_no_forgery():
    """Where the generator finds the word, the word counts as real."""
    model = seeded(Electra, a_config(vocab_size=6)).eval()  # a single word, 5
    ids = torch.tensor([[CLS, 5, 5, 5, 5, SEP]])
    with torch.no_grad():
        model.words.bias.copy_(100 * F.one_hot(torch.tensor(5), 6).float())
    loss = ElectraLoss(model)(ids, ids)
    scores = model.detect(ids)
    expected = F.binary_cross_entropy_with_logits(
        scores, torch.zeros(1, 6), reduction="sum"
    )
    assert_close(loss.nll, expected.detach())
    assert loss.tokens == 6


def test_weight_of_the_discriminator():
    """The loss is that of the generator and 50 times the other's mean."""
    model = seeded(Electra, a_config()).eval()
    found = []
    for weight in (0.0, 50.0):
        torch.manual_seed(1)
        found.append(ElectraLoss(model, weight=weight)(IDS, IDS))
    gap = (found[1].smoothed - found[0].smoothed) / found[0].tokens
    assert_close(gap, 50 * found[0].nll / found[0].tokens)


def test_words_of_generator_and_discriminator_are_shared():
    """One table, in no checkpoint twice."""
    names = [name for name, _ in Electra(a_config()).named_parameters()]
    assert [n for n in names if "words.weight" in n] == [
        "bert.embeddings.words.weight"
    ]


def test_an_encoder_cannot_translate():
    """One line says so, for either search."""
    model = seeded(MaskedLanguageModel, a_config()).eval()
    for search in (greedy_decode, beam_search):
        with pytest.raises(ValueError, match="bert has no decoder"):
            search(model, IDS)
    assert KIND.decoder is None


def test_a_run_by_recipe_reads_and_does_not_translate(tmp_path):
    """The translator and the command line say so in a line; charts work."""
    changes = (
        "train_size=20 valid_size=5 depth=0 layers=1 d_model=16 d_ff=16 "
        "heads=2 steps=1 model.kind=bert learned_positions=64"
    )
    recipe = read_recipe("grammar", changes.split())
    run_recipe(recipe, tmp_path, progress_bar=False)
    longer = read_recipe(tmp_path / "config.toml", ["steps=2"])
    state = run_recipe(longer, tmp_path, resume=True, progress_bar=False)
    assert state.step == 2
    translator = Translator.load(tmp_path, device="cpu")
    text = "der König schläft ."
    for ask in (translator.translate, translator.n_best, translator.explain):
        with pytest.raises(ValueError, match="bert has no decoder") as found:
            ask(text)
        assert "\n" not in str(found.value)
    code, _, error = call("translate", "--model", tmp_path, text)
    assert code == 2 and "cannot translate" in error
    assert "Traceback" not in error
    maps = translator.explain(text, "the king sleeps .")
    within = maps.encoder_attentions.mean((2, 3))  # (layers, heads)
    drawn(head_heatmap({"mean": {"encoder": within}}))


def test_weights_of_attention():
    """Of every layer and head of the encoder, and of nothing else."""
    model = seeded(MaskedLanguageModel, a_config()).eval()
    within, *others = attention_weights(model, IDS[:1], IDS[:1])
    assert within.shape == (2, 4, 8, 8)
    assert_close(within.sum(-1), torch.ones(2, 4, 8))
    assert [len(other) for other in others] == [0, 0]


# --- heads


def test_an_unknown_head():
    """The nearest name is suggested."""
    bert = Bert(a_config())
    with pytest.raises(ValueError, match="did you mean 'tags'"):
        BertWithHead(bert, "tag")
    with pytest.raises(ValueError, match="did you mean 'sentence'"):
        sample_examples("sentense", 3)
    assert set(HEADS) == set(LABELS)


@pytest.mark.parametrize("head", HEADS)
def test_shapes_and_labels_of_heads(head):
    """Answers to as many questions as there are labels, and none at padding."""
    words = book_tokenizer()
    encoded = [encode_example(words, e) for e in sample_examples(head, 12)]
    batch = collate_examples(encoded)
    sizes = {"vocab_size": words.vocab_size, "learned_positions": 64}
    bert = seeded(Bert, a_config(**sizes))
    model = BertWithHead(bert.eval(), head, 3)
    logits = model(batch.tgt)
    assert logits.shape[:2] == batch.src.shape
    answers = {"span": batch.tgt.size(1)}.get(head, 3)
    assert logits.size(-1) == answers
    assert batch.update_tokens == class_loss(logits, batch.src).tokens
    if head == "span":
        padding = (batch.tgt == 0)[:, None].expand_as(logits)
        assert (logits[padding] == -torch.inf).all()
    if head == "tags":
        assert (batch.src[batch.tgt <= SEP] == IGNORE).all()
    found = predict(model, encoded)
    assert [len(a) for a in found] == (batch.src != IGNORE).sum(-1).tolist()


@pytest.mark.parametrize("head", HEADS)
def test_a_few_examples_are_learned_by_heart(head):
    """Every head can tell what it was told."""
    words = book_tokenizer()
    encoded = [encode_example(words, e) for e in sample_examples(head, 4)]
    bert = seeded(
        Bert, a_config(vocab_size=words.vocab_size, learned_positions=64)
    )
    model = BertWithHead(bert, head, 3)
    fine_tune(model, encoded, updates=150, factor=0.2, warmup=20)
    labels = [[n for n in some if n != IGNORE] for _, some in encoded]
    assert predict(model, encoded) == labels and not model.training


def test_loss_of_a_head():
    """Classes that are not asked for do not count."""
    logits = torch.tensor([[[0.0, 0.0], [5.0, 0.0], [1.0, 3.0]]])
    labels = torch.tensor([[0, IGNORE, 1]])
    loss = class_loss(logits, labels)
    expected = torch.tensor(2.0).log() + (1 + torch.tensor(-2.0).exp()).log()
    assert_close(loss.nll, expected)
    assert loss.tokens == 2
    assert loss.correct.tolist() == [[True, True, True]]
    learner = HeadLoss(BertWithHead(seeded(Bert, a_config()), "tags"))
    assert learner(torch.ones_like(IDS), IDS).tokens == IDS.numel()
