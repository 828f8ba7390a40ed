"""The journal of a run: nothing lost, nothing torn."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runs import go
from transformer_annotated.workshop.journal import (
    Journal,
    ProgressReporter,
    gpu_stats,
    read_metrics,
)

pytestmark = pytest.mark.usefixtures("one_thread")


# --- the journal


def test_the_journal_drops_what_is_to_come_again(tmp_path):
    """Lines after the update from which a run goes on, and a torn one."""
    lines = [f'{{"step": {step}, "loss": 1.5}}\n' for step in (1, 2, 2, 3, 4)]
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(lines) + '{"step": 5, "lo')
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 2, 3, 4]
    journal = Journal(tmp_path, step=2)
    journal.write({"step": 3, "loss": 2.5})
    assert file.read_text() == "".join(lines[:3]) + '{"step": 3, "loss": 2.5}\n'
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


ODD = {
    "no JSON": "loss 3.5",
    "no table": "[1, 2]",
    "no step": '{"loss": 3.5}',
    "another step": '{"step": 2, "step": null}',
    "no UTF-8": "\udcff\udcfe",
    "zeros": "\0" * 40,
    "too deep": "[" * 100_000,
    "too long": "9" * 5000,
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_damaged_line_takes_no_other_with_it(tmp_path, capsys, odd):
    """The file as it was is kept, and that is said."""
    file = tmp_path / "metrics.jsonl"
    lines = [f'{{"step": {step}, "more": {{"a": 1}}}}' for step in (1, 2, 3)]
    text = "\n".join([lines[0], odd, *lines[1:], ""])
    file.write_text(text, errors="surrogateescape")
    before = file.read_bytes()
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 3]
    for number in (1, 2):  # a second copy does not replace the first
        file.write_bytes(before)
        Journal(tmp_path, step=2)
        assert file.read_text().splitlines() == lines[:2]
        copy = tmp_path / f"metrics.damaged-{number}.jsonl"
        assert copy.read_bytes() == before
        assert capsys.readouterr().err == (
            f"warning: {file}, line 2: damaged, and left out; the file as it "
            f"was is {copy.name}\n"
        )


def test_metrics_that_are_no_file_are_refused_at_once(tmp_path):
    """A pipe nobody writes to, zeros without end, a link to nothing."""
    file = tmp_path / "metrics.jsonl"
    os.mkfifo(tmp_path / "pipe")
    for target in (tmp_path / "pipe", "/dev/zero", tmp_path, "nothing", file):
        file.symlink_to(target)
        for reading in (read_metrics, Journal):
            with pytest.raises(ValueError, match=r"metrics\.jsonl: "):
                reading(tmp_path)
        file.unlink()


@given(cut=st.integers(0, 60))
def test_a_journal_cut_anywhere_can_be_read(tmp_path_factory, cut):
    """Whole lines are kept, and what is added starts a line."""
    folder = tmp_path_factory.mktemp("cut")
    whole = "".join(f'{{"step": {i}, "loss": 3.25}}\n' for i in (1, 2))
    (folder / "metrics.jsonl").write_text(whole[:cut])
    kept = whole[:cut].count("}")
    assert len(read_metrics(folder)) == kept
    Journal(folder, step=9).write({"step": 9})
    assert [row["step"] for row in read_metrics(folder)] == [*[1, 2][:kept], 9]


def test_a_line_is_on_the_disk_before_the_checkpoint_is(tmp_path, monkeypatch):
    """A power cut must not take lines from before the last checkpoint."""
    seen = []

    def look(handle):
        assert os.fstat(handle).st_ino == journal.path.stat().st_ino
        seen.append(journal.path.read_text())

    journal = Journal(tmp_path)
    monkeypatch.setattr(os, "fsync", look)
    journal.write({"step": 1})
    assert seen == ['{"step": 1}\n']


def test_metrics_of_nothing(tmp_path):
    """No file, no lines."""
    assert read_metrics(tmp_path) == []


def test_tensorboard(tmp_path):
    """Every number of the metrics is there as a scalar, step by step."""
    from tensorboard.backend.event_processing.event_accumulator import (
        EventAccumulator,
    )

    go(tmp_path, tensorboard=True, steps=6)
    board = EventAccumulator(str(tmp_path)).Reload()
    rows = read_metrics(tmp_path)
    names = {name for row in rows for name in row} - {"step"}
    assert set(board.Tags()["scalars"]) == names
    for name in ("loss", "valid_nll", "rate"):
        wanted = [(row["step"], row[name]) for row in rows if name in row]
        found = [(e.step, e.value) for e in board.Scalars(name)]
        assert found == [(s, pytest.approx(v, rel=1e-6)) for s, v in wanted]


def test_no_tensorboard_unless_asked(uninterrupted):
    """A run's folder holds metrics, checkpoints and a lock."""
    assert set(os.listdir(uninterrupted)) == {
        "metrics.jsonl",
        "checkpoints",
        ".lock",
    }


SMI = """#!/bin/sh
echo "0, GPU-1, 37, 16160, 1024, 15136, 550.1, Tesla, 1, Disabled, Disabled, 40"
echo "1, GPU-2, {load}, 16160, 16, 16144, 550.1, T4, 2, Disabled, Disabled, 40"
"""


def nvidia_smi(folder, monkeypatch, text):
    """Put a program of this name on the path, and nothing else."""
    file = folder / "nvidia-smi"
    file.write_text(text)
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")


def test_gpu_readings(tmp_path, monkeypatch):
    """Load as a share, memory in MiB, as nvidia-smi tells it."""
    nvidia_smi(tmp_path, monkeypatch, SMI.format(load=100))
    assert gpu_stats() == [
        {"gpu": 0, "load": 0.37, "used": 1024.0, "memory": 16160.0},
        {"gpu": 1, "load": 1.0, "used": 16.0, "memory": 16160.0},
    ]


def test_no_gpu_no_readings(tmp_path, monkeypatch):
    """Without the program there is nothing to read."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_stats() == []


def test_a_gpu_that_will_not_say_ends_no_run(tmp_path, monkeypatch):
    """Errors of nvidia-smi, and numbers it has not, are no errors of ours."""
    nvidia_smi(tmp_path, monkeypatch, "#!/bin/sh\necho NVIDIA-SMI has failed")
    assert gpu_stats() == []
    nvidia_smi(tmp_path, monkeypatch, SMI.format(load="[N/A]"))
    json.dumps(gpu_stats(), allow_nan=False)


ROW = {"step": 2, "loss": 2.0, "tokens": 8, "seconds": 4.0}


def test_only_one_worker_writes(tmp_path, capfd):
    """The others keep a journal without a page."""
    with ProgressReporter(tmp_path, 9, writes=False) as report:
        assert report.tick() >= 0
        report.write(ROW)
    assert not os.listdir(tmp_path)
    assert capfd.readouterr() == ("", "")


def test_time_is_counted_from_where_the_run_stands(tmp_path):
    """A run that had taken a minute goes on counting from there."""
    with ProgressReporter(tmp_path, 9, 2, seconds=60.0) as report:
        assert report.tick() >= 60.0


def test_what_is_shown_where_there_is_no_terminal(tmp_path, capfd):
    """Plain lines instead of a bar; or nothing, if asked."""
    for shown in (True, False):
        with ProgressReporter(tmp_path, 9, progress_bar=shown) as report:
            report.write(ROW)
            report.write(ROW | {"loss": 1, "valid_nll": 1.25, "gradient": 7.0})
        out, err = capfd.readouterr()
        assert err == ""
        lines = [
            "update 2: loss 2 tokens/s 2",
            "update 2: loss 1 nll 1.25 tokens/s 2",
        ]
        assert out.splitlines() == (lines if shown else [])
