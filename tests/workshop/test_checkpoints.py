"""Checkpoints: whole or not there, read with care, averaged."""

import errno
import math
import os
import pickle
import pickletools
import resource
import shutil
import signal
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from tests.helpers import ListPairs
from tests.runs import (
    CONFIG,
    NURSERY,
    PAIRS,
    a_batch,
    assert_all_whole,
    assert_same_run,
    at_once,
    go,
    noam,
    rows_of,
    same,
    tiny,
    weights_of,
)
from transformer_annotated import training
from transformer_annotated.batching import Batches
from transformer_annotated.distributed import SINGLE, Worker
from transformer_annotated.training import (
    ModelWithLoss,
    TrainState,
    train,
    train_step,
)
from transformer_annotated.workshop import files
from transformer_annotated.workshop.checkpoints import (
    average_checkpoints,
    dequantize,
    list_checkpoints,
    load_checkpoint,
    load_weights,
    prune_checkpoints,
    quantize,
    read_checkpoints,
    regular_checkpoints,
    save_checkpoint,
)
from transformer_annotated.workshop.checks import TrainingError
from transformer_annotated.workshop.journal import read_metrics

pytestmark = pytest.mark.usefixtures("one_thread")


# --- checkpoints


def saved(folder, step=1, seed=1, settings=None, **changes):
    """A checkpoint of a fresh model."""
    model = tiny(seed, **changes)
    return save_checkpoint(
        folder, model, noam(model), {"step": step}, settings or {}
    )


def test_a_checkpoint_brings_everything_back(tmp_path):
    """Parameters, moments and progress; the settings are compared."""
    model = tiny()
    optimizer = noam(model)
    for number in (0, 1):
        train_step(ModelWithLoss(model), optimizer, a_batch(number=number))
    progress = {"step": 2, "seconds": 6.5, "sums": [1.0, 2.0, 3.0]}
    settings = {"seed": 0, "factor": 1.0}
    path = save_checkpoint(tmp_path, model, optimizer, progress, settings)
    assert path == tmp_path / "step-2"
    other = tiny(seed=5)
    theirs = noam(other)
    assert load_checkpoint(path, other, theirs, settings) == progress
    assert same(other.state_dict(), model.state_dict())
    assert theirs.steps == 2
    for a, b in zip(
        optimizer.adam.state.values(), theirs.adam.state.values(), strict=True
    ):
        assert same(a, b)


def test_a_checkpoint_is_two_files_with_nothing_to_run(tmp_path):
    """Tensors as safetensors, the rest of types that hold no code."""
    path = saved(tmp_path)
    assert {file.name for file in path.iterdir()} == {
        "model.safetensors",
        "training.pt",
    }
    with zipfile.ZipFile(path / "training.pt") as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("data.pkl")]
        data = archive.read(name)
    named = {
        argument
        for code, argument, _ in pickletools.genops(data)
        if code.name == "GLOBAL"
    }
    assert named <= {
        "torch._utils _rebuild_tensor_v2",
        "torch FloatStorage",
        "collections OrderedDict",
    }
    assert "STACK_GLOBAL" not in {
        op.name for op, *_ in pickletools.genops(data)
    }


def test_only_whole_checkpoints_are_listed(tmp_path):
    """By number, and without drafts or what else is there."""
    for name in ("step-9", "step-10", "step-100", ".step-11.old", "step-x"):
        (tmp_path / name).mkdir()
    (tmp_path / ".step-3.12.part").mkdir()
    (tmp_path / "step-12.old").mkdir()
    names = [path.name for path in list_checkpoints(tmp_path)]
    assert names == ["step-9", "step-10", "step-100"]
    assert list_checkpoints(tmp_path / "missing") == []


def test_a_leftover_draft_does_not_disturb(tmp_path):
    """What a killed process left is replaced, not added to."""
    draft = tmp_path / f".step-1.{os.getpid()}.part"
    (draft / "nested").mkdir(parents=True)
    (draft / "model.safetensors").write_bytes(b"half")
    path = saved(tmp_path)
    assert len(list(path.iterdir())) == 2
    load_weights(tiny(), path)
    assert not draft.exists()


def test_a_checkpoint_that_exists_is_left_alone(tmp_path):
    """The same step again is the same run again."""
    path = saved(tmp_path)
    before = (path / "model.safetensors").read_bytes()
    assert saved(tmp_path, seed=2) == path
    assert (path / "model.safetensors").read_bytes() == before


def test_everything_is_on_the_disk_before_it_gets_its_name(
    tmp_path, monkeypatch
):
    """Files, then their folder, then the name, then the folder above."""
    order, real = [], Path.rename

    def noting(path):
        order.append(path.name)

    def renaming(path, other):
        order.append("rename")
        return real(path, other)

    monkeypatch.setattr(files, "sync_to_disk", noting)
    monkeypatch.setattr(Path, "rename", renaming)
    folder = tmp_path / "run"
    saved(folder)
    assert set(order[:2]) == {"model.safetensors", "training.pt"}
    assert order[2:] == [f".step-1.{os.getpid()}.part", "rename", "run"]


def test_to_disk_reaches_the_disk(tmp_path, monkeypatch):
    """It waits for the very file, and closes it."""
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino)
    )
    file = tmp_path / "file"
    file.touch()
    before = len(os.listdir("/proc/self/fd"))
    for path in (file, tmp_path):
        files.sync_to_disk(path)
    assert synced == [file.stat().st_ino, tmp_path.stat().st_ino]
    assert len(os.listdir("/proc/self/fd")) == before


def test_prune(tmp_path):
    """The last few stay, the others are gone without a trace."""
    for step in (1, 2, 3, 9, 10, 11):
        saved(tmp_path, step)
    prune_checkpoints(tmp_path, keep=2)
    assert {p.name for p in tmp_path.iterdir()} == {"step-10", "step-11"}
    prune_checkpoints(tmp_path, keep=5)
    assert len(list_checkpoints(tmp_path)) == 2
    prune_checkpoints(tmp_path, keep=1)
    assert os.listdir(tmp_path) == ["step-11"]


def test_prune_sweeps_up_what_killed_processes_left(tmp_path):
    """Drafts of checkpoints, and of their removal, even of the same step."""
    for step in (1, 2, 3):
        saved(tmp_path, step)
    shutil.copytree(tmp_path / "step-1", tmp_path / ".step-1.old")
    shutil.copytree(tmp_path / "step-1", tmp_path / ".step-7.1.part")
    prune_checkpoints(tmp_path, keep=2)
    assert sorted(os.listdir(tmp_path)) == ["step-2", "step-3"]


def test_a_run_keeps_the_last_checkpoints(tmp_path):
    """Those of the recipe's rhythm, the last update's, and no draft."""
    for steps in (7, 11):
        go(tmp_path, steps=steps, resume=True)
    names = sorted(os.listdir(tmp_path / "checkpoints"))
    assert names == ["step-10", "step-11", "step-8"]


def test_regular_checkpoints(tmp_path):
    """Multiples of the interval; all, where there are none."""
    found = [tmp_path / f"step-{step}" for step in (4, 6, 7, 9)]
    assert regular_checkpoints(found, 3) == [found[1], found[3]]
    assert regular_checkpoints(found, 5) == found


@pytest.mark.parametrize("kind", ["file", "pipe", "device", "link"])
def test_what_is_named_like_a_checkpoint_is_refused(tmp_path, kind):
    """At once: to pass over it would mean to go on from an older one."""
    saved(tmp_path)
    odd = tmp_path / "step-2"
    {
        "file": odd.touch,
        "pipe": lambda: os.mkfifo(odd),
        "device": lambda: odd.symlink_to("/dev/zero"),
        "link": lambda: odd.symlink_to(odd),
    }[kind]()
    with pytest.raises(ValueError, match=r"step-2: not a folder, so not a"):
        list_checkpoints(tmp_path)


@pytest.mark.parametrize("file", ["model.safetensors", "training.pt"])
def test_a_pipe_in_a_checkpoint_is_refused_at_once(tmp_path, file):
    """Nobody waits for what never comes, or never ends."""
    path = saved(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path / "pipe", "/dev/zero"):
        (path / file).unlink()
        (path / file).symlink_to(other)
        with pytest.raises(ValueError, match=f"{file}: cannot .* regular file"):
            load_checkpoint(path, tiny(), noam(tiny()), {})


def test_a_link_to_a_checkpoint_is_pruned_as_a_link(tmp_path):
    """What it leads to belongs to somebody else."""
    real = saved(tmp_path / "other", 1)
    saved(tmp_path / "run", 2)
    (tmp_path / "run/step-1").symlink_to(real)
    assert len(list_checkpoints(tmp_path / "run")) == 2
    prune_checkpoints(tmp_path / "run", keep=1)
    assert os.listdir(tmp_path / "run") == ["step-2"]
    load_weights(tiny(), real)


def test_who_reads_while_a_run_prunes_looks_again(tmp_path):
    """A checkpoint that is gone is no damage; one that is there is."""
    saved(tmp_path, 1)
    seen = []

    def read(found):
        seen.append([path.name for path in found])
        if len(seen) == 1:
            saved(tmp_path, 2)
            prune_checkpoints(tmp_path, keep=1)
        load_weights(tiny(), found[-1])

    read_checkpoints(tmp_path, read)
    assert seen == [["step-1"], ["step-2"]]
    (tmp_path / "step-2/model.safetensors").write_bytes(b"half")
    with pytest.raises(ValueError, match=r"step-2.* cannot be read"):
        read_checkpoints(tmp_path, read)


def test_another_size_is_refused_with_name_and_shapes(tmp_path):
    """Whichever tensor comes first: what is there, and what was expected."""
    path = saved(tmp_path)
    with pytest.raises(
        ValueError, match=r"step-1: .* is \(16, 16\), .* \(32, 32\)"
    ):
        load_weights(tiny(d_model=32), path)
    model = tiny(layers=2)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"layers\.1\..* is missing, .* \("):
        load_weights(model, path)
    assert same(model.state_dict(), before)
    larger = saved(tmp_path, 2, layers=2)
    with pytest.raises(ValueError, match=r"layers\.1\..* is \(.* is missing"):
        load_weights(tiny(), larger)


DAMAGE = {
    "missing": None,
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "garbage": lambda data: b"x" * 100,
    "a pickle": lambda data: pickle.dumps({"a": 1}),
}


def damage(path, how):
    """Do something to a file."""
    data = path.read_bytes()
    path.unlink()
    if DAMAGE[how] is not None:
        path.write_bytes(DAMAGE[how](data))


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_weights_are_refused(tmp_path, how):
    """With the file's name, and no half-filled model."""
    path = saved(tmp_path)
    damage(path / "model.safetensors", how)
    model = tiny(seed=4)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"model\.safetensors: cannot be read"):
        load_checkpoint(path, model, noam(model), {})
    assert same(model.state_dict(), before)


def test_a_byte_a_number_by_hand():
    """The largest of a row is 127, and its scale brings it back."""
    packed = quantize({"w": torch.tensor([[2.54, -1.27], [0.0, 0.0]])})
    assert packed["w"].tolist() == [[127, -64], [0, 0]]  # 63.5, to even
    assert packed["w"].dtype == torch.int8
    assert_close(packed["w.scale"][0], torch.tensor([0.02]))
    expected = torch.tensor([[2.54, -1.28], [0.0, 0.0]])
    assert_close(dequantize(packed), {"w": expected})


@pytest.mark.parametrize("scale", [None, torch.ones(2), torch.ones(3, 1)])
def test_whole_numbers_without_scales_are_refused(tmp_path, scale):
    """They would be weights a hundred times too large."""
    path = saved(tmp_path)
    weights = load_file(path / "model.safetensors")
    name = next(name for name, w in weights.items() if w.dim() == 2)
    weights[name] = weights[name].to(torch.int8)
    if scale is not None:
        weights[f"{name}.scale"] = scale
    save_file(weights, path / "model.safetensors")
    with pytest.raises(ValueError, match=r"cannot be read: .*without a scale"):
        load_weights(tiny(), path)


def test_a_single_whole_number_is_refused():
    """It has no rows, and no scale for them."""
    with pytest.raises(ValueError, match="x: whole numbers without a scale"):
        dequantize(
            {
                "x": torch.tensor(1, dtype=torch.int8),
                "x.scale": torch.ones(1, 1),
            }
        )


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_state_is_refused(tmp_path, how):
    """With the file's name and in one line."""
    path = saved(tmp_path)
    damage(path / "training.pt", how)
    model = tiny()
    with pytest.raises(ValueError, match=r"training\.pt: cannot be read") as no:
        load_checkpoint(path, model, noam(model), {})
    assert "\n" not in str(no.value)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"settings": 3, "optimizer": {}, "progress": {}},
        {"settings": {}, "optimizer": 3, "progress": {}},
        [1, 2],
    ],
)
def test_a_state_of_something_else_is_refused(tmp_path, state):
    """A file that torch can read need not be ours."""
    path = saved(tmp_path)
    torch.save(state, path / "training.pt")
    model = tiny()
    with pytest.raises(ValueError, match=r"training\.pt: cannot be read"):
        load_checkpoint(path, model, noam(model), {"seed": 0})


class Evil:
    """A pickle that runs a command, or rather would."""

    def __reduce__(self):
        """What unpickling would call."""
        return os.mkdir, (os.environ["EVIL"],)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("form", ["torch", "pickle"])
def test_no_code_from_a_checkpoint_is_run(tmp_path, monkeypatch, form):
    """A pickle with a command is refused, and the command is not run."""
    trace = tmp_path / "evil"
    monkeypatch.setenv("EVIL", str(trace))
    path = saved(tmp_path / "run")
    state = {"progress": Evil(), "settings": {}, "optimizer": {}}
    if form == "torch":
        torch.save(state, path / "training.pt")
    else:
        (path / "training.pt").write_bytes(pickle.dumps(state))
    model = tiny()
    with pytest.raises((ValueError, pickle.UnpicklingError)):
        load_checkpoint(path, model, noam(model), {})
    assert not trace.exists()
    pickle.loads(pickle.dumps(Evil()))
    assert trace.exists()  # it would have


@pytest.mark.parametrize("form", ["torch", "pickle"])
def test_code_is_refused_like_other_damage(tmp_path, monkeypatch, form):
    """In one line, that names the file."""
    monkeypatch.setenv("EVIL", str(tmp_path / "evil"))
    path = saved(tmp_path / "run")
    if form == "torch":
        torch.save({"progress": Evil()}, path / "training.pt")
    else:
        (path / "training.pt").write_bytes(pickle.dumps(Evil()))
    model = tiny()
    with pytest.raises(ValueError, match=r"training\.pt: cannot be read") as no:
        load_checkpoint(path, model, noam(model), {})
    assert "\n" not in str(no.value)
    assert "weights_only" not in str(no.value)  # torch's advice


def change_state(path, change):
    """Change what a checkpoint remembers besides the weights."""
    state = torch.load(path / "training.pt", weights_only=True)
    change(state)
    torch.save(state, path / "training.pt")


WRONG = {
    "a text": lambda s: s["progress"].update(step="12"),
    "a fraction": lambda s: s["progress"].update(epoch=0.5),
    "nothing": lambda s: s["progress"].update(tokens=None),
    "a truth": lambda s: s["progress"].update(batch=True),
    "below zero": lambda s: s["progress"].update(batch=-1),
    "no number": lambda s: s["progress"].update(seconds=math.nan),
    "another step": lambda s: s["progress"].update(step=3),
    "a number for a list": lambda s: s["progress"].update(sums=3.0),
    "a short list": lambda s: s["progress"].update(sums=[1.0]),
    "a list of texts": lambda s: s["progress"].update(sums=["a"] * 3),
    "an unknown name": lambda s: s["progress"].update(x=1),
    "steps": lambda s: s["optimizer"].update(steps="2"),
    "no moments": lambda s: s["optimizer"].update(adam=[]),
    "a moment": lambda s: s["optimizer"]["adam"]["state"][0].update(
        exp_avg_sq=torch.zeros(3)
    ),
    "a sparse moment": lambda s: s["optimizer"]["adam"]["state"][0].update(
        exp_avg=s["optimizer"]["adam"]["state"][0]["exp_avg"].to_sparse()
    ),
    "a count": lambda s: s["optimizer"]["adam"]["state"][0].update(step="x"),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_wrong_types_in_a_state_are_refused(tmp_path, uninterrupted, change):
    """By file, with the checkpoint that is whole; nothing is changed."""
    shutil.copytree(uninterrupted, tmp_path / "run")
    where = tmp_path / "run/checkpoints"
    change_state(where / "step-12", change)
    with pytest.raises(ValueError, match=r"step-12/training\.pt: ca") as no:
        go(tmp_path / "run", resume=True, steps=14)
    assert f"; {where}/step-10 is whole; to go on" in str(no.value)
    assert rows_of(tmp_path / "run") == rows_of(uninterrupted)
    shutil.rmtree(where / "step-12")  # as advised
    go(tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", uninterrupted)


def test_a_moment_of_one_number_is_laid_out(tmp_path, uninterrupted):
    """A kernel would read and write beyond its memory."""
    shutil.copytree(uninterrupted, tmp_path / "run")
    path = tmp_path / "run/checkpoints/step-12"

    def shrink(state):
        row = state["optimizer"]["adam"]["state"][0]
        row["exp_avg"] = torch.zeros(1, 1).expand(row["exp_avg"].shape)

    change_state(path, shrink)
    model = tiny()
    optimizer = noam(model)
    load_checkpoint(path, model, optimizer, {})
    for row in optimizer.adam.state.values():
        assert row["exp_avg"].is_contiguous()


def test_when_no_checkpoint_is_whole(tmp_path, uninterrupted):
    """There is no advice to give."""
    shutil.copytree(uninterrupted, tmp_path / "run")
    for path in list_checkpoints(tmp_path / "run/checkpoints"):
        damage(path / "model.safetensors", "half")
    with pytest.raises(ValueError, match=r"step-12.*; no other .* is whole$"):
        go(tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "seed: 1, .* with 0"),
        ({"warmup": 11}, "warmup: 11, .* with 10"),
        ({"batch_tokens": 50}, "batch_tokens: 50, .* with 40"),
        ({"label_smoothing": 0.2}, r"label_smoothing: 0\.2, .* with 0\.1"),
    ],
)
def test_settings_that_cannot_change_are_refused(
    tmp_path, uninterrupted, changes, message
):
    """By name, with both values; and the run is left as it was."""
    shutil.copytree(uninterrupted, tmp_path / "run")
    with pytest.raises(ValueError, match=f"^{message}"):
        go(tmp_path / "run", resume=True, steps=14, **changes)
    assert_same_run(tmp_path / "run", uninterrupted)


def test_another_model_or_corpus_is_refused(tmp_path, uninterrupted):
    """Dropout has no shape, and a shorter corpus other batches."""
    config = replace(CONFIG, steps=14)
    with pytest.raises(ValueError, match=r"^dropout: 0\.2, .* with 0\.1"):
        train(tiny(dropout=0.2), PAIRS, None, config, uninterrupted, True)
    fewer = ListPairs(PAIRS.sources[1:], PAIRS.targets[1:])
    with pytest.raises(ValueError, match=r"^pairs: 59, .* with 60"):
        train(tiny(), fewer, None, config, uninterrupted, True)
    for key, name in (("text", "corpus"), ("tokenizer", "tokenizer")):
        other = ListPairs(PAIRS.sources, PAIRS.targets)
        other.metadata = {key: "1234"}
        with pytest.raises(ValueError, match=f"^{name}: digest 1234, .* None"):
            train(tiny(), other, None, config, uninterrupted, True)
    assert len(read_metrics(uninterrupted)) == 7


def test_a_setting_that_did_not_exist_yet_is_not_compared(tmp_path):
    """A run that began with an earlier version goes on."""
    path, model = saved(tmp_path, settings={"seed": 0}), tiny()
    settings = {"seed": 0, "corpus": "digest 1234"}
    assert load_checkpoint(path, model, noam(model), settings) == {"step": 1}


def test_what_the_advice_says_is_possible(tmp_path, uninterrupted):
    """After a loss that is no number, one may go on with clipping."""
    shutil.copytree(uninterrupted, tmp_path / "run")
    go(tmp_path / "run", resume=True, steps=13, clip=1.0)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize(
    "changes",
    [
        {"accumulate": 1},
        {"precision": "float32"},
        {"log_every": 1},
        {"validate_every": 1},
        {"patience": 100},
        {"checkpoint_every": 1},
        {"keep": 9},
        {"workers": 1},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_settings_that_may_change(tmp_path, uninterrupted, changes):
    """How long, how cut, how often, how shown."""
    shutil.copytree(uninterrupted, tmp_path / "run")
    progress = go(tmp_path / "run", resume=True, steps=14, **changes)
    assert progress.step == 14
    assert (tmp_path / "run/checkpoints/step-14").exists()


def test_a_folder_with_a_run_is_not_begun_anew(tmp_path, uninterrupted):
    """Unless that is asked for, nothing of it is touched."""
    before = rows_of(uninterrupted)
    with pytest.raises(ValueError, match=r"holds a run already; .*--resume"):
        go(uninterrupted, steps=14)
    assert rows_of(uninterrupted) == before
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 3}\n')
    with pytest.raises(ValueError, match="holds a run already"):
        go(tmp_path)  # one without a checkpoint so far
    assert len(read_metrics(tmp_path)) == 1


def test_a_folder_in_use_is_refused(tmp_path):
    """In one line, with the process; nothing is touched."""
    with files.lock_folder(tmp_path):
        with pytest.raises(ValueError, match=f"in use by .* {os.getpid()}"):
            go(tmp_path)
        assert os.listdir(tmp_path) == [".lock"]
    go(tmp_path, steps=1)


def test_resume_without_a_checkpoint_begins(tmp_path, uninterrupted):
    """A run that was killed early leaves lines, but no checkpoint."""
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 3}\n{"st')
    go(tmp_path, resume=True)
    assert_same_run(tmp_path, uninterrupted)


def test_a_finished_run_that_is_resumed_does_nothing(tmp_path, uninterrupted):
    """No update, no line, no checkpoint."""
    shutil.copytree(uninterrupted, tmp_path / "run")
    assert go(tmp_path / "run", resume=True).step == 12
    assert_same_run(tmp_path / "run", uninterrupted)
    assert go(tmp_path / "run", resume=True, steps=3).step == 12


# --- averages


def test_average_is_the_mean(tmp_path):
    """Of each tensor, over the checkpoints, in float32."""
    paths = []
    for step, value in ((1, 1.0), (2, 2.0), (3, 6.0)):
        model = tiny()
        for p in model.parameters():
            p.data.fill_(value)
        optimizer, progress = noam(model), {"step": step}
        paths.append(save_checkpoint(tmp_path, model, optimizer, progress, {}))
    average_checkpoints(paths, tmp_path / "model.safetensors")
    mean = load_file(tmp_path / "model.safetensors")
    assert mean.keys() == tiny().state_dict().keys()
    for tensor in mean.values():
        assert_close(tensor, torch.full_like(tensor, 3.0))
        assert tensor.dtype == torch.float32
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"step-1", "step-2", "step-3", "model.safetensors"}


def test_an_average_is_a_model(tmp_path):
    """It loads where a checkpoint does, and one alone is unchanged."""
    path = saved(tmp_path)
    (tmp_path / "mean").mkdir()
    average_checkpoints([path], tmp_path / "mean/model.safetensors")
    model = tiny(seed=9)
    load_weights(model, tmp_path / "mean")
    assert same(model.state_dict(), tiny().state_dict())


def test_averages_do_not_lose_digits(tmp_path):
    """The mean of twenty is the nearest number to the true one."""
    paths, tensors = [], torch.randn(20, 1000)
    for step, tensor in enumerate(tensors):
        paths.append(tmp_path / f"step-{step}")
        paths[-1].mkdir()
        save_file({"a": tensor}, paths[-1] / "model.safetensors")
    average_checkpoints(paths, tmp_path / "mean")
    mean = load_file(tmp_path / "mean")["a"].double()
    assert_close(mean, tensors.double().mean(0), rtol=2**-24 + 1e-12, atol=0)


def test_averages_of_different_models_are_refused(tmp_path):
    """Other names; the file is not written."""
    paths = [saved(tmp_path, 1), saved(tmp_path, 2, layers=2)]
    with pytest.raises(ValueError, match="step-2: "):
        average_checkpoints(paths, tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


@pytest.mark.parametrize("shape", [(1, 3), (2, 1), (4, 3), (2, 3, 1)])
def test_averages_of_different_sizes_are_refused(tmp_path, shape):
    """Even of those that torch would stretch."""
    paths = []
    for step, size in enumerate(((2, 3), shape), 1):
        paths.append(tmp_path / f"step-{step}")
        paths[-1].mkdir()
        save_file({"a": torch.ones(size)}, paths[-1] / "model.safetensors")
    with pytest.raises(ValueError, match=r"step-2: a .*\(2, 3\)"):
        average_checkpoints(paths, tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_average_with_what_is_no_number_is_refused(tmp_path, value):
    """Which checkpoint and tensor; the file is not written."""
    paths = [saved(tmp_path, step) for step in (1, 2)]
    tensors = load_file(paths[1] / "model.safetensors")
    tensors["embeddings.weight"][3, 4] = value
    save_file(tensors, paths[1] / "model.safetensors")
    with pytest.raises(ValueError, match=r"step-2: embeddings.* not finite"):
        average_checkpoints(paths, tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


def test_an_average_of_nothing_is_refused(tmp_path):
    """Rather than written as an empty file."""
    with pytest.raises(ValueError, match="checkpoint"):
        average_checkpoints([], tmp_path / "mean")


# --- disks that are full, losses that are no numbers


def with_small_files(folder, limit, report, changes):
    """Go on with a run where no file may be larger than a limit."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an error instead
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        go(folder, resume=True, **changes)
        report.send("no error")
    except TrainingError as problem:
        report.send(str(problem))
    except BaseException as problem:
        report.send(f"{type(problem).__name__}: {problem}")


def message_with_small_files(folder, limit, **changes):
    """What a run says when a file becomes too large."""
    ours, theirs = NURSERY.Pipe(duplex=False)
    assert at_once(with_small_files, folder, limit, theirs, changes) == 0
    message = ours.recv()
    ours.close()
    theirs.close()
    return message


@pytest.mark.parametrize("file", ["model.safetensors", "training.pt"])
@pytest.mark.parametrize("good", [True, False])
def test_a_full_disk(tmp_path, uninterrupted, file, good):
    """The reason, the last good checkpoint, no draft; then it goes on."""
    folder = tmp_path / "run"
    if good:
        go(folder, steps=5)
    last = list_checkpoints(uninterrupted / "checkpoints")[-1]
    sizes = {path.name: path.stat().st_size for path in last.iterdir()}
    assert sizes["training.pt"] > 2 * sizes["model.safetensors"]
    message = message_with_small_files(folder, sizes[file] - 4000)
    where = folder / "checkpoints"
    assert message.startswith(f"{where}/step-{6 if good else 2} could not be")
    assert os.strerror(errno.EFBIG) in message
    name = f"{where}/step-5" if good else "none"
    assert f"The last good checkpoint is {name};" in message
    assert "--resume" in message and "\n" not in message
    kept = ["step-2", "step-4", "step-5"] if good else []
    assert sorted(os.listdir(where)) == kept
    assert_all_whole(folder)
    go(folder, resume=True)
    assert_same_run(folder, uninterrupted)


def save_with_small_files(folder, d_ff, report):
    """Try to save a checkpoint where files may have ever more bytes."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    model = tiny(d_ff=d_ff)
    optimizer = noam(model)
    train_step(ModelWithLoss(model), optimizer, a_batch())
    whole = save_checkpoint(folder, model, optimizer, {"step": 1}, {})
    size = (whole / "training.pt").stat().st_size
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    messages = []
    for limit in np.linspace(1000, size - 1000, 40, dtype=int).tolist():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
        try:
            save_checkpoint(folder, model, optimizer, {"step": 2}, {})
        except TrainingError as problem:
            messages.append(str(problem))
    report.send(messages)


@pytest.mark.parametrize("d_ff", [16, 2048])
def test_the_reason_is_the_disks(tmp_path, d_ff):
    """Wherever the disk is full, its words are told, not torch's."""
    ours, theirs = NURSERY.Pipe(duplex=False)
    assert at_once(save_with_small_files, tmp_path, d_ff, theirs) == 0
    messages = ours.recv()
    ours.close()
    theirs.close()
    assert len(messages) == 40
    assert all(os.strerror(errno.EFBIG) in message for message in messages)
    assert os.listdir(tmp_path) == ["step-1"]


def test_a_disk_that_is_full_when_a_line_is_written(tmp_path, uninterrupted):
    """The file, the reason and the advice; the torn line is repaired."""
    folder = tmp_path / "run"
    go(folder, steps=5, checkpoint_every=5)
    size = (folder / "metrics.jsonl").stat().st_size
    message = message_with_small_files(folder, size + 30, checkpoint_every=99)
    assert message.startswith(f"{folder}/metrics.jsonl")
    assert os.strerror(errno.EFBIG) in message and "--resume" in message
    go(folder, resume=True)
    assert_same_run(folder, uninterrupted)


def test_a_checkpoint_folder_that_cannot_be(tmp_path):
    """Is refused before the first update, not at the first checkpoint."""
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(FileExistsError, match="checkpoints"):
        go(tmp_path)
    assert not (tmp_path / "metrics.jsonl").exists()


def poisoned(model, monkeypatch, step):
    """A model that gets a weight without a value before an update."""
    real = training.seed_step

    def poison(seed, now, rank):
        if now == step:
            next(model.decoder.parameters()).data[0, 0] = math.nan
        real(seed, now, rank)

    monkeypatch.setattr(training, "seed_step", poison)
    return model


def test_a_loss_that_is_no_number_ends_the_run(tmp_path, monkeypatch):
    """With the batch to look at, and advice; the last checkpoint is good."""
    model = poisoned(tiny(), monkeypatch, step=4)
    with pytest.raises(TrainingError) as problem:
        go(tmp_path, model=model, log_every=1, validate_every=1)
    file = tmp_path / "bad-batch-5-rank-0.safetensors"
    message = str(problem.value)
    assert message.startswith("update 5: the loss is nan")
    assert str(file) in message and "factor" in message and "clip" in message
    wanted = Batches(PAIRS, 40, accumulate=2)[4]
    found = load_file(file)
    assert found.keys() == {"src.0", "tgt.0", "src.1", "tgt.1"}
    for i, part in enumerate(wanted):
        assert torch.equal(found[f"src.{i}"], part.src)
        assert torch.equal(found[f"tgt.{i}"], part.tgt)
    assert max(row["step"] for row in rows_of(tmp_path)) == 4  # strict JSON
    assert_all_whole(tmp_path)
    assert list_checkpoints(tmp_path / "checkpoints")[-1].name == "step-4"
    for tensor in weights_of(tmp_path).values():
        assert torch.isfinite(tensor).all()
    monkeypatch.undo()
    go(tmp_path, resume=True, log_every=1, validate_every=1)
    go(tmp_path / "whole", log_every=1, validate_every=1)
    assert_same_run(tmp_path, tmp_path / "whole")


def test_a_bad_batch_that_cannot_be_kept(tmp_path, monkeypatch):
    """What is wrong with the loss comes first."""
    (tmp_path / "bad-batch-1-rank-0.safetensors").mkdir()
    with pytest.raises(
        TrainingError, match=r"^update 1: the loss is nan"
    ) as no:
        go(tmp_path, model=poisoned(tiny(), monkeypatch, step=0))
    assert "could not be saved" in str(no.value)
    assert "factor" in str(no.value) and "\n" not in str(no.value)


def test_a_validation_that_is_no_number(tmp_path, monkeypatch):
    """Ends the run before the checkpoint, and blames no batch."""
    model = tiny()
    real = training.validate

    def worse(*args):
        next(model.decoder.parameters()).data[0, 0] = math.nan
        return real(*args)

    monkeypatch.setattr(training, "validate", worse)
    with pytest.raises(TrainingError, match=r"^update 4: .*validation is nan"):
        go(tmp_path, model=model)
    assert not list(tmp_path.glob("bad-batch*"))
    assert list_checkpoints(tmp_path / "checkpoints")[-1].name == "step-2"
    assert [row["step"] for row in rows_of(tmp_path)] == [3]


@pytest.mark.parametrize(
    ("validate_every", "shown"),
    [(1, r"^update 1: .*validation is"), (9, r"^update 2: the loss is")],
)
def test_a_run_that_explodes(tmp_path, validate_every, shown):
    """Wherever it shows, no line and no checkpoint is without numbers.

    The first update moves every weight by about 1e28, whatever the processor
    rounds; no product of two such numbers is finite in float32.
    """
    with pytest.raises(TrainingError, match=rf"{shown} (nan|inf).*factor"):
        go(
            tmp_path,
            factor=1e30,
            log_every=1,
            validate_every=validate_every,
            checkpoint_every=1,
        )
    rows_of(tmp_path)  # strict JSON
    for path in list_checkpoints(tmp_path / "checkpoints"):
        for tensor in load_file(path / "model.safetensors").values():
            assert torch.isfinite(tensor).all()


def failing(problem):
    """An update that does not succeed."""

    def train_step(*_):
        raise problem

    return train_step


def test_no_memory_left(tmp_path, monkeypatch):
    """The advice is to cut the batch into more parts."""
    problem = torch.OutOfMemoryError("CUDA out of memory")
    monkeypatch.setattr(training, "train_step", failing(problem))
    (first, _) = Batches(PAIRS, 40, accumulate=2)[0]
    with pytest.raises(TrainingError) as told:
        go(tmp_path)
    message = str(told.value)
    assert message.startswith("update 1: no memory left on cpu")
    assert str(tuple(first.tgt.shape)) in message
    assert "--resume" in message and "accumulate" in message


def test_lost_contact(tmp_path):
    """Only among several workers, and only if it looks like it."""
    gloo = RuntimeError("[../gloo/transport/tcp/pair.cc] Connection closed")
    nccl = torch.distributed.DistBackendError("NCCL error")
    other = RuntimeError("shapes do not fit")
    two = Worker(1, 2)
    for problem, worker, told in (
        (gloo, two, "update 8: worker 1 of 2 lost contact"),
        (nccl, two, "update 8: worker 1 of 2 lost contact"),
        (gloo, SINGLE, None),
        (other, two, None),
    ):
        with (
            pytest.raises(RuntimeError) as seen,
            training._explained(
                tmp_path, TrainState(step=7), a_batch(), worker
            ),
        ):
            raise problem
        if told:
            assert isinstance(seen.value, TrainingError)
            assert str(seen.value).startswith(told)
        else:
            assert seen.value is problem


def test_bugs_are_not_explained_away(tmp_path, monkeypatch):
    """What nobody expected comes through as it is."""
    monkeypatch.setattr(training, "train_step", failing(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        go(tmp_path)
