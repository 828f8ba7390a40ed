"""The command line: what it does, and one clear line about what it won't."""

import contextlib
import gzip
import io
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tomllib

import pytest
import tomli_w
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.testing import assert_close

from tests.runs import NURSERY, assert_same_run, weights_of
from tests.site import ROOT
from transformer_annotated import __version__, training
from transformer_annotated.evaluation import bleu, paper_bleu
from transformer_annotated.text import load_tokenizer
from transformer_annotated.workshop import cli, recipe
from transformer_annotated.workshop.checkpoints import list_checkpoints
from transformer_annotated.workshop.checks import TrainingError
from transformer_annotated.workshop.cli import _recipe_for, main
from transformer_annotated.workshop.files import (
    lock_folder,
    model_names,
    recipe_names,
)
from transformer_annotated.workshop.journal import read_metrics
from transformer_annotated.workshop.recipe import read_recipe
from transformer_annotated.workshop.translator import Translator


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """One process with one thread, whatever started the tests."""
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def no_reports(monkeypatch):
    """They have tests of their own, and take a second each."""
    monkeypatch.setattr(cli, "leave_report", lambda *_, **about: None)


def call(*arguments):
    """Exit code, output and errors of a command, in this process."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["transformer-annotated", *map(str, arguments)]
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as ended,
        ):
            main()
    finally:
        sys.argv = before
    return ended.value.code or 0, out.getvalue(), err.getvalue()


def changes(**values):
    """Options that change a recipe."""
    return [word for k, v in values.items() for word in ("--set", f"{k}={v}")]


MODEL = {"layers": 1, "d_model": 16, "d_ff": 16, "heads": 2}
OWN = changes(**MODEL, steps=1, vocab_size=300)
COPY = changes(
    **MODEL,
    train_size=60,
    valid_size=8,
    steps=4,
    batch_tokens=200,
    warmup=10,
    dropout=0.1,
    log_every=1,
    checkpoint_every=2,
    validate_every=2,
    keep=3,
)


def succeeds(*arguments):
    """What a command prints that goes well."""
    code, out, err = call(*arguments)
    assert (code, err) == (0, "")
    return out


def refuses(*arguments, code=2):
    """What a command says that is refused: one line."""
    got, _, err = call(*arguments)
    assert got == code
    if err.startswith("Usage: "):  # click's own
        *_, line, end = err.split("\n")
        assert line.startswith("Error: ") and end == ""
    else:
        line, end = err.split("\n")
        assert line.startswith(("error: ", "Error: ")) and end == ""
    assert "Traceback" not in err
    return line


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of four updates; nobody may change it."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    out = succeeds("train", "copy", "--out", folder, *COPY, "--no-report")
    torch.set_num_threads(before)
    (folder / "said").write_text(out)
    return folder


def parallel(folder, count=30):
    """Two small files that belong together."""
    left, right = folder / "text.en", folder / "text.de"
    left.write_text("".join(f"sentence number {i}\n" for i in range(count)))
    right.write_text("".join(f"Satz Nummer {i}\n" for i in range(count)))
    return left, right


# --- train


def test_train_by_a_recipe(finished):
    """It says what it does, how it goes, and what to do next."""
    said = (finished / "said").read_text()
    table, _, rest = said.partition("\n\nupdate 1:")
    assert (
        tomllib.loads(table) == read_recipe(finished / "config.toml").tables()
    )
    lines = rest.splitlines()
    assert sum(line.startswith("update ") for line in lines) == 5
    assert lines[-1] == (
        "Done after 4 updates. Average the last checkpoints with: "
        f"transformer-annotated average {finished} --last 2"
    )
    names = [path.name for path in list_checkpoints(finished / "checkpoints")]
    assert names == ["step-2", "step-4"]
    assert len(read_metrics(finished)) == 6


def test_running_over_a_run_is_refused(finished):
    """With what to do instead, and nothing changed."""
    before = {p: p.stat().st_mtime_ns for p in finished.rglob("[!.]*.*")}
    for more in ([], changes(d_ff=32), changes(steps=9)):
        line = refuses("train", "copy", "--out", finished, *COPY, *more)
        assert f"{finished}: holds a run already" in line
        assert "--resume" in line
    after = {p: p.stat().st_mtime_ns for p in finished.rglob("[!.]*.*")}
    assert after == before


def test_a_finished_run_says_so(finished):
    """Once more, and no update."""
    out = succeeds("train", "--out", finished, "--resume")
    assert "Done after 4 updates." in out
    assert "update 5" not in out
    assert len(read_metrics(finished)) == 6


def test_resume_needs_no_recipe(tmp_path):
    """The folder knows; changes are noted for the next time."""
    folder = tmp_path / "run"
    succeeds("train", "copy", "--out", folder, *COPY)
    out = succeeds("train", "--out", folder, "--resume", *changes(steps=6))
    assert "Done after 6 updates." in out
    assert read_recipe(folder / "config.toml").training.steps == 6
    assert "Done after 6" in succeeds("train", "--out", folder, "--resume")
    whole = tmp_path / "whole"
    succeeds("train", "copy", "--out", whole, *COPY, *changes(steps=6))
    assert_same_run(folder, whole)
    line = refuses(
        "train", "--out", folder, "--resume", *changes(warmup=99, steps=9)
    )
    assert "warmup: 99" in line and "with 10" in line
    assert read_recipe(folder / "config.toml").training.warmup == 10


def test_resume_in_a_new_folder_begins(tmp_path):
    """As a job does that is started again and again."""
    folder = tmp_path / "run"
    for _ in range(2):
        out = succeeds("train", "copy", "--out", folder, "--resume", *COPY)
        assert "Done after 4 updates." in out
    assert len(read_metrics(folder)) == 6


def test_torchrun_restarts_go_on(tmp_path, monkeypatch, finished):
    """A second life resumes without being told to."""
    folder = tmp_path / "run"
    succeeds("train", "copy", "--out", folder, *COPY, *changes(steps=2))
    refuses("train", "copy", "--out", folder, *COPY)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    succeeds("train", "copy", "--out", folder, *COPY)
    assert_same_run(folder, finished)


def test_a_recipe_of_ones_own(tmp_path):
    """A file beside the packaged ones."""
    file = tmp_path / "mine.toml"
    file.write_text('[corpus]\nname = "reverse"\n[tokenizer]\nkind = "words"\n')
    out = succeeds("train", file, "--out", tmp_path / "run", *COPY)
    assert 'name = "reverse"' in out and "Done after 4" in out


def test_two_files(tmp_path):
    """The shortest way: your files, and nothing else to say."""
    left, right = parallel(tmp_path)
    folder = tmp_path / "run"
    out = succeeds(
        "train", "--source", left, "--target", right, "--out", folder, *OWN
    )
    assert "Done after 1 updates." in out
    recipe = read_recipe(folder / "config.toml")
    assert recipe.corpus.source_file == str(left)
    assert recipe.corpus.target_file == str(right)
    assert recipe.training.patience == 10  # as in your-files
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    assert tokenizer.decode(tokenizer.encode("Satz 7", "de")) == "Satz 7"


@pytest.mark.parametrize("end", [".gz", ".xz"])
def test_packed_files(tmp_path, end):
    """Packed files are read as they are."""
    pack = {".gz": gzip.open, ".xz": lzma.open}[end]
    packed = []
    for path in parallel(tmp_path):
        packed.append(f"{path}{end}")
        with pack(packed[-1], "wb") as file:
            file.write(path.read_bytes())
        path.unlink()
    succeeds(
        "train",
        "--source",
        packed[0],
        "--target",
        packed[1],
        "--out",
        tmp_path / "run",
        *OWN,
    )


def test_a_table(tmp_path):
    """One file with a tab in each line."""
    file = tmp_path / "pairs.en-de.tsv"
    file.write_text("".join(f"word {i}\tWort {i}\n" for i in range(30)))
    succeeds("train", "--source", file, "--out", tmp_path / "run", *OWN)


def test_files_and_a_recipe(tmp_path):
    """The recipe's model, your sentences; changes of the corpus count."""
    left, right = parallel(tmp_path)
    folder = tmp_path / "run"
    succeeds(
        "train",
        "multi30k-en-de",
        "--source",
        left,
        "--target",
        right,
        "--out",
        folder,
        *OWN,
        *changes(valid_size=2),
    )
    recipe = read_recipe(folder / "config.toml")
    assert (recipe.corpus.name, recipe.corpus.variant) == ("", "")
    assert recipe.corpus.valid_size == 2
    assert recipe.training.factor == 2.53
    about = json.loads((folder / "data/valid/about.json").read_text())
    assert about["pairs"] == 2


def test_validation_files(tmp_path):
    """Given by --set, they are what is validated on."""
    left, right = parallel(tmp_path)
    table = tmp_path / "valid.tsv"
    table.write_text("one\teins\ntwo\tzwei\nthree\tdrei\n")
    succeeds(
        "train",
        "--source",
        left,
        "--target",
        right,
        "--out",
        tmp_path / "run",
        *OWN,
        *changes(valid_source_file=table),
    )
    about = tmp_path / "run/data/valid/about.json"
    assert json.loads(about.read_text())["pairs"] == 3


# --- prepare and average


def test_prepare_and_train_from_it(tmp_path, finished):
    """Once for many runs; the run finds it again by itself."""
    data, folder = tmp_path / "data", tmp_path / "run"
    out = succeeds("prepare", "copy", "--out", data, *COPY)
    assert out == (
        "60 pairs to train on, 8 to validate on, 0 skipped (empty, or longer "
        "than 256 tokens); vocabulary 30. Train with: transformer-annotated "
        f"train copy --data {data} --out DIR {' '.join(COPY)}\n"
    )
    succeeds(
        "train",
        "copy",
        "--data",
        data,
        "--out",
        folder,
        *COPY,
        *changes(steps=2),
    )
    succeeds("train", "--out", folder, "--resume", *changes(steps=4))
    assert not (folder / "data").exists()
    assert_same_run(folder, finished)


def test_prepare_by_the_name_of_a_corpus(tmp_path):
    """The first recipe for it; here the files are missing, by name."""
    assert _recipe_for("copy") == "copy"
    assert _recipe_for("multi30k") == "multi30k-en-de"
    assert _recipe_for("tatoeba") == "tatoeba-de-en"
    assert _recipe_for("wmt14-en-fr") == "wmt14-en-fr-base"
    assert _recipe_for("mine.toml") == "mine.toml"
    for name in ("nope", "multi", "wmt14-en-d"):
        assert _recipe_for(name) == name
    line = refuses(
        "prepare",
        "multi30k",
        "--out",
        tmp_path / "data",
        *changes(folder=tmp_path),
    )
    assert "multi30k" in line and "train.lc.norm.tok.en" in line


def test_prepare_tells_what_was_skipped(tmp_path):
    """Sentences beyond the limit, and whose limit it is."""
    out = succeeds(
        "prepare", "copy", "--out", tmp_path, *COPY, *changes(max_length=8)
    )
    kept, skipped = int(out.split()[0]), int(out.split(", ")[2].split()[0])
    assert kept + skipped == 60 and skipped > 0
    assert "longer than 8 tokens" in out


def test_prepare_leaves_runs_alone(tmp_path, finished):
    """Their vocabulary is not that of other data."""
    before = (finished / "tokenizer.json").read_text()
    line = refuses("prepare", "copy", "--out", finished, *COPY)
    assert "holds a run" in line
    assert (finished / "tokenizer.json").read_text() == before


def test_languages_that_were_guessed_are_written_down(tmp_path):
    """A model of words needs them, and finds them in its folder."""
    left, right = parallel(tmp_path)
    files = ("--source", left, "--target", right)
    words = changes(**{"tokenizer.kind": "words", "min_frequency": 1})
    small = changes(**MODEL, steps=1)
    command = ("train", *files, "--out", tmp_path / "run", *words, *small)
    succeeds(*command)
    corpus = read_recipe(tmp_path / "run/config.toml").corpus
    assert (corpus.source, corpus.target) == ("en", "de")
    Translator.load(tmp_path / "run").translate(
        "sentence number 3", extra_length=2
    )
    again = ("--resume", "--set", "steps=2")
    succeeds("train", "--out", tmp_path / "run", *again)
    succeeds(*command[:-1], "steps=3", "--resume")


def test_a_run_does_not_go_on_with_other_data(tmp_path):
    """Even if it has as many sentences; the tokenizer stays."""
    folder = tmp_path / "run"
    for seed in (1, 2):
        own = changes(**{"corpus.seed": seed})
        succeeds("prepare", "copy", "--out", tmp_path / f"{seed}", *COPY, *own)
    words = ("train", "copy", "--out", folder, *COPY)
    first, second = (
        ("--data", tmp_path / f"{seed}", *changes(**{"corpus.seed": seed}))
        for seed in (1, 2)
    )
    succeeds(*words, *first)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    line = refuses(*words, *second, "--resume", *changes(steps=6))
    assert "corpus: digest " in line and "step-4 was trained with" in line
    assert {
        p: p.read_bytes() for p in folder.rglob("*") if p.is_file()
    } == before
    succeeds(*words, *first, "--resume", *changes(steps=6))


def test_two_runs_in_one_folder(tmp_path):
    """The second is refused, with the first one's process."""
    with lock_folder(tmp_path):
        for more in ([], ["--resume"]):
            line = refuses("train", "copy", "--out", tmp_path, *COPY, *more)
            assert line.startswith(
                f"error: {tmp_path}: in use by process {os.getpid()}; "
            )
        assert not (tmp_path / "config.toml").exists()


def test_a_run_without_a_checkpoint_is_not_written_over(tmp_path):
    """Its settings and its lines stay what they are."""
    line = '{"step": 1, "loss": 3.5}\n'
    (tmp_path / "metrics.jsonl").write_text(line)
    (tmp_path / "config.toml").write_text("[model]\nlayers = 7\n")
    refusal = refuses("train", "copy", "--out", tmp_path, *COPY)
    assert "holds a run already" in refusal
    assert (tmp_path / "metrics.jsonl").read_text() == line
    assert "layers = 7" in (tmp_path / "config.toml").read_text()


def test_data_that_is_not_there(tmp_path):
    """A typo does not prepare everything again, somewhere else."""
    place = ("--data", tmp_path / "typo", "--out", tmp_path / "run")
    line = refuses("train", "copy", *place, *COPY)
    assert "typo: nothing prepared there" in line
    assert not (tmp_path / "typo").exists()


def test_data_of_another_recipe(tmp_path):
    """Refused, with the first difference."""
    succeeds("prepare", "copy", "--out", tmp_path / "data", *COPY)
    line = refuses(
        "train",
        "copy",
        "--data",
        tmp_path / "data",
        "--out",
        tmp_path / "run",
        *COPY,
        *changes(train_size=61),
    )
    assert "train_size is 60 there, and 61 here" in line


def test_average(tmp_path):
    """The mean of the last checkpoints, where a model is looked for."""
    folder = tmp_path / "run"
    succeeds(
        "train", "copy", "--out", folder, *COPY, *changes(checkpoint_every=1)
    )
    out = succeeds("average", folder, "--last", 2)
    file = folder / "model.safetensors"
    assert out == f"{file}: the average of 2 checkpoints: step-3, step-4\n"
    mean = load_file(file)
    ends = [weights_of(folder, step) for step in (3, 4)]
    for name, tensor in mean.items():
        assert_close(tensor, (ends[0][name] + ends[1][name]) / 2)
    line = refuses("average", folder)
    assert "--last is 5, but there are only 3 checkpoints" in line


def test_average_takes_what_was_written_in_turn(tmp_path):
    """Not what was written at a stop, or at the end; nor is it counted."""
    folder = tmp_path / "run"
    for steps in (5, 9):
        more = changes(steps=steps, keep=2)
        succeeds("train", "copy", "--out", folder, "--resume", *COPY, *more)
    names = [path.name for path in list_checkpoints(folder / "checkpoints")]
    assert names == ["step-6", "step-8", "step-9"]
    out = succeeds("average", folder, "--last", 2)
    assert out.endswith(": the average of 2 checkpoints: step-6, step-8\n")
    assert "only 2 checkpoints" in refuses("average", folder, "--last", 3)


def test_average_while_a_run_goes_on(tmp_path):
    """Is no harm: it reads, and its own file appears whole."""
    folder = tmp_path / "run"
    succeeds("train", "copy", "--out", folder, *COPY)
    with lock_folder(folder):
        succeeds("average", folder, "--last", 2)


def test_average_of_nothing(tmp_path):
    """No such folder, no such number."""
    line = refuses("average", tmp_path / "none")
    assert "none: no such folder" in line
    assert "only 0 checkpoints" in refuses("average", tmp_path)
    refuses("average", tmp_path, "--last", 0)
    refuses("average", tmp_path, "--last", "many")
    refuses("average")


def test_average_of_a_damaged_checkpoint(tmp_path, finished):
    """Which file it is, and no half of an average."""
    folder = tmp_path / "checkpoints" / "step-1"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"x" * 50)
    line = refuses("average", tmp_path, "--last", 1)
    assert f"{folder}/model.safetensors: cannot be read" in line
    assert not (tmp_path / "model.safetensors").exists()


# --- translate


def translating(finished, *arguments):
    """A real process that translates bytes of standard input."""
    command = [sys.executable, "-m", "transformer_annotated", "translate"]
    return subprocess.Popen(
        [*command, "--model", finished, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=SETTING,
        cwd=ROOT,
    )


def translated(finished, text, *arguments):
    """What becomes of standard input: exit code, lines, errors."""
    with translating(finished, *arguments) as process:
        out, err = process.communicate(text, timeout=120)
    return process.returncode, out.decode().splitlines(), err.decode()


def test_translate_arguments_a_file_and_a_pipe(tmp_path, finished):
    """The same lines, in the same order, from wherever they come."""
    texts = ["a b c", "", "d"]
    from_words = succeeds("translate", "--model", finished, *texts)
    (tmp_path / "text").write_text("\r\n".join(texts))
    from_file = succeeds(
        "translate", "--model", finished, "--source", tmp_path / "text"
    )
    assert from_file == from_words
    code, lines, err = translated(finished, b"a b c\n\nd\n", "--beam", "4")
    assert (code, err) == (0, "")
    assert "\n".join(lines) + "\n" == from_words
    assert from_words.split("\n")[1::2] == ["", ""]


def test_translating_needs_little_memory():
    """A process of its own, with a shipped model; most of it is PyTorch's."""
    code = """if True:
        from benchmarks.first import COMMANDS, measure
        print(measure(COMMANDS["translate"])[1])"""
    command = [sys.executable, "-c", code]
    megabytes = float(subprocess.check_output(command, cwd=ROOT, text=True))
    assert 50 < megabytes < 600


def test_translate_settings(finished):
    """They reach the search."""
    wanted = Translator.load(finished).translate("a b", beam=2, alpha=0.0)
    assert wanted + "\n" == succeeds(
        *("translate", "--model", finished, "--beam", "2"),
        *("--alpha", "0", "a b"),
    )


def test_translate_a_packed_file(tmp_path, finished):
    """As `train` and `evaluate` take them."""
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"a b\nc\n"))
    out = succeeds("translate", "--model", finished, "--source", path)
    assert out.splitlines() == Translator.load(finished).translate(["a b", "c"])
    path.write_bytes(path.read_bytes()[:-9])
    line = refuses("translate", "--model", finished, "--source", path)
    assert f"{path}: damaged or cut short" in line


def test_translate_what_is_no_text(finished):
    """All before it is translated; file and line are named."""
    text = b"a\nb\n\xff\xfe\nc\n"
    code, lines, err = translated(finished, text)
    assert (code, len(lines)) == (2, 2)
    assert err == (
        "error: standard input, line 3: not UTF-8 (byte 1 of the line); "
        "convert the file, for instance with iconv\n"
    )


def test_translate_an_endless_line(finished):
    """It is not read to its end."""
    code, lines, err = translated(finished, b"a\n" + b"b" * 1_000_000)
    assert (code, len(lines)) == (2, 1)
    assert "line 2: more than 10,000 bytes" in err and err.count("\n") == 1


def test_translate_into_a_pipe_that_is_closed(finished):
    """One line, not a traceback, and none from the interpreter's end."""
    with translating(finished, "--buffer-size", "1") as process:
        process.stdout.close()
        process.stdin.write(b"a\n" * 3)
        process.stdin.close()
        err = process.stderr.read().decode()
    assert process.returncode == 2
    assert err == "error: standard output was closed after 0 translations\n"


def test_translate_with_nothing_to_translate_with(tmp_path, finished):
    """No model, no file, text from two places."""
    assert "unknown model" in refuses("translate", "--model", "nope", "a")
    assert "no config.toml" in refuses("translate", "--model", tmp_path, "a")
    nowhere = tmp_path / "nowhere"
    line = refuses("translate", "--model", finished, "--source", nowhere)
    assert line == f"error: {nowhere}: no such file"
    line = refuses("translate", "--model", finished, "--source", "x", "a")
    assert "there is text to translate, too" in line
    assert "--model" in refuses("translate", "a")
    command = ("translate", "--model", finished)
    for more in (["--beam", "0"], ["--beam", "9" * 20], ["--alpha", "2000"]):
        assert more[0] in refuses(*command, *more, "a")
    (tmp_path / "lines.de").write_text("a\n")
    line = refuses(*command, tmp_path / "lines.de")
    assert "lines.de: a file; translate its lines with --source" in line


def test_a_dash_is_standard_input(finished):
    """As other tools have it."""
    wanted = succeeds("translate", "--model", finished, "a b")
    code, lines, _ = translated(finished, b"a b\n", "-")
    assert (code, lines) == (0, wanted.splitlines())


def test_version():
    """What a citation needs."""
    assert succeeds("--version") == f"{__version__}\n"


# --- evaluate


@pytest.fixture
def test_set(tmp_path):
    """Sentences for the copy task, and what one should say to them."""
    left, right = tmp_path / "sources", tmp_path / "references"
    left.write_text(20 * "a b c d\ne f g h\n")
    right.write_text(20 * "a b c d\ne f g i\n")
    return "--source", left, "--reference", right


def test_evaluate_scores_what_the_model_says(tmp_path, finished, test_set):
    """Two scores with signature and interval; the outputs can be kept."""
    out = succeeds(
        *("evaluate", "--model", finished, *test_set),
        *("--out", tmp_path / "said", "--beam", "2", "--tokenize", "none"),
    )
    said = (tmp_path / "said").read_text().splitlines()
    translator = Translator.load(finished)
    assert said == translator.translate(20 * ["a b c d", "e f g h"], beam=2)
    references = 20 * ["a b c d", "e f g i"]
    wanted = bleu(said, references, tokenize="none", n_bootstrap=1000)
    first, signature, second, _ = out.splitlines()
    assert first.startswith(f"BLEU {wanted.value:.2f}  (95 % between ")
    assert signature.strip() == wanted.signature
    assert second.startswith("chrF2 ")


@pytest.mark.parametrize("language", ["de", "", "xx"])
def test_evaluate_as_the_paper_counts(tmp_path, finished, test_set, language):
    """Its BLEU and no other; refused if the words' language is not known."""
    folder, said = tmp_path / "run", tmp_path / "said"
    shutil.copytree(finished, folder)
    tables = tomllib.loads((folder / "config.toml").read_text())
    tables["corpus"]["target"] = language
    (folder / "config.toml").write_text(tomli_w.dumps(tables))
    command = ("evaluate", "--model", folder, *test_set, "--out", said)
    if language != "de":
        line = refuses(*command, "--metric", "paper")
        assert "language" in line and not said.exists()
        return
    out = succeeds(*command, "--metric", "paper")
    references = 20 * ["a b c d", "e f g i"]
    wanted = paper_bleu(said.read_text().splitlines(), references, language)
    assert out == f"{wanted.name} {wanted.value:.2f}\n  {wanted.signature}\n"


def test_evaluate_few_sentences(tmp_path, finished, test_set):
    """No interval, and no error from a sample without text."""
    _, source, _, reference = test_set
    for file in (source, reference):
        file.write_text("a b c d\n\ne f\n")
    out = succeeds("evaluate", "--model", finished, *test_set)
    assert out.count("(too few sentences for an interval)") == 2


def test_evaluate_never_overwrites_what_it_reads(finished, test_set):
    """Nor does it score a file against itself."""
    _, source, _, reference = test_set
    before = reference.read_text()
    command = ("evaluate", "--model", finished)
    line = refuses(*command, *test_set, "--out", reference)
    assert "expected different files" in line
    line = refuses(*command, "--source", source, "--reference", source)
    assert "expected different files" in line
    assert reference.read_text() == before


def test_evaluate_refuses(tmp_path, finished, test_set):
    """Unequal files, none, no text, model, tokens or folder: one line."""
    command = ("evaluate", "--model", finished, *test_set)
    _, source, _, reference = test_set
    reference.write_text("a b c d\n")
    line = refuses(*command)
    assert f"{source}: 40 lines, but {reference}: 1 lines" in line
    source.write_text("a b c d\ne f g h\n")
    reference.write_bytes(b"a\n\xff\n")
    assert f"{reference}, line 2: not UTF-8" in refuses(*command)
    reference.write_text("a\nb\n")
    assert "unknown tokenizer" in refuses(*command, "--tokenize", "13b")
    assert "unknown model" in refuses("evaluate", "--model", "nope", *test_set)
    line = refuses(*command, "--out", tmp_path / "none" / "said")
    assert f"--out: {tmp_path / 'none'}: no such folder" in line
    line = refuses(*command, "--out", tmp_path)
    assert f"--out: {tmp_path}: a folder, expected a file" in line
    line = refuses(*command, "--out", "/proc/said")  # nobody can write there
    assert "--out: /proc/said: " in line
    source.write_bytes(b"a\n" + 10_000_001 * b"b")
    line = refuses(*command)
    assert f"{source}, line 2: more than 10,000,000 bytes" in line
    reference.unlink()
    assert "no such file" in refuses(*command)
    source.write_text("")
    reference.write_text("")
    assert "error: " in refuses(*command)


# --- long input


def test_translate_a_long_argument(finished):
    """Cut, and said in a line; no minute of silence."""
    code, out, err = call("translate", "--model", finished, "a " * 50_000)
    assert code == 0 and out.count("\n") == 1
    assert err == (
        "note: 1 of the lines had more than 1,000 tokens, and were cut there\n"
    )


def test_translate_lines_of_every_length(tmp_path, finished):
    """One without end is refused, after all that came before it."""
    path = tmp_path / "lines"
    path.write_text("a b\n" + "c " * 4_900 + "\nd\n")
    code, out, err = call("translate", "--model", finished, "--source", path)
    assert code == 0 and out.count("\n") == 3
    assert err.startswith("note: 1 of the lines") and err.count("\n") == 1
    path.write_bytes(b"x" * 10**7)
    line = refuses("translate", "--model", finished, "--source", path)
    assert f"{path}, line 1: more than 10,000 bytes" in line


def test_evaluate_long_lines(finished, test_set):
    """Scores of lines without end would take hours, too."""
    _, source, _, reference = test_set
    source.write_text("a b\n" + "c " * 2_000 + "\n")
    reference.write_text("a b\nc\n")
    code, _, err = call("evaluate", "--model", finished, *test_set)
    assert code == 0 and err.startswith("note: 1 of the lines")
    reference.write_text("a b\n" + "x" * 10_001 + "\n")
    line = refuses("evaluate", "--model", finished, *test_set)
    assert "line 2: more than 10,000 letters, expected a sentence" in line


@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "folder", "loop"])
def test_translate_and_evaluate_what_is_no_file(tmp_path, finished, kind):
    """Refused at once, by name."""
    path = tmp_path / "it"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path if kind == "loop" else kind)
    (tmp_path / "text").write_text("a\n")
    model = ("--model", finished)
    assert "it: " in refuses("translate", *model, "--source", path)
    both = ("--source", path, "--reference", tmp_path / "text")
    assert "it: " in refuses("evaluate", *model, *both)
    out = ("--out", path)
    if kind == "loop":
        both = ("--source", tmp_path / "text", "--reference", finished / "said")
        refuses("evaluate", *model, *both, *out)


# --- help


def test_help():
    """Every command, every recipe in one piece, every option."""
    code, out, err = call("--help")
    assert (code, err) == (0, "")
    commands = ("train", "prepare", "average", "translate", "evaluate")
    commands += ("report",)
    for command in commands:
        assert f"\n  {command} " in out
        assert call(command, "--help")[0] == 0
    _, out, _ = call("train", "--help")
    words = out.replace(",", " ").split()
    assert set(recipe_names()) <= set(words)
    for option in ("--out", "--source", "--target", "--data", "--resume"):
        assert option in words
    assert "--set" in words
    assert set(model_names()) <= set(call("translate", "--help")[1].split())


def test_help_does_not_wait_for_torch():
    """Nor for anything else that only a command needs."""
    code = """if True:
        import sys
        from transformer_annotated.workshop.cli import main
        sys.argv = ["transformer-annotated", "--help"]
        try:
            main()
        finally:
            print(*sys.modules)"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    heavy = {"torch", "numpy", "altair", "sacrebleu", "tokenizers", "tqdm"}
    assert "Usage: " in done.stdout and not heavy & set(done.stdout.split())


def test_no_arguments():
    """Help, not an error message."""
    _, out, err = call()
    assert "Usage:" in out + err and "average" in out + err


# --- what is refused

NO_RUN = "train what? Name a recipe, or give --source and --target, or --resume"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "'--out'"),
        (["trian", "copy"], "trian"),
        (["train", "copy", "--out"], "--out"),
        (["train", "copy", "--out", "OUT", "--nonsense"], "--nonsense"),
        (["train", "--out", "OUT"], NO_RUN),
        (["train", "--out", "OUT", "--resume"], NO_RUN),
        (["train", "--out", "OUT", "--target", "x"], "--target needs --source"),
        (["train", "copy", "--out", "OUT", "--target", "x"], "--target needs"),
        (["train", "cpoy", "--out", "OUT"], "did you mean 'copy'?"),
        (["train", "zzz", "--out", "OUT"], "known: copy, everyday"),
        (["train", "no.toml", "--out", "OUT"], "no.toml: no such file"),
        (["train", "your-files", "--out", "OUT"], "give --source and --target"),
        (["prepare", "your-files", "--out", "OUT"], "give --source and"),
        (["prepare", "--out", "OUT"], "RECIPE"),
        (["prepare", "nope", "--out", "OUT"], "unknown recipe, 'nope'"),
        (["prepare", "copy"], "--out"),
        (["train", "a\0b", "--out", "OUT"], "unknown recipe"),
        (["train", "a\0.toml", "--out", "OUT"], "no such file"),
        (["train", "copy", "--out", "a\0b"], "null"),
        (["train", "copy", "--out", "/proc/x/y", *COPY], "/proc/x"),
        (["train", "copy", "--out", "/dev/null", *COPY], "/dev/null"),
        (["train", "--source", "no.en", "--out", "OUT"], "no.en: no such file"),
        (["train", "--source", "a\0b", "--out", "OUT"], "no such file"),
        (["train", "--source", "x" * 9999, "--out", "OUT"], "too long"),
    ],
)
def test_bad_arguments(tmp_path, arguments, message):
    """Exit code 2, and one line that says what is wrong."""
    out = str(tmp_path / "run")
    line = refuses(*(out if word == "OUT" else word for word in arguments))
    assert message in line


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("steps", "expected key=value"),
        ("steps=x", "steps: 'x', expected an int"),
        ("steps=0", "steps: 0, expected at least 1"),
        ("seed=1", "corpus.seed or training.seed"),
        ("stepz=1", "did you mean 'steps'?"),
        ("training.seed=" + "9" * 30, "seed: 9999"),
        ("batch_tokens=5", "batch_tokens: 5, expected at least 13"),
        ("d_model=1000000000", "d_model: 1000000000, expected at most"),
        ("d_model=100000", "model: no memory for"),
        ("workers=4294967296", "workers: 4294967296, expected at most 64"),
        ("accumulate=2147483648", "accumulate: 2147483648, expected"),
        ("layers=2147483648", "layers: 2147483648, expected at most"),
        ("train_size=2147483648", "train_size: 2147483648, expected"),
        ("steps=" + "9" * 5000, "steps: '999"),
        ("z" * 9999 + "=1", "unknown key, 'zzz"),
        ("heads=3", "heads"),
        ("dropout=high", "dropout: 'high', expected"),
        ("max_length=1", "none left"),
        ("max_length=0", "max_length: 0"),
        ("name=zzz", "unknown corpus, 'zzz'"),
        ("name=", "neither a name nor a source_file"),
        ("source_file=x", "corpus.source_file: 'x', but"),
        ("variant=tok", "variant: 'tok'"),
        ("source=fr", "source, target: 'fr'"),
        ("kind=byte-pairs --set vocab_size=9", "vocab_size: 9, expected at"),
        ("kind=chars", "kind: 'chars', expected"),
        ("min_frequency=100000", "min_frequency"),
        ("min_frequency=0", "min_frequency: 0"),
        ("learned_positions=3", "learned_positions: 3, expected at least 13"),
        ("precision=half", "precision: 'half', expected"),
        ("prepared=/dev/null", "/dev/null"),
        ("steps=" + "[" * 5000, "steps"),
    ],
)
def test_bad_changes(tmp_path, change, message):
    """The name, the value, what would do; and no run is left behind."""
    folder = tmp_path / "run"
    words = ["--set", *change.split()]
    line = refuses("train", "copy", "--out", folder, *COPY, *words)
    assert message in line
    assert not list_checkpoints(folder / "checkpoints")


@pytest.mark.parametrize(
    ("name", "depth"), [("grammar", 100000), ("grammar", 3000)]
)
def test_a_grammar_beyond_depth(tmp_path, name, depth):
    """Sentences that nest deeper than Python can are refused."""
    refuses("prepare", name, "--out", tmp_path, *changes(depth=depth))


LINES = b"".join(b"line %d\n" % i for i in range(30))
BAD = {
    "binary": (bytes(range(256)) * 4, "zero byte"),
    "latin-1": (LINES + b"Gr\xfc\xdfe\n", "line 31: not UTF-8"),
    "utf-16": (LINES.decode().encode("utf-16"), "UTF-8"),
    "empty": (b"", "lines"),
    "longer": (LINES + b"one more\n", "31 lines"),
    "shorter": (LINES[:-8], "29 lines"),
    "NULs": (LINES.replace(b"line 7", b"li\0e 7"), "line 8: a zero byte"),
    "damaged gzip": (gzip.compress(LINES)[:-12], "damaged or cut short"),
    "damaged xz": (lzma.compress(LINES)[:-12], "damaged or cut short"),
    "only blank lines": (b"\n \n\t\n" * 10, "no pair with text on both sides"),
    "one line": (b"line\n", "lines"),
}


@pytest.mark.parametrize("side", ["source", "target", "both"])
@pytest.mark.parametrize("kind", BAD)
def test_bad_files(tmp_path, kind, side):
    """Whichever of the two files it is: its name, and what is wrong."""
    content, message = BAD[kind]
    paths = {name: tmp_path / f"text.{name}" for name in ("source", "target")}
    for name, path in paths.items():
        path.write_bytes(content if side in (name, "both") else LINES)
    words = [w for name, path in paths.items() for w in (f"--{name}", path)]
    arguments = ["train", *words, "--out", tmp_path / "run", *OWN]
    if kind == "longer" and side == "both":  # then they fit
        succeeds(*arguments)
        return
    if kind == "shorter" and side == "both":
        succeeds(*arguments)
        return
    line = refuses(*arguments)
    if side != "both":
        assert "text." in line and message in line
    assert not list_checkpoints(tmp_path / "run/checkpoints")


GOOD = {
    "BOM": b"\xef\xbb\xbf" + LINES,
    "CRLF": LINES.replace(b"\n", b"\r\n"),
    "no last line end": LINES[:-1],
    "blank lines": LINES.replace(b"line 3\n", b"\n"),
    "a line of a megabyte": LINES.replace(b"line 4\n", b"x" * 2**20 + b"\n"),
    "odd characters": LINES.replace(
        b"line", "\u2028\x0b\x85\U0001f600".encode()
    ),
}


@pytest.mark.parametrize("kind", GOOD)
def test_files_that_are_odd_but_good(tmp_path, kind):
    """What editors and other systems leave in files is no obstacle."""
    left, right = tmp_path / "a", tmp_path / "b"
    left.write_bytes(GOOD[kind])
    right.write_bytes(LINES)
    out = tmp_path / "run"
    arguments = ["--source", left, "--target", right, "--out", out]
    assert "Done after 1" in succeeds("train", *arguments, *OWN)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("FOLDER", "a folder, expected a file"),
        ("missing", "no such file"),
        ("/proc/self/mem", "/proc/self/mem"),  # cannot be read
        ("/dev/zero", "expected a regular file"),
        ("FOLDER/pipe", "expected a regular file"),
        ("LOOP", "LOOP"),
        ("FOLDER/text.en/more", "text.en"),
        ("FOLDER/text.en", "0 tabs, expected one"),  # no table
    ],
)
def test_files_that_are_none(tmp_path, source, message):
    """Folders, devices, pipes, links to nowhere."""
    parallel(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "LOOP").symlink_to(tmp_path / "LOOP")
    name = source.replace("FOLDER", str(tmp_path))
    if name == "LOOP":
        name = str(tmp_path / "LOOP")
    line = refuses("train", "--source", name, "--out", tmp_path / "run", *OWN)
    assert message in line


@settings(max_examples=60)
@given(
    st.lists(
        st.binary(max_size=12)
        | st.text(max_size=6).map(lambda t: t.encode("utf-8", "surrogatepass"))
        | st.sampled_from([b"", b" ", b"\t", b"a b", b"\0", b"\xff", b"\r"]),
        max_size=6,
    ),
    st.lists(st.sampled_from([b"", b"x", b"y z", b"\xef\xbb\xbf"]), max_size=6),
    st.integers(0, 20),
    st.booleans(),
    st.sampled_from([False, False, True]),
)
def test_any_two_files(tmp_path_factory, left, right, more, even, table):
    """A model or one line, whatever the files hold."""
    folder = tmp_path_factory.mktemp("any")
    tail = [b"word %d" % i for i in range(more)]
    if even:  # of equal length
        right = [*right, *[b"x"] * 6][: len(left)]
    (folder / "a").write_bytes(b"\n".join([*left, *tail]))
    (folder / "b").write_bytes(b"\n".join([*right, *tail]))
    words = ["train", "--source", folder / "a", "--out", folder / "run", *OWN]
    if not table:
        words += ["--target", folder / "b"]
    code, out, err = call(*words)
    if code:
        assert code == 2 and "Traceback" not in err
        assert err.startswith("error: ") and err.count("\n") == 1
    else:
        assert "Done after 1 updates." in out and err == ""


@given(
    st.lists(
        st.sampled_from(
            [
                "train",
                "prepare",
                "average",
                "copy",
                "zzz",
                "--out",
                "--set",
                "steps=x",
                "--resume",
                "--source",
                "--last",
                "-1",
                "--",
                "",
                "\ud800",
                "\0",
                "x.toml",
            ]
        ),
        max_size=6,
    )
)
def test_any_arguments(tmp_path_factory, words):
    """Help or a refusal, of whatever words."""

    def meant(*_):
        raise ValueError("none of these can be meant")

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("anywhere"))
        patch.setattr(recipe, "run_recipe", meant)
        patch.setattr(recipe, "prepare", meant)
        code, _, err = call(*words)
    assert code in (0, 2) and "Traceback" not in err


# --- errors on the way


def test_errors_in_training_have_another_code(tmp_path, monkeypatch):
    """What happened on the way is 1; what was asked for is 2."""

    def stop(*_):
        raise TrainingError("the disk\n is  full")

    monkeypatch.setattr(recipe, "run_recipe", stop)
    line = refuses("train", "copy", "--out", tmp_path, *COPY, code=1)
    assert line == "error: the disk is full"


def test_a_worker_says_who_it_is(tmp_path, monkeypatch):
    """Among many, the line begins with the number."""
    monkeypatch.setenv("RANK", "3")
    code, _, err = call("train", "zzz", "--out", tmp_path)
    assert code == 2 and err.startswith("worker 3: error: unknown recipe")


def test_errors_without_words(tmp_path, monkeypatch):
    """At least their name."""

    def stop(*_):
        raise MemoryError

    monkeypatch.setattr(recipe, "run_recipe", stop)
    line = refuses("train", "copy", "--out", tmp_path, *COPY)
    assert line == "error: MemoryError"


def test_bugs_are_not_hidden(tmp_path, monkeypatch):
    """What is nobody's fault but ours shows where it is."""

    def stop(*_):
        raise KeyError("a bug")

    monkeypatch.setattr(recipe, "run_recipe", stop)
    monkeypatch.setattr(
        sys, "argv", ["x", "train", "copy", "--out", str(tmp_path)]
    )
    with (
        contextlib.redirect_stdout(io.StringIO()),
        pytest.raises(KeyError, match="a bug"),
    ):
        main()


def test_a_loss_that_is_no_number(tmp_path):
    """Code 1, one line, and the last good checkpoint to go on from."""
    folder = tmp_path / "run"
    succeeds("train", "copy", "--out", folder, *COPY)
    line = refuses(
        "train",
        "--out",
        folder,
        "--resume",
        *changes(factor=1e30, steps=9),
        code=1,
    )
    assert "update " in line and "factor" in line
    out = succeeds(
        "train", "--out", folder, "--resume", *changes(factor=1, steps=6)
    )
    assert "Done after 6" in out


# --- real processes

SETTING = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def start(*arguments):
    """The command as a shell would start it."""
    return subprocess.Popen(
        [sys.executable, "-m", "transformer_annotated", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=SETTING,
        cwd=ROOT,
    )


def test_a_real_process_that_is_refused(tmp_path):
    """Nothing on its output, one line on the other, code 2."""
    with start("train", "cpoy", "--out", tmp_path) as process:
        out, err = process.communicate()
    assert process.returncode == 2 and out == ""
    assert err == "error: unknown recipe, 'cpoy'; did you mean 'copy'?\n"


def ends_as_if_never_stopped(folder, step, tmp_path):
    """Two more updates lead to where a run without a stop is."""
    more = changes(steps=step + 2)
    succeeds("train", "--out", folder, "--resume", *more)
    whole = tmp_path / "whole"
    succeeds("train", "copy", "--out", whole, *COPY, *more)
    assert_same_run(folder, whole)


def test_sigterm_to_a_real_process(tmp_path):
    """What a cluster sends: it saves, says so, and goes on later.

    The exit code is not that of success, for what comes after ``&&``.
    """
    folder = tmp_path / "run"
    more = changes(steps=100000, checkpoint_every=100000, log_every=1)
    with start("train", "copy", "--out", folder, *COPY, *more) as process:
        for line in process.stdout:
            if line.startswith("update 2:"):
                process.send_signal(signal.SIGTERM)
                break
        out, err = process.communicate()
    assert (process.returncode, err) == (128 + signal.SIGTERM, "")
    step = list_checkpoints(folder / "checkpoints")[-1].name.removeprefix(
        "step-"
    )
    assert out.splitlines()[-2:] == [
        f"Stopped at update {int(step):,}. Go on with: transformer-annotated "
        f"train --out {folder} --resume",
        f"Report: {folder / 'report.html'}",
    ]
    ends_as_if_never_stopped(folder, int(step), tmp_path)


def train_there(arguments, report, out):
    """The command in another process, which reports each update."""
    torch.set_num_threads(1)
    real = training.train_step

    def reporting(learner, optimizer, *rest):
        report.send(optimizer.steps)
        return real(learner, optimizer, *rest)

    training.train_step = reporting
    sys.argv = ["transformer-annotated", *arguments]
    with open(out, "w") as file, contextlib.redirect_stdout(file):
        main()


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c(tmp_path, presses):
    """The first ends a run in good order, the second at once."""
    folder, said = tmp_path / "run", tmp_path / "said"
    more = changes(steps=100000, checkpoint_every=100000)
    words = ["train", "copy", "--out", str(folder), *COPY, *more]
    ours, theirs = NURSERY.Pipe(duplex=False)
    process = NURSERY.Process(target=train_there, args=(words, theirs, said))
    process.start()
    theirs.close()
    while ours.recv() < 3:
        pass
    for _ in range(presses):
        os.kill(process.pid, signal.SIGINT)
    with contextlib.suppress(EOFError):
        while True:
            ours.recv()
    process.join()
    code = process.exitcode
    process.close()
    ours.close()
    there = list_checkpoints(folder / "checkpoints")
    assert code == 128 + signal.SIGINT
    if "Stopped at update " in said.read_text():  # two may arrive as one
        step = int(there[-1].name.removeprefix("step-"))
        assert step > 3
        ends_as_if_never_stopped(folder, step, tmp_path)
    else:
        assert presses == 2 and not there


@pytest.mark.parametrize("module", ["typer", "numpy", "torch._C", "tokenizers"])
def test_ctrl_c_while_modules_are_loaded(tmp_path, module):
    """Ends the process at once, without a traceback."""
    command = [sys.executable, "-X", "importtime", "-m"]
    command += ["transformer_annotated", "train", "copy", "--out", tmp_path]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=SETTING, cwd=ROOT
    ) as process:
        for line in process.stderr:
            if line.split("|")[-1].strip().startswith(module):
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    signal.signal(signal.SIGINT, before)
    assert process.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
    assert all(line.startswith("import time:") for line in rest.splitlines())
