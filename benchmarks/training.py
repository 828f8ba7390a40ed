"""Training speed of this model and of others, side by side in one run.

    python -m benchmarks.training [--size tiny|base] [--rounds 3]

All get the same sizes, the same padded batches with the lengths of Multi30k,
the same loss and Adam, and dropout in all layers (PyTorch's modules have none
behind the embeddings, which saves them a little). Rounds are interleaved, so
that a noisy machine hits all alike: what counts is the ratio. Hugging Face's
Marian takes part if ``transformers`` is installed. Writes
results/training-SIZE.json.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.report import write_result
from transformer_annotated.batching import collate
from transformer_annotated.model import Transformer, TransformerConfig
from transformer_annotated.optimizer import adam
from transformer_annotated.training import ModelWithLoss

SIZES = {"tiny": (4, 128, 256, 4), "base": (6, 512, 2048, 8)}
VOCABULARY, TOKENS, DROPOUT, PAD, SEED = 10_000, 4096, 0.1, 0, 0


def batches(
    count: int, tokens: int = TOKENS, lengths: tuple[int, int] = (9, 24)
) -> list[tuple[Tensor, Tensor]]:
    """Sources (B, S) and whole targets (B, T + 1), bucketed by length."""
    chance = torch.Generator().manual_seed(SEED)

    def draw(low: int, high: int, size: tuple) -> Tensor:
        return torch.randint(low, high, size, generator=chance)

    made = []
    for _ in range(count):
        longest = int(draw(*lengths, (1,)))
        rows = tokens // (longest + 2)
        sides = [
            [draw(4, VOCABULARY, (int(n),)).numpy() for n in side]
            for side in draw(longest - 2, longest + 1, (2, rows))
        ]
        made.append((collate(sides[0]), collate(sides[1], start=True)))
    return made


def smoothed(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean loss of real tokens, by PyTorch."""
    return F.cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        ignore_index=PAD,
        label_smoothing=0.1,
    )


def ours(layers: int, d_model: int, d_ff: int, heads: int) -> tuple:
    """The model of this book, with its loss."""
    config = TransformerConfig(
        VOCABULARY,
        layers=layers,
        d_model=d_model,
        d_ff=d_ff,
        heads=heads,
        dropout=DROPOUT,
    )
    learner = ModelWithLoss(Transformer(config))

    def loss(src: Tensor, tgt: Tensor) -> Tensor:
        answer = learner(src, tgt)
        return answer.smoothed / answer.tokens

    return learner, loss


class TorchTransformer(nn.Module):
    """``nn.Transformer`` with one embedding matrix for all three uses."""

    def __init__(
        self, layers: int, d_model: int, d_ff: int, heads: int
    ) -> None:
        """Build it."""
        super().__init__()
        self.core = nn.Transformer(
            d_model, heads, layers, layers, d_ff, DROPOUT, batch_first=True
        )
        for module in self.core.modules():  # dropout where the paper has it
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            elif hasattr(module, "linear1"):
                module.dropout = nn.Identity()
        self.embeddings = nn.Embedding(VOCABULARY, d_model)
        self.positions = torch.randn(512, d_model)
        self.scale = math.sqrt(d_model)

    def embed(self, ids: Tensor) -> Tensor:
        """Vectors of ids, with positions."""
        return self.embeddings(ids) * self.scale + self.positions[: ids.size(1)]

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Logits of the next token."""
        length, padding = tgt.size(1), src == PAD
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        hidden = self.core(
            self.embed(src),
            self.embed(tgt),
            tgt_mask=future,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return F.linear(hidden, self.embeddings.weight)


def torchs(*sizes: int) -> tuple:
    """PyTorch's own model."""
    model = TorchTransformer(*sizes)
    return model, lambda s, t: smoothed(model(s, t[:, :-1]), t[:, 1:])


def marian_model(layers: int, d_model: int, d_ff: int, heads: int) -> nn.Module:
    """Hugging Face's model of the same form."""
    from transformers import MarianConfig, MarianMTModel

    both = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (
            ("layers", layers),
            ("ffn_dim", d_ff),
            ("attention_heads", heads),
        )
    }
    config = MarianConfig(
        **both,
        vocab_size=VOCABULARY,
        d_model=d_model,
        dropout=DROPOUT,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=512,
        pad_token_id=PAD,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
    )
    return MarianMTModel(config)


def marian(*sizes: int) -> tuple:
    """Hugging Face's model, with PyTorch's loss."""
    model = marian_model(*sizes)

    def loss(src: Tensor, tgt: Tensor) -> Tensor:
        answer = model(
            input_ids=src,
            attention_mask=src != PAD,
            decoder_input_ids=tgt[:, :-1],
        )
        return smoothed(answer.logits, tgt[:, 1:])

    return model, loss


def contestants() -> dict[str, Callable]:
    """Those that can take part here."""
    known = {"this book": ours, "torch.nn.Transformer": torchs}
    try:
        import transformers  # noqa: F401
    except ImportError:
        print("transformers is not installed: Marian does not take part")
        return known
    return known | {"Hugging Face Marian": marian}


def arguments(what: str) -> argparse.Namespace:
    """Which size to compare, and how often."""
    parser = argparse.ArgumentParser(description=what.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    """Let them train in turns, and compare."""
    given = arguments(__doc__)
    data, runs = batches(4), {}
    tokens = sum(int((tgt[:, 1:] != PAD).sum()) for _, tgt in data)
    for name, build in contestants().items():
        torch.manual_seed(SEED)
        model, loss = build(*SIZES[given.size])
        optimizer = adam(model.parameters())
        optimizer.param_groups[0]["lr"] = 1e-4
        runs[name] = (model.train(), loss, optimizer, [])
    for number in range(given.rounds + 1):  # the first one warms up
        for _, loss, optimizer, speeds in runs.values():
            begun = time.perf_counter()
            for src, tgt in data:
                loss(src, tgt).backward()
                optimizer.step()
                optimizer.zero_grad()
            if number:
                speeds.append(tokens / (time.perf_counter() - begun))
    speed = {name: statistics.median(run[-1]) for name, run in runs.items()}
    best = max(value for name, value in speed.items() if name != "this book")
    rows = [
        {
            "model": name,
            "tokens_per_second": round(value),
            "ratio_to_best_peer": round(value / best, 2),
        }
        for name, value in speed.items()
    ]
    write_result(
        f"training-{given.size}",
        rows,
        ("torch", "transformers"),
        seed=SEED,
        size=given.size,
        vocabulary=VOCABULARY,
        threads=torch.get_num_threads(),
    )


if __name__ == "__main__":
    main()
