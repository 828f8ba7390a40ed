"""Are our models those of the library? With copied weights, number by number.

    python -m experiments.parity
    python -m experiments.parity --check

Builds each model of Part V twice, small and with random parameters: here, and
in the library ``transformers``, from a configuration, so that nothing is
downloaded. Copies the parameters and compares what both compute, for three
seeds. Writes the largest difference of each part to results/parity.json, beside
the bound that the tests enforce and the largest number that was compared.
"""

import argparse
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from transformers import BertConfig as TheirBertConfig
from transformers import (
    BertForPreTraining,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    RoFormerConfig,
    SwitchTransformersConfig,
)
from transformers.models.llama.modeling_llama import (
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)
from transformers.models.roformer.modeling_roformer import (
    RoFormerSelfAttention,
    RoFormerSinusoidalPositionalEmbedding,
)
from transformers.models.switch_transformers.modeling_switch_transformers import (  # noqa: E501
    SwitchTransformersSparseMLP,
)

from experiments import records
from transformer_annotated.after.bert import (
    CLS,
    SEP,
    Bert,
    BertConfig,
    MaskedLanguageModel,
    segment_ids,
)
from transformer_annotated.after.electra import Electra
from transformer_annotated.after.gpt import GPT, GPTConfig
from transformer_annotated.after.rotary import (
    RotaryPosition,
    dynamic_factor,
    frequencies,
)
from transformer_annotated.after.switch import SwitchFeedForward
from transformer_annotated.attention import MultiHeadAttention
from transformer_annotated.text import BOS, EOS, PAD

SEEDS = (0, 1, 2)
IDS = torch.tensor(
    [
        [CLS, 7, 8, 9, SEP, 10, 11, SEP],
        [CLS, 12, 13, SEP, 14, SEP, PAD, PAD],
        [CLS, 15, 16, 17, 18, 19, 20, SEP],
    ]
)
Compared = dict[str, tuple[Tensor, Tensor]]  # of each part: ours, theirs


# --- GPT-2


def gpt2_pair() -> tuple[GPT, GPT2LMHeadModel]:
    """A GPT of ours, and one of theirs with the same parameters."""
    theirs = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=50, n_positions=40, n_embd=32, n_layer=2, n_head=4,
            n_inner=64, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            initializer_range=0.2, bos_token_id=BOS, eos_token_id=EOS,
        )
    )  # fmt: skip
    ours = GPT(GPTConfig(50, 2, 32, 64, 4, learned_positions=40, dropout=0.0))
    copy_gpt2(ours, theirs)
    return ours.eval(), theirs.eval()


@torch.no_grad()
def copy_gpt2(ours: GPT, theirs: GPT2LMHeadModel) -> None:
    """Give our model the parameters of a GPT-2."""
    body = theirs.transformer
    ours.embeddings.weight.copy_(body.wte.weight)
    ours.positions.table.copy_(body.wpe.weight)
    for layer, block in zip(ours.decoder.layers, body.h, strict=True):
        attention, inner = layer.self_attention, layer.feed_forward
        packed = block.attn.c_attn
        parts = (attention.w_q, attention.w_k, attention.w_v)
        for part, weight, bias in zip(
            parts, packed.weight.T.chunk(3), packed.bias.chunk(3), strict=True
        ):
            part.weight.copy_(weight)
            part.bias.copy_(bias)
        for mine, other in (
            (attention.w_o, block.attn.c_proj),
            (inner.w_1, block.mlp.c_fc),
            (inner.w_2, block.mlp.c_proj),
        ):
            mine.weight.copy_(other.weight.T)
            mine.bias.copy_(other.bias)
        for mine, other in (
            (layer.self_attention_residual, block.ln_1),
            (layer.feed_forward_residual, block.ln_2),
        ):
            mine.norm.load_state_dict(other.state_dict())
    ours.decoder.norm.load_state_dict(body.ln_f.state_dict())


def parity_gpt() -> Compared:
    """Logits of whole texts."""
    ours, theirs = gpt2_pair()
    ids = torch.randint(0, 50, (4, 17))
    return {"logits": (ours(ids), theirs(ids).logits)}


# --- Switch


def switch_pair(
    capacity: int,
) -> tuple[SwitchFeedForward, SwitchTransformersSparseMLP]:
    """Four experts of ours, and four of theirs with the same parameters."""
    theirs = SwitchTransformersSparseMLP(
        SwitchTransformersConfig(
            d_model=16, d_ff=32, num_experts=4, expert_capacity=capacity,
            dropout_rate=0.0, router_jitter_noise=0.0,
        )
    ).eval()  # fmt: skip
    ours = SwitchFeedForward(16, 32, 4, capacity)
    with torch.no_grad():
        ours.router.weight.copy_(theirs.router.classifier.weight)
        for i, expert in enumerate(ours.experts):
            other = theirs.experts[f"expert_{i}"]
            expert.w_1.weight.copy_(other.wi.weight)
            expert.w_2.weight.copy_(other.wo.weight)
            expert.w_1.bias.zero_()
            expert.w_2.bias.zero_()
    return ours, theirs


def parity_switch() -> Compared:
    """What the experts answer, with room for all tokens and without."""
    x, found = torch.randn(5, 11, 16), {}
    for capacity in (64, 3):
        ours, theirs = switch_pair(capacity)
        found[f"experts, capacity {capacity}"] = ours(x), theirs(x)
    return found


# --- BERT and ELECTRA


def bert_config(**changes: float) -> BertConfig:
    """A small one, without dropout."""
    sizes = {
        "vocab_size": 40, "layers": 2, "d_model": 16, "d_ff": 64,
        "heads": 4, "learned_positions": 32, "dropout": 0.0,
        "attention_dropout": 0.0,
    }  # fmt: skip
    return BertConfig(**sizes | changes)


def reference(
    make: Callable, settings: type, config: BertConfig, **more: int
) -> nn.Module:
    """A model of the library with our sizes, and random parameters."""
    made = make(
        settings(
            vocab_size=config.vocab_size, hidden_size=config.d_model,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads, intermediate_size=config.d_ff,
            max_position_embeddings=config.learned_positions,
            layer_norm_eps=config.norm_eps, hidden_act="gelu",
            pad_token_id=config.pad, attn_implementation="eager", **more,
        )
    )  # fmt: skip
    for p in made.parameters():  # also where it would start with zeros
        torch.nn.init.normal_(p, std=0.2)
    return made.eval()


NAMES = {  # ours, and theirs, below a layer
    "self_attention.w_q": "attention.self.query",
    "self_attention.w_k": "attention.self.key",
    "self_attention.w_v": "attention.self.value",
    "self_attention.w_o": "attention.output.dense",
    "self_attention_residual.norm": "attention.output.LayerNorm",
    "feed_forward.w_1": "intermediate.dense",
    "feed_forward.w_2": "output.dense",
    "feed_forward_residual.norm": "output.LayerNorm",
}


def copy_encoder(ours: nn.Module, theirs: nn.Module) -> None:
    """Give a stack of ours the parameters of one of theirs."""
    for mine, other in zip(ours.layers, theirs.layer, strict=True):
        for name, path in NAMES.items():
            mine.get_submodule(name).load_state_dict(
                other.get_submodule(path).state_dict()
            )


@torch.no_grad()
def copy_embeddings(ours: nn.Module, theirs: nn.Module) -> None:
    """The same for words, positions, segments and their norm."""
    ours.words.weight.copy_(theirs.word_embeddings.weight)
    ours.positions.table.copy_(theirs.position_embeddings.weight)
    ours.segments.weight.copy_(theirs.token_type_embeddings.weight)
    ours.norm.load_state_dict(theirs.LayerNorm.state_dict())


@torch.no_grad()
def copy_words(
    ours: nn.Module, dense: nn.Module, norm: nn.Module, bias: Tensor
) -> None:
    """The same for the head that scores words."""
    ours.dense.load_state_dict(dense.state_dict())
    ours.norm.load_state_dict(norm.state_dict())
    ours.bias.copy_(bias)


def read(theirs: nn.Module) -> object:
    """What the reference makes of texts, with their segments and padding."""
    return theirs(
        input_ids=IDS,
        token_type_ids=segment_ids(IDS),
        attention_mask=(IDS != PAD).long(),
    )


def copy_bert(ours: Bert, theirs: nn.Module) -> None:
    """Embeddings and encoder."""
    copy_embeddings(ours.embeddings, theirs.embeddings)
    copy_encoder(ours.encoder, theirs.encoder)


def parity_bert() -> Compared:
    """Hidden vectors, pooled vectors and both heads, of padded texts."""
    config, real = bert_config(), IDS != PAD
    theirs = reference(BertForPreTraining, TheirBertConfig, config)
    ours = MaskedLanguageModel(config).eval()
    copy_bert(ours.bert, theirs.bert)
    ours.bert.pooler.load_state_dict(theirs.bert.pooler.dense.state_dict())
    head = theirs.cls.predictions
    copy_words(
        ours.words, head.transform.dense, head.transform.LayerNorm,
        head.decoder.bias,
    )  # fmt: skip
    ours.follows.load_state_dict(theirs.cls.seq_relationship.state_dict())
    hidden, expected = ours.bert(IDS), read(theirs.bert)
    pooled, answers = ours.bert.pool(hidden), read(theirs)
    return {
        "hidden vectors": (hidden[real], expected.last_hidden_state[real]),
        "pooled vectors": (pooled, expected.pooler_output),
        "words": (ours.logits(hidden)[real], answers.prediction_logits[real]),
        "next sentence": (
            ours.follows(pooled),
            answers.seq_relationship_logits,
        ),
    }


def parity_electra() -> Compared:
    """The discriminator, and the small generator."""
    config, real = bert_config(), IDS != PAD
    ours = Electra(config).eval()
    bert = reference(
        ElectraForPreTraining, ElectraConfig, config, embedding_size=16
    )
    copy_bert(ours.bert, bert.electra)
    head = bert.discriminator_predictions
    ours.dense.load_state_dict(head.dense.state_dict())
    ours.score.load_state_dict(head.dense_prediction.state_dict())
    small = bert_config(d_model=8, d_ff=32, heads=2)
    forger = reference(
        ElectraForMaskedLM, ElectraConfig, small, embedding_size=16
    )
    forger.electra.embeddings.load_state_dict(
        bert.electra.embeddings.state_dict()
    )
    ours.narrow.load_state_dict(forger.electra.embeddings_project.state_dict())
    copy_encoder(ours.generator, forger.electra.encoder)
    predictions = forger.generator_predictions
    copy_words(
        ours.words, predictions.dense, predictions.LayerNorm,
        forger.generator_lm_head.bias,
    )  # fmt: skip
    return {
        "discriminator": (ours.detect(IDS)[real], read(bert).logits[real]),
        "generator": (ours.generate(IDS, real), read(forger).logits[real]),
    }


# --- rotations


def parity_roformer() -> Compared:
    """Weights of attention, at fifty positions."""
    config = RoFormerConfig(
        hidden_size=32, num_attention_heads=4, attention_probs_dropout_prob=0.0
    )
    theirs, ours = RoFormerSelfAttention(config), MultiHeadAttention(32, 4)
    for w, name in ((ours.w_q, "query"), (ours.w_k, "key")):
        other = getattr(theirs, name)
        torch.nn.init.zeros_(other.bias)
        w.weight.data = other.weight.data
    ours.position = RotaryPosition(8)
    wave = RoFormerSinusoidalPositionalEmbedding(50, 8).create_weight()
    x = torch.randn(2, 50, 32)
    expected = theirs(x, sinusoidal_pos=wave[None, None])[1]
    return {"weights": (ours.weights(x, x), expected)}


def llama(**rope: object) -> LlamaRotaryEmbedding:
    """Llama's angles, for heads of 16 that were trained on 32 positions."""
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=32,
        rope_parameters={"rope_theta": 10000.0} | rope,
    )
    return LlamaRotaryEmbedding(config)


def parity_llama() -> Compared:
    """Scores; Llama pairs component i with i + d/2, so rows are permuted."""
    q, k = torch.randn(2, 1, 4, 30, 16)
    halves = [x.unflatten(-1, (-1, 2)).mT.flatten(-2) for x in (q, k)]
    cos, sin = llama(rope_type="default")(q, torch.arange(30)[None])
    turned = apply_rotary_pos_emb(*halves, cos, sin)
    mine, other, _ = RotaryPosition(16)(q, k)
    return {"scores": (mine @ other.mT / 4, turned[0] @ turned[1].mT / 4)}


def parity_ntk() -> Compared:
    """Cosines of all angles, within the trained length and beyond it."""
    found, theirs = {}, llama(rope_type="dynamic", factor=2.0)
    for length in (20, 33, 96):
        position = torch.arange(length)
        cos, _ = theirs(torch.zeros(1), position[None])
        factor = dynamic_factor(length, 32, 2.0)
        angles = position[:, None] * frequencies(16, factor)
        found[f"{length} positions"] = angles.cos(), cos[0, :, :8]
    return found


MODELS = {  # ours, theirs, the bound, and how to compare
    "GPT": ("GPT2LMHeadModel", 1e-5, parity_gpt),
    "Switch": ("SwitchTransformersSparseMLP", 1e-6, parity_switch),
    "BERT": ("BertForPreTraining", 1e-5, parity_bert),
    "ELECTRA": ("ElectraForPreTraining, -MaskedLM", 1e-5, parity_electra),
    "rotary": ("RoFormerSelfAttention", 2e-6, parity_roformer),
    "rotary, halves": ("Llama's rotation", 1e-5, parity_llama),
    "dynamic NTK": ("LlamaRotaryEmbedding", 2e-5, parity_ntk),
}


@torch.no_grad()
def compare(model: str) -> list[dict]:
    """The largest difference of each part of a model, over all seeds."""
    theirs, bound, parity = MODELS[model]
    rows: dict[str, dict] = {}
    for seed in SEEDS:
        torch.manual_seed(seed)
        for part, (mine, other) in parity().items():
            row = rows.setdefault(
                part,
                {"model": model, "reference": theirs, "part": part,
                 "difference": 0.0, "largest": 0.0, "bound": bound},
            )  # fmt: skip
            far = (mine - other).abs().max().item()
            row["difference"] = max(row["difference"], float(f"{far:.1e}"))
            size = other.abs().max().item()
            row["largest"] = max(row["largest"], float(f"{size:.2g}"))
    return list(rows.values())


def main() -> None:
    """Compare all, and write it down."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    rows = [row for model in MODELS for row in compare(model)]
    records.write_record("parity", rows, ("torch", "transformers"), list(SEEDS))


def check() -> Iterator[records.Checked]:
    """That all differences, stored and computed now, are within the bounds."""
    rows = [row for model in MODELS for row in compare(model)]
    for stored, row in zip(
        records.load_record("parity")["rows"], rows, strict=True
    ):
        name = f"{row['model']}, {row['part']}"
        yield f"{name}, bound", stored["bound"], row["bound"]
        for found in (stored, row):
            yield f"{name}, within", found["difference"] < row["bound"], True


if __name__ == "__main__":
    records.start(main, check)
