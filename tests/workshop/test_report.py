"""The report of a run: whole, alone, escaped, and never in the way."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from bs4 import BeautifulSoup

from tests.workshop.test_cli import (
    COPY,
    MODEL,
    call,
    changes,
    refuses,
    succeeds,
)
from transformer_annotated import distributed
from transformer_annotated.training import TrainState
from transformer_annotated.workshop import recipe, report
from transformer_annotated.workshop.files import find_model
from transformer_annotated.workshop.report import (
    RunFolder,
    duration,
    read_evaluations,
    sample_pairs,
    summary,
    weights_used,
    write_report,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of four updates, with its report; nobody may change it."""
    folder = tmp_path_factory.mktemp("runs") / "a run & <b>"
    out = succeeds("train", "copy", "--out", folder, *COPY)
    assert out.splitlines()[-1] == f"Report: {folder / 'report.html'}"
    return folder


@pytest.fixture
def copy(run, tmp_path):
    """A copy of the run, to be changed."""
    return shutil.copytree(run, tmp_path / "copy")


def parsed(folder):
    """The page of a run."""
    text = (folder / "report.html").read_text(encoding="utf-8")
    return BeautifulSoup(text, "lxml")


def keeps(folder, *arguments):
    """What a refusal says; the page is as it was."""
    page = folder / "report.html"
    before = page.read_bytes() if page.exists() else None
    line = refuses(*arguments)
    assert (page.read_bytes() if page.exists() else None) == before
    return line


# --- what is on it


def test_a_report_has_it_all(run):
    """Curves, rate, speed, samples, attention, commands, every setting."""
    soup = parsed(run)
    heads = [tag.string for tag in soup.select("main h2")]
    assert heads == [
        *("Curves", "Sample translations", "Attention"),
        *("What next", "Settings"),
    ]
    assert soup.h1.string == f"Run {run.name}"
    specs = [json.loads(tag.string) for tag in soup.select("figure script")]
    assert len(specs) == 4
    loss = {row["of"] for row in specs[0]["data"]["values"]}
    assert loss == {
        *("training, NLL", "validation, NLL", "training, smoothed loss")
    }
    assert "pieces" in json.dumps(specs[3])
    text = soup.main.get_text()
    for table in recipe.read_recipe(run / "config.toml").tables().values():
        assert all(key in text for key in table)
    assert f"train --out '{run}' --resume --set steps=8" in text
    assert f"average '{run}' --last 2" in text
    assert (run / "report.html").stat().st_size < 1.5e6


def test_samples_are_validation_pairs(run):
    """Beside what the model that `translate` uses says to them."""
    pairs = sample_pairs(RunFolder.read(run))
    assert len(pairs) == 6 and all(a == b for a, b in pairs)  # copy
    rows = [
        [cell.get_text() for cell in row.find_all("td")]
        for row in parsed(run).find("table").select("tbody tr")
    ]
    assert [(source, reference) for source, _, reference in rows] == pairs
    out = succeeds("translate", "--model", run, *(a for a, _ in pairs))
    assert [said for _, said, _ in rows] == out.splitlines()


def test_which_parameters(copy):
    """The average, if there is one, with its checkpoints; or the last."""
    assert weights_used(copy) == "checkpoint step-4"
    succeeds("average", copy, "--last", 2)
    assert weights_used(copy) == "the average of step-2, step-4"
    assert "the average of step-2, step-4" in write_report(copy).read_text()


def test_text_from_a_corpus_is_text(tmp_path):
    """Whatever it is."""
    rude = "</script><script>document.title=1</script>"
    files = tmp_path / "a.en", tmp_path / "a.de"
    for file in files:
        file.write_text("".join(f"{rude} & {i}\n" for i in range(30)))
    folder = tmp_path / "run"
    words = ("train", "--source", files[0], "--target", files[1], "--out")
    small = changes(**MODEL, steps=1, log_every=1, vocab_size=300)
    succeeds(*words, folder, *small)
    soup = parsed(folder)
    assert rude in soup.find("table").get_text()
    assert len(soup.find_all("script")) == 2 + len(soup.find_all("figure"))
    assert soup.title.string == "Run run"


def test_summary_and_state(run, copy):
    """How far, how well; finished by updates, or by patience."""
    facts = summary(RunFolder.read(run))
    assert facts["State"] == "finished" and facts["Updates"] == "4 of 4"
    (copy / "config.toml").write_text(
        (copy / "config.toml").read_text().replace("steps = 4", "steps = 9")
    )
    found = RunFolder.read(copy)
    assert not found.finished()
    assert found.commands()["Go on with it"].endswith("--resume")
    rows = [{"step": i, "nll": 2.0, "valid_nll": 1.0 + i} for i in range(3)]
    tired = SimpleNamespace(steps=9, patience=2)
    found = RunFolder(copy, SimpleNamespace(training=tired), rows, 3)
    assert found.finished()
    tired.patience = 3
    assert not found.finished()


def test_times_as_people_say_them():
    """Seconds, minutes, hours."""
    assert [duration(s) for s in (7.4, 600, 36_000)] == [
        *("7 s", "10 min", "10.0 h")
    ]


# --- when it is written


def test_no_report(tmp_path):
    """Not wanted, not there."""
    folder = tmp_path / "run"
    out = succeeds("train", "copy", "--out", folder, *COPY, "--no-report")
    assert "Report" not in out and not (folder / "report.html").exists()
    assert succeeds("report", folder) == f"{folder / 'report.html'}\n"
    assert (folder / "report.html").exists()


def test_a_run_that_goes_on_has_a_new_report(copy):
    """With all of its updates."""
    out = succeeds("train", "--out", copy, "--resume", *changes(steps=6))
    assert out.splitlines()[-1].startswith("Report: ")
    assert "6 of 6" in parsed(copy).main.get_text()


@pytest.mark.parametrize("problem", [OSError(28, "No space"), KeyError("x")])
def test_a_report_that_fails_is_one_line(tmp_path, monkeypatch, problem):
    """And the run is as good as it was."""

    def fail(*_):
        raise problem

    monkeypatch.setattr(report, "page", fail)
    folder = tmp_path / "run"
    code, out, err = call("train", "copy", "--out", folder, *COPY)
    assert code == 0 and "Done after 4 updates." in out
    assert err.startswith("note: no report: ") and err.count("\n") == 1
    names = {path.name for path in folder.iterdir()} - {".lock"}
    assert names == {
        *("checkpoints", "config.toml", "data", "metrics.jsonl"),
        "tokenizer.json",
    }


def test_only_the_first_worker_writes(run, copy, monkeypatch):
    """Others leave without a word."""
    (copy / "report.html").unlink()
    for rank in (1, 0):

        @contextlib.contextmanager
        def group(rank=rank):
            yield SimpleNamespace(rank=rank, any_rank=bool)

        monkeypatch.setattr(distributed, "process_group", group)
        monkeypatch.setattr(recipe, "run_recipe", lambda *_: TrainState(4))
        succeeds("train", "--out", copy, "--resume")
        assert (copy / "report.html").exists() == (rank == 0)


def test_nothing_heavy_before_it_is_needed():
    """Neither the command line nor the translator loads Altair."""
    code = (
        "import sys, transformer_annotated.workshop.cli\n"
        "import transformer_annotated.workshop.translator\n"
        "sys.exit('altair' in sys.modules or 'vl_convert' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# --- scores


def test_evaluate_adds_its_scores(copy, tmp_path):
    """Each time one more, with signature; then the page shows them."""
    for name in ("a", "b"):
        (tmp_path / name).write_text(20 * "a b c d\ne f g h\n")
    words = ("evaluate", "--model", copy, "--source", tmp_path / "a")
    words += ("--reference", tmp_path / "b")
    out = succeeds(*words, "--no-report")
    assert "Report" not in out and read_evaluations(copy) == []
    out = succeeds(*words)
    assert out.splitlines()[-1] == f"Report: {copy / 'report.html'}"
    [noted] = read_evaluations(copy)
    bleu, chrf = noted["scores"]
    assert bleu["name"] == "BLEU" and chrf["name"] == "chrF2"
    assert noted["weights"] == "checkpoint step-4" and noted["pairs"] == 40
    succeeds(*words, "--beam", 1)
    text = parsed(copy).main.get_text()
    assert bleu["signature"] in text and "beam 1, alpha 0.6" in text
    assert len(read_evaluations(copy)) == 2


def test_notes_that_are_damaged_are_left_out(copy):
    """And those that are odd are shown as they are."""
    lines = ["{", "[]", '{"scores": 3}', '{"scores": [7, {"value": "<b>"}]}']
    (copy / "evaluations.jsonl").write_text("\n".join(lines))
    assert len(read_evaluations(copy)) == 1
    write_report(copy)
    assert "Scores" in [tag.string for tag in parsed(copy).select("h2")]


def test_a_model_of_the_book_is_no_run(tmp_path):
    """Nothing is written into its folder."""
    folder = find_model("tatoeba-de-en")
    before = {path.name for path in folder.iterdir()}
    for name in ("a", "b"):
        (tmp_path / name).write_text("Hallo.\n")
    words = ("--source", tmp_path / "a", "--reference", tmp_path / "b")
    out = succeeds("evaluate", "--model", "tatoeba-de-en", *words)
    assert "Report" not in out
    assert {path.name for path in folder.iterdir()} == before


# --- bad input


def test_what_is_no_run(tmp_path, copy):
    """No folder, no recipe, no metrics yet: one line each."""
    assert "no such folder" in refuses("report", tmp_path / "none")
    line = refuses("report", tmp_path)
    assert f"{tmp_path}: holds no run (no config.toml)" in line
    odd = '{"step": 2, "valid_nll": 1.0}\n{"step": 2, "nll": NaN}\n'
    for text in ("", "{}\n", odd):
        (copy / "metrics.jsonl").write_text(text)
        line = keeps(copy, "report", copy)
        assert f"{copy}: no metrics yet; the first are written after" in line
    (copy / "config.toml").write_text("[corpus]\nnmae = 1\n")
    assert "unknown key in [corpus]" in keeps(copy, "report", copy)


def test_a_corpus_that_has_changed(tmp_path):
    """Named; the old page stays, and the end of a run is not spoiled."""
    files = tmp_path / "a.en", tmp_path / "a.de"
    for file in files:
        file.write_text("".join(f"line {i}\n" for i in range(30)))
    folder = tmp_path / "run"
    small = changes(**MODEL, steps=1, log_every=1, vocab_size=300)
    pair = ("--source", files[0], "--target", files[1])
    succeeds("train", *pair, "--out", folder, *small)
    files[1].write_text("".join(f"other {i}\n" for i in range(30)))
    line = keeps(folder, "report", folder)
    assert f"{files[1]}, which has changed since" in line
    line = keeps(folder, "evaluate", "--model", folder, *both(files, ""))
    assert "error: " in line and read_evaluations(folder) == []
    code, out, err = call(
        "evaluate", "--model", folder, *both(files, "line 1\n")
    )
    assert code == 0 and out.startswith("BLEU")
    assert "note: no report: " in err and err.count("\n") == 1


def both(files, text):
    """Options for a test set whose files hold a text."""
    source, reference = (
        file.with_suffix(".test" + file.suffix) for file in files
    )
    source.write_text(text)
    reference.write_text(text)
    return "--source", source, "--reference", reference


def test_metrics_that_lack_something(copy):
    """There is what can be drawn, and no more."""
    line = '{"step": 2, "nll": 3.5, "valid_nll": NaN, "rate": "fast"}\n'
    (copy / "metrics.jsonl").write_text(line)
    succeeds("report", copy)
    assert len(parsed(copy).find_all("figure")) == 2  # loss and attention


def test_a_run_without_its_data(copy):
    """The page says so, and has everything else."""
    shutil.rmtree(copy / "data")
    succeeds("report", copy)
    text = parsed(copy).main.get_text()
    assert "None: there are no validation sentences in its folder." in text
    assert len(parsed(copy).find_all("figure")) == 3


def test_a_run_without_a_checkpoint(copy):
    """It has begun, and that is all."""
    shutil.rmtree(copy / "checkpoints")
    succeeds("report", copy)
    text = parsed(copy).main.get_text()
    assert "None: there is no checkpoint yet." in text


def test_a_damaged_checkpoint(copy):
    """One line that names it; the old page stays."""
    file = copy / "checkpoints" / "step-4" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    assert str(file) in keeps(copy, "report", copy)
    (copy / "model.safetensors").write_bytes(b"junk")
    assert "model.safetensors" in keeps(copy, "report", copy)


# --- in a browser


@pytest.mark.site
@pytest.mark.parametrize(("scheme", "width"), [("light", 1000), ("dark", 390)])
def test_a_browser_shows_it(run, scheme, width):
    """All charts, in the colours of the page, with no request and no error."""
    from playwright.sync_api import expect, sync_playwright

    from tests.browser import FLAGS, executable

    with (
        sync_playwright() as p,
        p.chromium.launch(
            executable_path=executable(p), args=list(FLAGS)
        ) as browser,
    ):
        context = browser.new_context(
            color_scheme=scheme, viewport={"width": width, "height": 900}
        )
        page, wrong = context.new_page(), []
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((run / "report.html").as_uri())
        expect(page.locator("svg.marks")).to_have_count(4)
        assert not wrong
        assert [url for url in asked if not re.match("data:", url)] == [
            (run / "report.html").as_uri()
        ]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        colour = "el => getComputedStyle(el).fill"
        label = page.locator(".role-axis-label text").first.evaluate(colour)
        ink = page.locator("h1").evaluate("el => getComputedStyle(el).color")
        assert label == ink
        page.locator("select").first.select_option(index=1)
        assert not wrong
