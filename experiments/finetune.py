"""The four tasks of GPT-1, with labels that the grammar knows.

*Classification*: does verb agree with subject? *Entailment*: does the second
sentence follow from the first, which has one adjective more? *Similarity*: do
two sentences, one with its time in front, say the same? *Choice*: which of
three ends belongs to a beginning?
"""

import math
import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_annotated.after.gpt import GPT, task_inputs
from transformer_annotated.text import PAD, WordTokenizer
from transformer_annotated.workshop.lexicon import lexicon
from transformer_annotated.workshop.likelihood import log_probability

LABELLED, TESTED, EPOCHS, BATCH, RATE = 200, 400, 15, 20, 1e-3
TASKS = ("classification", "entailment", "similarity", "choice")
Example = tuple[list[str], int]  # texts, and the label


def is_sentence(text: str) -> bool:
    """Whether the grammar can say it."""
    return log_probability(text) > -math.inf


def _agreement(draw: Callable[[], str], chance: random.Random) -> Example:
    pairs = [("has", "have"), ("does", "do")]
    pairs += [(verb.english_third, verb.english) for verb in lexicon().verbs]
    other = dict(pairs) | {b: a for a, b in pairs}
    label = chance.randrange(2)
    while True:
        words = draw().split()
        places = [i for i, word in enumerate(words) if word in other]
        if places:
            i = chance.choice(places)
            wrong = [*words[:i], other[words[i]], *words[i + 1 :]]
            if not is_sentence(" ".join(wrong)):
                return [" ".join(words if label else wrong)], label


def _entailment(draw: Callable[[], str], chance: random.Random) -> Example:
    known = lexicon()
    adjectives = {word.english for word in known.adjectives}
    nouns = {noun.english: noun.kind for noun in known.nouns}
    nouns |= {noun.english_plural: noun.kind for noun in known.nouns}
    label = chance.randrange(2)
    while True:
        words = draw().split()
        places = [i for i, w in enumerate(words) if w in adjectives]
        if len(places) != 1 or {"not", "every", ",", "if"} & {*words}:
            continue
        i = places[0]
        less = [*words[:i], *words[i + 1 :]]
        if i and less[i - 1] in ("a", "an"):
            less[i - 1] = "an" if less[i][0] in "aeiou" else "a"
        if not label:
            same = [n for n, kind in nouns.items() if kind == nouns[less[i]]]
            less[i] = chance.choice([n for n in same if n != less[i]])
        if is_sentence(" ".join(less)):
            return [" ".join(words), " ".join(less)], label


def _similarity(draw: Callable[[], str], chance: random.Random) -> Example:
    times = {word.english: word.kind for word in lexicon().times}
    label = chance.randrange(2)
    while True:
        text = draw()
        for time, kind in times.items():
            if text.endswith(f" {time} .") and text.count(time) == 1:
                others = [
                    t for t, k in times.items() if k == kind and t != time
                ]
                said = time if label else chance.choice(others)
                moved = f"{said} {text.removesuffix(f' {time} .')} ."
                if is_sentence(moved):
                    pair = [text, moved]
                    chance.shuffle(pair)
                    return pair, label


def _choice(draw: Callable[[], str], chance: random.Random) -> Example:
    words = draw().split()
    cut = len(words) // 2
    begin, ends = " ".join(words[:cut]), [" ".join(words[cut:])]
    while len(ends) < 3:
        other = draw().split()
        end = " ".join(other[len(other) // 2 :])
        if not is_sentence(f"{begin} {end}"):
            ends.append(end)
    label = chance.randrange(3)
    ends[0], ends[label] = ends[label], ends[0]
    return [begin, *ends], label


MAKERS = dict(
    zip(TASKS, (_agreement, _entailment, _similarity, _choice), strict=True)
)


def examples(
    task: str, count: int, texts: list[str], seed: int
) -> list[Example]:
    """Examples of a task, made from sentences as they were drawn."""
    chance, rest = random.Random(seed), iter(texts)
    return [MAKERS[task](lambda: next(rest), chance) for _ in range(count)]


def scores(
    model: GPT,
    head: nn.Linear,
    task: str,
    batch: list[Example],
    tokenizer: WordTokenizer,
) -> Tensor:
    """Scores ``(B, classes)`` of some examples."""
    rows = [
        task_inputs(task, *tokenizer.encode_batch(texts, ""))
        for texts, _ in batch
    ]
    flat = [row for group in rows for row in group]
    longest = max(map(len, flat))
    ids = torch.tensor([row + [PAD] * (longest - len(row)) for row in flat])
    hidden = model.hidden(model.embeddings(ids))  # (B·n, T, d_model)
    last = torch.tensor([len(row) - 1 for row in flat])
    vectors = hidden[torch.arange(len(flat)), last]
    vectors = vectors.view(len(batch), -1, hidden.size(-1))  # (B, n, d_model)
    if task == "choice":
        return head(vectors)[..., 0]  # one score an answer
    return head(vectors.sum(1))


def finetune(
    model: GPT, task: str, texts: list[str], seed: int, tokenizer: WordTokenizer
) -> float:
    """Accuracy on new examples after a few passes over the labelled ones."""
    some = examples(task, LABELLED + TESTED, texts, seed)
    labelled, tested = some[:LABELLED], some[LABELLED:]
    torch.manual_seed(seed)
    head = nn.Linear(model.config.d_model, 1 if task == "choice" else 2)
    both = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(both, RATE)
    chance = random.Random(seed)
    model.train()
    for _ in range(EPOCHS):
        chance.shuffle(labelled)
        for begin in range(0, LABELLED, BATCH):
            batch = labelled[begin : begin + BATCH]
            right = torch.tensor([label for _, label in batch])
            guess = scores(model, head, task, batch, tokenizer)
            F.cross_entropy(guess, right).backward()
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        guess = scores(model, head, task, tested, tokenizer).argmax(-1)
    right = torch.tensor([label for _, label in tested])
    return round((guess == right).double().mean().item(), 4)
