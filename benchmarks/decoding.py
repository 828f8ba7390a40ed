"""Decoding speed of this model and of others, side by side in one run.

    python -m benchmarks.decoding [--size tiny|base] [--rounds 3]

All translate the same 64 sources, greedily and with a beam of 4, into 20 words
each. CTranslate2 gets our weights, so its words can be compared with ours;
Marian has weights of its own, as fits its form. Rounds are interleaved, so
that a noisy machine hits all alike: what counts is the ratio. Writes
results/decoding-SIZE.json.
"""

import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.report import write_result
from benchmarks.training import (
    PAD,
    SEED,
    SIZES,
    VOCABULARY,
    arguments,
    batches,
    marian_model,
)
from transformer_annotated.decoding import beam_search, greedy_decode
from transformer_annotated.model import Transformer, TransformerConfig
from transformer_annotated.positions import sinusoids

SENTENCES, LENGTH, BEAM = 64, 20, 4
Decoder = Callable[[Tensor, int], list[list[int]]]


def ours(model: Transformer) -> Decoder:
    """The searches of this book, stopped after so many words."""

    def decode(src: Tensor, beam: int) -> list[list[int]]:
        extra_length = LENGTH - src.size(1)
        if beam == 1:
            return greedy_decode(model, src, extra_length)
        found = beam_search(model, src, beam, extra_length=extra_length)
        return [best.tokens for best, *_ in found]

    return decode


def marian(model: Transformer) -> Decoder:
    """Hugging Face's ``generate``."""
    config = model.config
    rival = marian_model(
        config.layers, config.d_model, config.d_ff, config.heads
    ).eval()

    def decode(src: Tensor, beam: int) -> list[list[int]]:
        with torch.inference_mode():
            return rival.generate(
                input_ids=src,
                attention_mask=(src != PAD).long(),
                num_beams=beam,
                do_sample=False,
                min_new_tokens=LENGTH,
                max_new_tokens=LENGTH,
            ).tolist()

    return decode


def ctranslate2(model: Transformer) -> Decoder:
    """CTranslate2 in float32, with the weights of our model."""
    import ctranslate2

    with tempfile.TemporaryDirectory() as folder:
        _specification(model).save(folder)
        rival = ctranslate2.Translator(
            folder,
            compute_type="float32",
            intra_threads=torch.get_num_threads(),
        )

    def decode(src: Tensor, beam: int) -> list[list[int]]:
        sources = [[str(i) for i in row if i != PAD] for row in src.tolist()]
        answers = rival.translate_batch(
            sources,
            beam_size=beam,
            length_penalty=0.6,
            min_decoding_length=LENGTH,
            max_decoding_length=LENGTH,
            max_batch_size=0,
        )
        return [[int(i) for i in a.hypotheses[0]] for a in answers]

    return decode


def _specification(model: Transformer) -> object:
    """Our weights, named as CTranslate2 names them."""
    from ctranslate2.specs import common_spec, transformer_spec

    config = model.config
    spec = transformer_spec.TransformerSpec.from_config(
        (config.layers, config.layers),
        config.heads,
        pre_norm=False,
        activation=common_spec.Activation.RELU,
    )

    def linear(there: object, *here: nn.Linear) -> None:
        weights = torch.cat([part.weight for part in here])
        biases = [
            weights.new_zeros(len(part.weight))
            if part.bias is None
            else part.bias
            for part in here
        ]
        there.weight = weights.detach().numpy()
        there.bias = torch.cat(biases).detach().numpy()

    def norm(there: object, here: nn.Module) -> None:
        there.gamma = here.norm.weight.detach().numpy()
        there.beta = here.norm.bias.detach().numpy()

    def copy(there: object, here: nn.Module) -> None:
        attention = here.self_attention
        linear(
            there.self_attention.linear[0],
            attention.w_q,
            attention.w_k,
            attention.w_v,
        )
        linear(there.self_attention.linear[1], attention.w_o)
        norm(there.self_attention.layer_norm, here.self_attention_residual)
        linear(there.ffn.linear_0, here.feed_forward.w_1)
        linear(there.ffn.linear_1, here.feed_forward.w_2)
        norm(there.ffn.layer_norm, here.feed_forward_residual)

    words = model.embeddings.weight.detach().numpy()
    positions = sinusoids(512, config.d_model).numpy()
    spec.encoder.embeddings[0].weight = words
    spec.decoder.embeddings.weight = words
    spec.decoder.projection.weight = words
    for stack in (spec.encoder, spec.decoder):
        stack.position_encodings.encodings = positions
    encoder = zip(spec.encoder.layer, model.encoder.layers, strict=True)
    decoder = zip(spec.decoder.layer, model.decoder.layers, strict=True)
    for there, here in encoder:
        copy(there, here)
    for there, here in decoder:
        copy(there, here)
        across = here.cross_attention
        linear(there.attention.linear[0], across.w_q)
        linear(there.attention.linear[1], across.w_k, across.w_v)
        linear(there.attention.linear[2], across.w_o)
        norm(there.attention.layer_norm, here.cross_attention_residual)
    vocabulary = [str(number) for number in range(VOCABULARY)]
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.config.bos_token = spec.config.decoder_start_token = "1"
    spec.config.eos_token, spec.config.unk_token = "2", "3"
    spec.validate()
    return spec


def contestants(model: Transformer) -> dict[str, Decoder]:
    """Those that can take part here."""
    taking_part = {"this book": ours(model)}
    for name, build in (
        ("Hugging Face Marian", marian),
        ("CTranslate2", ctranslate2),
    ):
        try:
            taking_part[name] = build(model)
        except ImportError as error:
            print(f"{name} does not take part: {error}")
    return taking_part


def main() -> None:
    """Let them decode in turns, and compare."""
    given = arguments(__doc__)
    torch.manual_seed(SEED)
    layers, d_model, d_ff, heads = SIZES[given.size]
    model = Transformer(
        TransformerConfig(
            VOCABULARY, layers=layers, d_model=d_model, d_ff=d_ff, heads=heads
        )
    )
    src = batches(1)[0][0][:SENTENCES, :LENGTH]
    decoders, rows = contestants(model), []
    for beam in (1, BEAM):
        speeds = {name: [] for name in decoders}
        said = {}
        for number in range(given.rounds + 1):  # the first one warms up
            first = number % len(decoders)  # each follows each of the others
            turns = [*decoders, *decoders][first : first + len(decoders)]
            for name in turns if number % 2 else reversed(turns):
                begun = time.perf_counter()
                said[name] = decoders[name](src, beam)
                seconds = time.perf_counter() - begun
                if number:
                    speeds[name].append(SENTENCES * LENGTH / seconds)
        for name, measured in speeds.items():
            speed = statistics.median(measured)
            same = sum(map(list.__eq__, said[name], said["this book"]))
            rows.append(
                {
                    "model": name,
                    "beam": beam,
                    "tokens_per_second": round(speed),
                    "ours_to_this": round(
                        statistics.median(speeds["this book"]) / speed, 2
                    ),
                    "same_words": same,
                }
            )
    write_result(
        f"decoding-{given.size}",
        rows,
        ("torch", "transformers", "ctranslate2"),
        SEED,
        size=given.size,
        sentences=SENTENCES,
        length=LENGTH,
        threads=torch.get_num_threads(),
    )


if __name__ == "__main__":
    main()
