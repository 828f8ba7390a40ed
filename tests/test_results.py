"""What the paper reports, as quoted here, and what follows from it."""

import importlib.util
import re
from itertools import product

import pytest

from tests.site import ROOT
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
VARIATIONS = load_result("variations")


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
    """Three times from nothing, an eighth as large and half as deep."""
    rows = VARIATIONS["rows"]
    for number, (group, change, *_) in enumerate(TABLE_3):
        seeds = 1 if group == "big" else 3
        first = 3 * number
        wanted = BASE_ROW | change
        for seed, row in enumerate(rows[first : first + seeds]):
            assert (row["group"], row["seed"]) == (group, seed)
            settings = row["settings"]
            assert settings["layers"] == wanted["N"] // 2
            assert settings["heads"] == wanted["h"]
            for key in ("d_model", "d_ff", "d_k", "d_v"):
                assert settings[key] == wanted[key] // 8
            assert settings["dropout"] == wanted["P_drop"]
            assert settings["label_smoothing"] == wanted["eps_ls"]
            assert (settings["learned_positions"] > 0) == (group == "E")
            assert settings["steps"] == (1800 if group == "big" else 600)
    assert len(rows) == 3 * 19 + 1


def mean(key, group, **change):
    """The mean of a measure over the runs of a row."""
    found = [
        row[key]
        for row in VARIATIONS["rows"]
        if row["group"] == group and change.items() <= row["settings"].items()
    ]
    assert len(found) == 3
    return sum(found) / 3


def test_what_is_narrow_is_worse_in_the_miniature():
    """Heads, keys and vectors; and what is wider is better."""
    base = mean("perplexity", "base")
    heads = [mean("perplexity", "A", heads=h) for h in (1, 16, 32)]
    assert heads[0] < base < heads[1] < heads[2]
    keys = [mean("perplexity", "B", d_k=d_k) for d_k in (4, 2)]
    assert base < keys[0] < keys[1]
    assert mean("perplexity", "C", d_model=128) < base
    assert mean("perplexity", "C", d_model=32) > base


def test_dropout_in_the_miniature():
    """It does not help three times through a corpus; later it does."""
    shares = [mean("perplexity", "D", dropout=0.0), mean("perplexity", "base")]
    assert shares[0] < shares[1] < mean("perplexity", "D", dropout=0.2)
    base, *_, without = VARIATIONS["longer"]
    assert (base["group"], without["settings"]["dropout"]) == ("base", 0.0)
    assert base["perplexity"] < 0.95 * without["perplexity"]
    ours, others = dict(base["curve"]), dict(without["curve"])
    assert others[600] < ours[600]
    assert all(ours[step] < others[step] for step in ours if step >= 900)
    assert without["train_nll"] < without["nll"]  # it learns by heart
    assert base["train_nll"] > base["nll"]


def test_the_big_miniature_owes_its_line_to_its_updates():
    """At equal updates the base model is ahead."""
    *_, big = VARIATIONS["rows"]
    base = dict(VARIATIONS["longer"][0]["curve"])
    assert all(nll > base[step] for step, nll in big["curve"])


def test_depth_in_the_miniature():
    """One layer is behind three, when there is time for it to show."""
    base, _, shallow, half, deep, _ = VARIATIONS["longer"]
    rows = (base, shallow, half, deep)
    assert [row["settings"]["layers"] for row in rows] == [3, 1, 2, 4]
    assert base["perplexity"] < half["perplexity"]
    assert base["perplexity"] < 0.95 * shallow["perplexity"]
    assert deep["perplexity"] < shallow["perplexity"]


def test_smoothing_in_the_miniature():
    """It costs perplexity; accuracy and BLEU have better means with it."""
    none, twice = {"label_smoothing": 0.0}, {"label_smoothing": 0.2}
    assert mean("perplexity", "D", **none) < mean("perplexity", "base")
    assert mean("perplexity", "base") < mean("perplexity", "D", **twice)
    for key in ("accuracy", "bleu"):
        assert mean(key, "D", **none) < mean(key, "base")


# --- every result

RESULTS = sorted(path.stem for path in (ROOT / "results").iterdir())
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


def test_multi30k_was_scored_every_way():
    """Three averages, three searches, beside the published figure."""
    found = load_result("multi30k-en-de")
    assert found["published"] == 41.02
    assert found["command"].startswith("python -m experiments.multi30k")
    cells = [(row["averaged"], row["search"]) for row in found["rows"]]
    searches = ("as published", "as in the paper", "greedy")
    grid = [(last, name) for last in (1, 5, 10) for name in searches]
    assert cells == [*grid, (10, "alpha chosen")]
    chosen = found["valid_bleu_by_alpha"]
    best = max(chosen, key=chosen.get)
    assert found["rows"][-1]["settings"]["alpha"] == float(best)
    for row in found["rows"]:
        low, high = row["interval"]
        assert low < row["tokenised_bleu"] < high
        assert "tok:none" in row["tokenised_signature"]
        assert "tok:13a" in row["sacrebleu_signature"]


def test_multi30k_meets_the_published_figure():
    """With their search and average, as well as 1,000 captions can tell."""
    found = load_result("multi30k-en-de")
    [row] = [
        row
        for row in found["rows"]
        if (row["averaged"], row["search"]) == (10, "as published")
    ]
    assert row["settings"] == {"beam": 5, "alpha": 1.0, "offset": 0}
    assert abs(row["tokenised_bleu"] - found["published"]) < 0.1
    assert row["interval"][0] < found["published"] < row["interval"][1]


def test_averages_beat_single_checkpoints():
    """With each of the searches, by more than half a point."""
    rows = load_result("multi30k-en-de")["rows"]
    for one, ten in zip(rows[:3], rows[6:9], strict=True):
        assert (one["averaged"], ten["averaged"]) == (1, 10)
        assert one["search"] == ten["search"]
        assert ten["tokenised_bleu"] > one["tokenised_bleu"] + 0.5


def test_beam_and_penalty_on_the_validation_part():
    """The whole grid: what a beam gains, and what a penalty is for."""
    found = load_result("beam")
    beams, alphas = (1, 2, 4, 8, 16), (0.0, 0.6, 1.0, 2.0)
    grid = {(row["beam"], row["alpha"]): row for row in found["rows"]}
    assert list(grid) == list(product(beams, alphas))
    assert found["pairs"] == 2_000
    assert grid[4, 0.6]["bleu"] > grid[1, 0.6]["bleu"] + 1
    assert max(grid, key=lambda cell: grid[cell]["bleu"])[1] == 2.0
    for key in ("bleu", "length"):  # better search, worse translations
        bare = [grid[beam, 0.0][key] for beam in beams[1:]]
        assert bare == sorted(bare, reverse=True)
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
