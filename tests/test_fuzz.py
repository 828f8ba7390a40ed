"""A few hundred damaged inputs; ``make fuzz N=10000`` runs more of them."""

import os
import shutil
import subprocess
import sys

import pytest

from tests import fuzz
from tests.site import ROOT

SEED = int(os.environ.get("FUZZ_SEED", "2017"))
CASES = int(os.environ.get("FUZZ_CASES", "240"))
COMMANDS = {
    name: getattr(fuzz, name)
    for name in ("RESUME", "TRANSLATE", "DATA", "EVALUATE", "LINES", "OWN")
}


@pytest.fixture(scope="module")
def folder(one_thread, tmp_path_factory):
    """Where the runs are that cases damage copies of."""
    return fuzz.templates(tmp_path_factory.mktemp("fuzz"))


def a_copy(folder, kind, path):
    """A run that nothing has happened to yet."""
    return shutil.copytree(folder / kind, path / "case")


@pytest.mark.parametrize("kind", ["words", "pairs"])
@pytest.mark.parametrize("name", COMMANDS)
def test_without_damage_every_command_succeeds(folder, kind, name, tmp_path):
    """Else what is refused below would be refused for another reason."""
    run = a_copy(folder, kind, tmp_path)
    words = [word.replace("RUN", str(run)) for word in COMMANDS[name]]
    code, _, err = fuzz.call(*words)
    assert (code, err) == (0, "")


def test_whatever_the_damage_one_line_or_none(folder):
    """Exit code 0 or 2, in time, and nothing changed that was read."""
    said = []
    failures = fuzz.fuzz(folder, SEED, range(CASES), said.append)
    assert not failures, "\n".join(failures)
    print(*said)


@pytest.mark.parametrize("place", ["x", "..", "."])
def test_what_a_case_writes_stays_in_its_copy(
    folder, place, tmp_path, monkeypatch
):
    """A recipe may name any folder; ours must not be among them."""
    changes = fuzz.options([*fuzz.BASE, "kind=words"])
    case = (place, ("prepare", "copy", "--out", place, *changes), False)
    for name in ("file_case", "change_case"):
        monkeypatch.setattr(fuzz, name, lambda *_: case)
    monkeypatch.chdir(tmp_path)
    before = {path.name for path in folder.iterdir()} | {"case"}
    assert fuzz.run_case(folder, 0, 0)[1:] == (0, "")
    assert not any(tmp_path.iterdir())
    assert {path.name for path in folder.iterdir()} == before


def test_the_judge_sees_what_is_wrong():
    """A fuzzer that finds nothing must be able to find something."""
    same = {"config.toml": b"1"}
    fine = (fuzz.TRANSLATE, 2, "error: x\n", False, same, same)
    assert fuzz.judge(*fine) == ""
    for place, value in (
        (1, 3),
        (1, 0),
        (1, 1),
        (2, "Traceback (most recent call last)\n"),
        (2, ""),
        (2, "error: a\nb\n"),
        (2, f"error: {'x' * 3000}\n"),
        (5, {"config.toml": b"2"}),
        (5, {}),
    ):
        case = [*fine[:place], value, *fine[place + 1 :]]
        assert fuzz.judge(*case), (place, value)
    assert fuzz.judge(fuzz.TRANSLATE, 0, "", True, same, same)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("tokenizer.json", os.mkfifo, "tokenizer.json: expected a regular"),
        ("config.toml", os.mkdir, "no config.toml"),
        (
            "model.safetensors",
            lambda path: path.write_bytes(b"\xff" * 99),
            "model.safetensors: cannot be read",
        ),
    ],
)
def test_in_a_process_of_its_own(folder, tmp_path, name, damage, message):
    """One line there, too, and nothing from the interpreter's end."""
    run = a_copy(folder, "pairs", tmp_path)
    (run / name).unlink()
    damage(run / name)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "transformer_annotated", "translate"),
            *("--model", str(run), "a b"),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr and done.stderr.count("\n") == 1
