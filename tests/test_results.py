"""What the paper reports, as quoted here, and what follows from it."""

import importlib.util
import re
import statistics
from itertools import product

import pytest
from scipy import stats
from torch import nn

from experiments.significance import compared, holm
from tests.site import ROOT
from transformer_annotated import Transformer, TransformerConfig
from transformer_annotated.attention import MultiHeadAttention
from transformer_annotated.workshop.files import load_result, paper_tables

PAPER = paper_tables()
TABLE = {row["model"]: row for row in PAPER["table2"]}
BASE, BIG = TABLE["Transformer (base model)"], TABLE["Transformer (big)"]
OTHERS = [row for row in TABLE.values() if row not in (BASE, BIG)]


def test_results_are_found_by_name():
    """What an experiment has written; or the name that was perhaps meant."""
    assert load_result("beam")["model"] == "tatoeba-de-en"
    with pytest.raises(ValueError, match=r"unknown result, 'baem'; .* 'beam'"):
        load_result("baem")


def test_table_2_is_quoted_right():
    """Ten models, with the scores and costs that the paper prints."""
    assert len(TABLE) == 10
    german = {n: row["en_de"] for n, row in TABLE.items() if "en_de" in row}
    assert list(german.values()) == [
        *(23.75, 24.6, 25.16, 26.03),
        *(26.3, 26.36, 27.3, 28.4),
    ]
    french = [row["en_fr"] for row in TABLE.values() if "en_fr" in row]
    assert french == [
        *(39.2, 39.92, 40.46, 40.56),
        *(40.4, 41.16, 41.29, 38.1, 41.8),
    ]
    costs = [row.get("flops_en_de") for row in OTHERS]
    assert costs == [None, None, 2.3e19, 9.6e18, 2e19, None, 1.8e20, 7.7e19]
    costs = [row.get("flops_en_fr") for row in OTHERS]
    assert costs == [None, 1e20, 1.4e20, 1.5e20, 1.2e20, 8e20, 1.1e21, 1.2e21]


def test_the_claims_about_table_2():
    """What the text says of the models follows from the table."""
    best = max(row.get("en_de", 0) for row in OTHERS)
    assert BIG["en_de"] - best > 2.0
    assert BASE["en_de"] > best
    assert all(
        BASE["flops"] < row["flops_en_de"]
        for row in OTHERS
        if "flops_en_de" in row
    )
    single = [row for row in OTHERS if "Ensemble" not in row["model"]]
    champion = max(single, key=lambda row: row.get("en_fr", 0))
    assert BIG["en_fr"] > champion["en_fr"]
    assert BIG["flops"] < champion["flops_en_fr"] / 4


# --- Table 3

KEYS = ("N", "d_model", "d_ff", "h", "d_k", "d_v", "P_drop", "eps_ls")
BIG_ROW = {"d_model": 1024, "d_ff": 4096, "h": 16, "P_drop": 0.3}
TABLE_3 = [  # the base model's values, and what the rows change
    ("base", {}, 4.92, 25.8),
    ("A", {"h": 1, "d_k": 512, "d_v": 512}, 5.29, 24.9),
    ("A", {"h": 4, "d_k": 128, "d_v": 128}, 5.00, 25.5),
    ("A", {"h": 16, "d_k": 32, "d_v": 32}, 4.91, 25.8),
    ("A", {"h": 32, "d_k": 16, "d_v": 16}, 5.01, 25.4),
    ("B", {"d_k": 16}, 5.16, 25.1),
    ("B", {"d_k": 32}, 5.01, 25.4),
    ("C", {"N": 2}, 6.11, 23.7),
    ("C", {"N": 4}, 5.19, 25.3),
    ("C", {"N": 8}, 4.88, 25.5),
    ("C", {"d_model": 256, "d_k": 32, "d_v": 32}, 5.75, 24.5),
    ("C", {"d_model": 1024, "d_k": 128, "d_v": 128}, 4.66, 26.0),
    ("C", {"d_ff": 1024}, 5.12, 25.4),
    ("C", {"d_ff": 4096}, 4.75, 26.2),
    ("D", {"P_drop": 0.0}, 5.77, 24.6),
    ("D", {"P_drop": 0.2}, 4.95, 25.5),
    ("D", {"eps_ls": 0.0}, 4.67, 25.3),
    ("D", {"eps_ls": 0.2}, 5.47, 25.7),
    ("E", {}, 4.92, 25.7),
    ("big", BIG_ROW, 4.33, 26.4),
]
BASE_ROW = dict(zip(KEYS, (6, 512, 2048, 8, 64, 64, 0.1, 0.1), strict=True))
TRAINED = load_result("table3")["rows"]


def test_table_3_is_quoted_right():
    """Twenty models, with the sizes and scores that the paper prints."""
    rows = PAPER["table3"]
    for row, (group, change, perplexity, score) in zip(
        rows, TABLE_3, strict=True
    ):
        assert row["group"] == group
        assert {key: row[key] for key in KEYS} == BASE_ROW | change
        assert (row["ppl_dev"], row["bleu_dev"]) == (perplexity, score)
        assert row["train_steps"] == (300_000 if group == "big" else 100_000)


def test_every_row_of_table_3_was_trained():
    """From nothing, several times: a quarter as wide and half as deep."""
    runs = {
        (run["group"], *run["paper"]["changed"].items(), run["seed"]): run
        for run in TRAINED
    }
    for (group, change, *_), row in zip(TABLE_3, PAPER["table3"], strict=True):
        wanted = BASE_ROW | change
        heads = max(1, wanted["h"] // 2)
        for seed in range({"base": 6, "big": 1}.get(group, 3)):
            run = runs.pop((group, *row["changed"].items(), seed))
            settings = run["settings"]
            assert settings["layers"] == wanted["N"] // 2
            assert settings["heads"] == heads
            for key in ("d_model", "d_ff"):
                assert settings[key] == wanted[key] // 4
            for key in ("d_k", "d_v"):
                assert 4 * heads * settings[key] == wanted["h"] * wanted[key]
            assert settings["dropout"] == wanted["P_drop"]
            assert settings["label_smoothing"] == wanted["eps_ls"]
            assert (settings["learned_positions"] > 0) == (group == "E")
            assert run["updates"] == (10_800 if group == "big" else 3_600)
            assert settings["steps"] >= run["updates"]
    assert not runs


SIGNIFICANCE = {
    (row["measure"], row["group"], *row["changed"].items()): row
    for row in load_result("significance")["rows"]
}


def significant(group, key, value, measure="nll"):
    """The sign of a row's difference from the base; 0 may be chance."""
    (row,) = (
        row
        for (of, name, *changed), row in SIGNIFICANCE.items()
        if (of, name) == (measure, group) and (key, value) in changed
    )
    return (
        (1 if row["difference"] > 0 else -1) if row["p_dunnett"] < 0.05 else 0
    )


def test_one_row_is_tested_as_by_student():
    """Equal spreads: t = 2.449 with four degrees of freedom, in any test."""
    rows = {("row",): [2.0, 3.0, 4.0]}
    ((_, found),) = compared(rows, [0.0, 1.0, 2.0])
    assert (found["runs"], found["difference"]) == (3, 2.0)
    for test in ("dunnett", "welch", "holm"):
        assert abs(found[f"p_{test}"] - 0.0705) < 0.0005


def test_many_rows_ask_for_more():
    """Dunnett's tabulated value for three rows and ten degrees is 2.76."""
    base = [-1.0, 0.0, 0.0, 0.0, 1.0]  # variance 1/2, as have the rows
    spread = [-(0.5**0.5), 0.0, 0.5**0.5]
    step = 2.76 * (0.5 * (1 / 5 + 1 / 3)) ** 0.5
    rows = {("far",): [step + x for x in spread]}
    rows |= {(name,): spread for name in ("near", "as near")}
    found = dict(compared(rows, base))
    assert abs(found["far",]["p_dunnett"] - 0.05) < 0.003


def test_holm_by_hand():
    """Times 3, times 2, times 1; never less than one before, never over 1."""
    found = holm({"a": 0.4, "b": 0.01, "c": 0.03})
    assert found == {"b": 0.03, "c": 0.06, "a": 0.4}
    assert holm({"a": 0.3, "b": 0.4}) == {"a": 0.6, "b": 0.6}
    assert holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}


def test_every_row_of_several_runs_was_tested():
    """In every measure, from the runs that are stored."""
    several = {
        (row["group"], *row["paper"]["changed"].items())
        for row in TRAINED
        if row["seed"] > 0 and row["group"] != "base"
    }
    assert len(several) == 18
    for measure in ("nll", "nll_at_cost_of_base", "bleu"):
        tested = {key[1:] for key in SIGNIFICANCE if key[0] == measure}
        assert tested == several


def test_what_is_small_is_worse_here():
    """One layer, narrow vectors, narrow heads and keys, beyond chance."""
    assert significant("C", "N", 2) == significant("C", "d_model", 256) == 1
    assert significant("A", "h", 32) == significant("B", "d_k", 16) == 1


def test_dropout_here():
    """Without it, training sentences are learnt by heart, and others not."""
    assert significant("D", "P_drop", 0.0) == 1
    assert significant("D", "P_drop", 0.2) == 0
    assert significant("D", "P_drop", 0.2, "bleu") == -1
    for run in TRAINED:
        learnt = run["train_nll"] < run["nll"]
        assert learnt or run["settings"]["dropout"] > 0
        assert not learnt or run["group"] != "base"


def test_smoothing_here():
    """It costs likelihood, and brings BLEU."""
    assert significant("D", "eps_ls", 0.0) == -1
    assert significant("D", "eps_ls", 0.2) == 1
    assert significant("D", "eps_ls", 0.0, "bleu") == -1
    assert significant("D", "eps_ls", 0.2, "bleu") == 0


def test_what_is_dear_is_worse_at_equal_cost():
    """Not at equal updates: the wide row had two fifths of the base's."""
    cost = "nll_at_cost_of_base"
    assert significant("C", "d_model", 1024, cost) == 1
    assert significant("C", "d_model", 1024) <= 0


def test_the_two_tables_have_nearly_one_order():
    """Rank correlation of the changes from the base, eighteen rows."""
    theirs = [row["ppl_dev"] for row in PAPER["table3"][1:-1]]
    ours = [
        row["difference"]
        for (measure, *_), row in SIGNIFICANCE.items()
        if measure == "nll"
    ]
    assert stats.spearmanr(theirs, ours).statistic > 0.5


# --- the conclusion


def test_there_is_attention_and_no_recurrence():
    """Nor a convolution; every layer attends, in encoder and decoder."""
    model = Transformer(TransformerConfig.tiny(50))
    kinds = (nn.RNNBase, nn.RNNCellBase, nn.modules.conv._ConvNd)
    assert not any(isinstance(module, kinds) for module in model.modules())
    attentions = [
        module
        for module in model.modules()
        if isinstance(module, MultiHeadAttention)
    ]
    assert len(attentions) == 3 * model.config.layers


# --- every result

RESULTS = sorted(path.stem for path in (ROOT / "results").glob("*.json"))
CHAPTERS = [
    path.read_text("utf-8") for path in (ROOT / "notebooks").rglob("*.ipynb")
]


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_says_how_it_was_made(name):
    """A command that is there, the day, the seed, machine and versions."""
    found = load_result(name)
    python, option, module, *_ = found["command"].split()
    assert (python, option) == ("python", "-m")
    assert module.startswith(("benchmarks.", "experiments."))
    assert importlib.util.find_spec(module)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"])
    assert found["machine"] and "python" in found["versions"]
    assert "seed" in found


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_read_by_a_chapter(name):
    """What nobody reads need not be kept."""
    group = name.partition("-")[0]  # of training-tiny and training-base
    named = rf"results/{name}\.json|[\"']{name}[\\\"']|[\"']{group}-\{{"
    assert any(re.search(named, chapter) for chapter in CHAPTERS)


# --- what was run here


MULTI30K = load_result("multi30k-en-de")
MULTI30K_ROWS = {
    run["seed"]: [row for row in MULTI30K["rows"] if row["seed"] == run["seed"]]
    for run in MULTI30K["seeds"]
}
EACH_SEED = pytest.mark.parametrize("seed", MULTI30K_ROWS)


@EACH_SEED
def test_multi30k_was_scored_every_way(seed):
    """Three averages, three searches, beside the published figure."""
    assert MULTI30K["published"] == 41.02
    assert MULTI30K["command"].startswith("python -m experiments.multi30k")
    rows = MULTI30K_ROWS[seed]
    cells = [(row["averaged"], row["search"]) for row in rows]
    searches = ("as published", "as in the paper", "greedy")
    grid = [(last, name) for last in (1, 5, 10) for name in searches]
    assert cells == [*grid, (10, "alpha chosen")]
    for row in rows:
        low, high = row["interval"]
        assert low < row["tokenised_bleu"] < high
        assert "tok:none" in row["tokenised_signature"]
        assert "tok:13a" in row["sacrebleu_signature"]


@EACH_SEED
def test_multi30k_meets_the_published_figure(seed):
    """With their search and average, as well as 1,000 captions can tell."""
    [row] = [
        row
        for row in MULTI30K_ROWS[seed]
        if (row["averaged"], row["search"]) == (10, "as published")
    ]
    assert row["settings"] == {"beam": 5, "alpha": 1.0, "offset": 0}
    assert row["interval"][0] < MULTI30K["published"] < row["interval"][1]


@EACH_SEED
def test_averages_beat_single_checkpoints(seed):
    """With each of the searches."""
    rows = MULTI30K_ROWS[seed]
    for one, ten in zip(rows[:3], rows[6:9], strict=True):
        assert (one["averaged"], ten["averaged"]) == (1, 10)
        assert one["search"] == ten["search"]
        assert ten["tokenised_bleu"] > one["tokenised_bleu"]


def test_the_readme_says_what_was_measured():
    """Multi30k as published, and the pairs on which nothing was chosen."""
    text = (ROOT / "README.md").read_text("utf-8")
    captions = [
        row["tokenised_bleu"]
        for row in MULTI30K["rows"]
        if (row["averaged"], row["search"]) == (10, "as published")
    ]
    assert f"| {statistics.mean(captions):.2f} ± " in text
    both = []
    for name in ("tatoeba-de-en", "tatoeba-en-de"):
        found = load_result(name)["rows"]
        low, high = found["test_bleu_interval"]
        both.append(f"{found['test_bleu']:.1f} ± {(high - low) / 2:.1f}")
    assert f"| {', '.join(both)} |" in text


def test_beam_and_penalty_on_the_validation_part():
    """The whole grid: what a beam gains, and what a penalty is for."""
    found = load_result("beam")
    beams, alphas = (1, 2, 4, 8, 16), (0.0, 0.6, 1.0, 2.0)
    grid = {(row["beam"], row["alpha"]): row for row in found["rows"]}
    assert list(grid) == list(product(beams, alphas))
    assert found["pairs"] == 2_000
    tests = {(test["beam"], test["alpha"]): test for test in found["tests"]}
    assert tests[1, 0.6]["difference"] > 0.5 and tests[1, 0.6]["p"] < 0.01
    bare = [grid[beam, 0.0]["length"] for beam in beams[1:]]
    assert bare == sorted(bare, reverse=True)  # without a penalty
    for key in ("bleu", "length"):
        assert len({grid[1, alpha][key] for alpha in alphas}) == 1
    for beam in beams[1:]:
        lengths = [grid[beam, alpha]["length"] for alpha in alphas]
        assert lengths == sorted(lengths)


def test_the_news_is_another_domain():
    """Far below the scores on everyday sentences, in both directions."""
    found = load_result("news")["rows"]
    assert [row["model"] for row in found] == ["tatoeba-de-en", "tatoeba-en-de"]
    for row in found:
        assert row["pairs"] == 3_000
        score = row["scores"]["BLEU"]
        assert "tok:13a" in score["signature"]
        assert row["interval"][0] < score["value"] < row["interval"][1]
        assert score["value"] < load_result(row["model"])["rows"]["bleu"] / 2
