"""Training speed of this GPT and of GPT-2 in ``transformers``, in one loop.

    python -m benchmarks.gpt [--size tiny|base] [--rounds 3]

Both get the same sizes, the same texts, dropout of 0.1 in the same places and
the same Adam, and predict each next token. Rounds are interleaved, so that a
noisy machine hits both alike: what counts is the ratio. Writes
results/training-gpt-SIZE.json.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.report import write_result
from transformer_annotated.after.gpt import GPT, GPTConfig
from transformer_annotated.optimizer import adam
from transformer_annotated.workshop.fused_loss import linear_cross_entropy

SIZES = {"tiny": (4, 128, 512, 4), "base": (12, 768, 3072, 12)}
TEXTS = {"tiny": (32, 64), "base": (4, 128)}
VOCABULARY, POSITIONS, DROPOUT, BATCHES, SEED = 10_000, 256, 0.1, 4, 0
Learner = tuple[nn.Module, Callable[[Tensor], Tensor]]


def ours(layers: int, d_model: int, d_ff: int, heads: int) -> Learner:
    """This book's model, with its loss."""
    config = GPTConfig(
        VOCABULARY,
        layers,
        d_model,
        d_ff,
        heads,
        dropout=DROPOUT,
        attention_dropout=DROPOUT,
        learned_positions=POSITIONS,
    )
    model = GPT(config)

    def loss(ids: Tensor) -> Tensor:
        hidden = model.hidden(model.embeddings(ids[:, :-1]))
        sums = linear_cross_entropy(
            hidden, model.embeddings.weight, ids[:, 1:], 0.0, config.pad
        )
        return sums.smoothed / sums.tokens

    return model, loss


def theirs(layers: int, d_model: int, d_ff: int, heads: int) -> Learner:
    """Hugging Face's model, with its loss."""
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=POSITIONS,
            n_embd=d_model,
            n_layer=layers,
            n_head=heads,
            n_inner=d_ff,
            resid_pdrop=DROPOUT,
            embd_pdrop=DROPOUT,
            attn_pdrop=DROPOUT,
            use_cache=False,
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    return model, lambda ids: model(ids, labels=ids).loss


def main() -> None:
    """Let both train in turns, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    chance = torch.Generator().manual_seed(SEED)
    size = (BATCHES, *TEXTS[given.size])
    texts = torch.randint(4, VOCABULARY, size, generator=chance)
    runs = {}
    for name, build in (("this book", ours), ("Hugging Face GPT-2", theirs)):
        torch.manual_seed(SEED)
        model, loss = build(*SIZES[given.size])
        optimizer = adam(model.parameters())
        optimizer.param_groups[0]["lr"] = 1e-4
        runs[name] = (model.train(), loss, optimizer, [], [])
    for number in range(given.rounds + 1):  # the first one warms up
        for _, loss, optimizer, wall, processor in runs.values():
            begun = time.perf_counter(), time.process_time()
            for ids in texts:
                loss(ids).backward()
                optimizer.step()
                optimizer.zero_grad()
            if number:
                wall.append(time.perf_counter() - begun[0])
                processor.append(time.process_time() - begun[1])
    _, _, _, *peer = runs["Hugging Face GPT-2"]
    tokens = size[0] * size[1] * (size[2] - 1)
    rows = [
        {
            "model": name,
            "parameters": sum(p.numel() for p in model.parameters()),
            "tokens_per_second": round(tokens / statistics.median(wall)),
            "ratio": round(
                statistics.median(peer[0]) / statistics.median(wall), 2
            ),
            "ratio of processor time": round(
                statistics.median(peer[1]) / statistics.median(processor), 2
            ),
        }
        for name, (model, _, _, wall, processor) in runs.items()
    ]
    write_result(
        f"training-gpt-{given.size}",
        rows,
        ("torch", "transformers"),
        seed=SEED,
        size=given.size,
        vocabulary=VOCABULARY,
        texts=list(size),
        threads=torch.get_num_threads(),
    )


if __name__ == "__main__":
    main()
