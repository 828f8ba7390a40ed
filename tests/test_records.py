"""Results can be checked, and the page of records says what they say."""

import gzip
import json
import re
import runpy
import sys

import pytest
import record_table

from benchmarks import report
from experiments import news, records
from tests.runs import go
from tests.site import ROOT
from transformer_annotated.evaluation import bleu
from transformer_annotated.workshop.files import read_lines
from transformer_annotated.workshop.journal import read_metrics

RESULTS = record_table.load(ROOT / "results")
EACH_RESULT = pytest.mark.parametrize("name", RESULTS)
EXPERIMENTS = sorted(
    path.stem
    for path in (ROOT / "experiments").glob("*.py")
    if "__main__" in path.read_text("utf-8")
)


def stored_well(found):
    """Whether journals and outputs are as the result says."""
    checked = records.verdicts(records.check_stored(found))
    return all(same for _, same in checked)


# --- every experiment


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_stored_numbers_follow_from_what_is_stored(name, monkeypatch, capsys):
    """With ``--check``, within seconds, and nothing is written."""
    before = {p: p.stat().st_mtime_ns for p in (ROOT / "results").rglob("*")}
    monkeypatch.setattr(sys, "argv", [name, "--check"])
    monkeypatch.delitem(sys.modules, f"experiments.{name}", raising=False)
    try:
        runpy.run_module(f"experiments.{name}", run_name="__main__")
    except SystemExit as end:
        assert not end.code, capsys.readouterr().out
    after = {p: p.stat().st_mtime_ns for p in (ROOT / "results").rglob("*")}
    assert after == before


@EACH_RESULT
def test_what_a_result_names_is_there(name):
    """Journals and outputs, unchanged."""
    assert stored_well(RESULTS[name])


def test_bleu_of_the_stored_news():
    """Computed anew from translations and references, to the last digit."""
    found = RESULTS["news"]
    for row in found["rows"]:
        target = row["model"].rpartition("-")[2]
        if not news.news(target):
            pytest.skip("TRANSFORMER_ANNOTATED_DATA leads to no newstest")
        outputs = records.output(found, row["model"])
        score = bleu(outputs, read_lines(news.news(target)))
        assert round(score.value, 2) == row["scores"]["BLEU"]["value"]


# --- how a record is written


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A record of a small run, in a folder of its own."""
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    report.RESULTS.mkdir()
    go(tmp_path / "run")
    lines = ["Ein Satz.", "", "ein\u2028anderer", "<b>"]
    rows = [{"bleu": 12.3}]
    folders = {"seed-0": tmp_path / "run"}
    outputs = {"test": lines}
    records.write_record(
        "tiny", rows, ("torch",), 0, folders, outputs, tested=4
    )
    return tmp_path


def test_a_result_is_laid_out_for_people():
    """The same value, in lines that are short, and not one for each number."""
    value = {
        "command": "python -m x" + 40 * " --long",
        "näme": {str(i): [i, i / 3] for i in range(20)},
        "many": list(range(1000)),
        "pairs": [[i, [0.25, None]] for i in range(200)],
        "rows": 2 * [{"a": "x, [y]", "b": [], "c": {}, "n": 30 * [1]}],
        "true": True,
    }
    text = report.lay_out(value)
    assert json.loads(text) == value
    _, _, *lines = text.splitlines()
    assert max(map(len, lines)) <= report.WIDTH + len('"näme": ')
    assert len(lines) < 150
    assert report.lay_out([]) == "[]" and report.lay_out({"a": 1}) == '{"a": 1}'


def test_a_record_has_it_all(written):
    """Command, seed, versions, machine, time, memory, journal, outputs."""
    found = records.load_record("tiny")
    assert found["rows"] == [{"bleu": 12.3}] and found["tested"] == 4
    for key in ("command", "date", "machine", "versions"):
        assert found[key]
    assert found["seed"] == 0
    assert found["seconds"] > 0 and found["peak_megabytes"] > 50
    assert records.journal(found, "seed-0") == read_metrics(written / "run")
    lines = ["Ein Satz.", "", "ein\u2028anderer", "<b>"]
    assert records.output(found, "test") == lines
    log = found["logs"]["seed-0"]
    assert log["updates"] == 12 and log["best_valid_nll"] > 0
    assert stored_well(found)


def test_packing_is_the_same_each_time(written):
    """Or every run would change files that say the same."""
    for suffix in (".gz", ".xz"):
        once, again = (records.pack(["a", "b"], suffix) for _ in range(2))
        assert once == again
    with pytest.raises(ValueError, match="an end of line inside"):
        records.write_record("tiny", [], (), 0, outputs={"test": ["a\nb"]})
    assert records.load_record("tiny")["rows"]  # as it was


def test_a_check_finds_what_was_changed(written):
    """A journal, an output, a number."""
    found = records.load_record("tiny")
    journal = report.RESULTS / found["logs"]["seed-0"]["file"]
    lines = gzip.decompress(journal.read_bytes()).decode().splitlines()
    journal.write_bytes(records.pack(lines[:-2], ".gz"))
    output = report.RESULTS / found["outputs"]["test"]["file"]
    output.write_bytes(records.pack(["Ein Satz!", "", "", ""], ".xz"))
    checked = records.verdicts(records.check_stored(found))
    wrong = [line for line, same in checked if not same]
    assert any(line.startswith("test, digest: stored ") for line in wrong)
    assert any(line.startswith("seed-0, ") for line in wrong)
    assert not any(line.startswith("test, lines") for line in wrong)


def test_a_paired_test_has_a_sign():
    """The first has more, the second has more, and neither."""
    right = [f"the {n} dogs of the house sleep" for n in range(60)]
    wrong = [f"the {n} dogs of a house slept" for n in range(60)]
    for first, second, sign in (
        (right, wrong, 1),
        (wrong, right, -1),
        (right, right, 0),
    ):
        found = records.paired_test(first, second, right)
        assert sign * found["difference"] >= 10 * abs(sign)
        assert found["p"] < 0.01 if sign else found["p"] == 1


def test_what_is_there_is_not_made_again(tmp_path):
    """A file in a folder yet to come, read the second time."""
    made = []

    def make():
        made.append(1)
        return {"row": (1, 2), "text": "ä"}

    for _ in range(2):
        found = records.cached(tmp_path / "runs/one.json", make)
        assert found == {"row": [1, 2], "text": "ä"}
    assert made == [1]
    assert "ä" in (tmp_path / "runs/one.json").read_text("utf-8")


def test_verdicts():
    """Equal, near enough, too far, and not to be told."""
    near, far = ("b", 1.0, 1.01, 0.1), ("c", 1.0, 1.2, 0.1)
    other = ("e", {"x": 1}, {"x": 2})
    found = records.verdicts([("a", 1, 1), near, far, ("d",), other])
    assert [same for _, same in found] == [True, True, False, None, False]


@pytest.mark.parametrize("stored", [1, 2])
def test_the_exit_code_of_a_check(stored, monkeypatch, capsys):
    """Not that of success, if a number is wrong; and main is not called."""
    monkeypatch.setattr(sys, "argv", ["experiment", "--check"])
    with pytest.raises(SystemExit) as end:
        records.start(
            lambda: pytest.fail("it trained"), lambda: [("n", stored, 1)]
        )
    said = capsys.readouterr().out
    assert bool(end.value.code) == (stored == 2) == ("wrong: n: " in said)
    assert "1 numbers checked" in said


# --- the page


@EACH_RESULT
def test_the_page_says_what_the_file_says(name):
    """Command, date, seeds and machine of each result, from its file."""
    [row] = record_table.record_rows({name: RESULTS[name]})
    text, found = " ".join(row), RESULTS[name]
    for key in ("command", "date", "machine"):
        assert found[key] in text
    seed = found["seed"]
    for one in seed if isinstance(seed, list) else [seed]:
        assert one is None or str(one) in row[1]
    if "seconds" not in found:
        assert f"command: {record_table.MISSING}" in row[2]


def test_what_is_missing_is_said(written):
    """And what is there is shown."""
    bare = record_table.record_rows({"old": {"rows": []}})
    assert " ".join(bare[0]).count(record_table.MISSING) == 8
    found = records.load_record("tiny")
    [row] = record_table.record_rows({"tiny": found})
    assert record_table.MISSING not in " ".join(row)
    assert "`tiny/seed-0.jsonl.gz`: 12 updates" in row[3]
    assert "`tiny/test.txt.xz`: 4 lines" in row[3]
    [speed] = record_table.speed_rows({"tiny": found})
    assert speed[0] == "tiny, seed-0"


def test_the_page_is_whole():
    """A row for each result, the speeds, and the stored curves."""
    page = record_table.page_text(RESULTS)
    names = re.findall(r"\* - \*\*(.*?)\*\*<br>", page)
    assert names == sorted(RESULTS)
    assert "training-base" in page.partition("## Speed of training")[2]
    curves = [name for name, found in RESULTS.items() if found.get("seeds")]
    assert page.count("<figure") == len(curves) >= 1
    text = (ROOT / "book/records.md").read_text("utf-8")
    assert text.count(record_table.PLACEHOLDER) == 1
    assert json.dumps(RESULTS)  # all of it is plain JSON
