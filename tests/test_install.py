"""Installed anywhere: a wheel has models, results and recipes inside."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from tests.site import ROOT

OUTER = Path(torch.__file__).parents[1]  # where the libraries are
SITE_PACKAGES = "lib/python{}.{}/site-packages".format(*sys.version_info)
TRY = """
import json
import transformer_annotated
from transformer_annotated import Translator
from transformer_annotated.after.digits import load_digits
from transformer_annotated.workshop.files import load_result, paper_tables
from transformer_annotated.workshop.recipe import recipe_names
print(json.dumps([
    transformer_annotated.__file__,
    Translator.load("tatoeba-de-en").translate("Ich liebe Bücher."),
    load_result("beam")["model"],
    paper_tables()["table2"][0]["model"],
    len(load_digits()[0]),
    recipe_names(),
]))
"""


def run(*command, **settings):
    """What a command prints; it must succeed, and cannot reach the network."""
    environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        list(map(str, command)),
        env=environment | {k: str(v) for k, v in settings.items()},
        cwd=ROOT.anchor,  # a folder that is not the project's
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(python, wheel, *options, **settings):
    """Install the wheel, and borrow the libraries that are here."""
    run(
        *(python, "-m", "pip", "install", "--no-index", "--no-deps"),
        *("--ignore-installed", *options, wheel),
        **settings,
    )


def works(python, site_packages, **settings):
    """All that was shipped is found there, from a folder far away."""
    where, said, *data, recipes = json.loads(run(python, "-c", TRY, **settings))
    assert Path(where).is_relative_to(site_packages)
    assert said == "I love books."
    assert data == ["tatoeba-de-en", "ByteNet", 1797]
    shipped = (ROOT / "transformer_annotated" / "recipes").glob("*.toml")
    assert recipes == sorted(path.stem for path in shipped)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built once, from a copy of what is needed."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("transformer_annotated", "models", "results", "book/paper"):
        shutil.copytree(ROOT / name, folder / "project" / name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "project")
    run(
        *(sys.executable, "-m", "pip", "wheel", "--no-index", "--no-deps"),
        *("--no-build-isolation", "-w", folder, folder / "project"),
    )
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def venv(tmp_path_factory, wheel):
    """A fresh environment with the wheel, and the libraries from outside."""
    folder = tmp_path_factory.mktemp("venv") / "with a space"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    site_packages = folder / SITE_PACKAGES
    (site_packages / "outer.pth").write_text(f"{OUTER}\n")
    install(folder / "bin/python", wheel)
    return folder


def test_the_wheel_leaves_nothing_out(wheel):
    """Every module, recipe, model and result, but no raw outputs."""
    names = set(zipfile.ZipFile(wheel).namelist())
    listed = subprocess.check_output(
        ["git", "ls-files", "-z", "transformer_annotated", "models", "results"],
        cwd=ROOT,
        text=True,
    ).split("\0")
    package = "transformer_annotated/"
    wanted = {
        package + name.removeprefix(package)
        for name in listed
        if name and not re.search(r"^results/.*[.](xz|gz)$", name)
    }
    wanted.add(f"{package}book/paper/tables.json")
    assert {name for name in names if name.startswith(package)} == wanted


def test_in_a_fresh_environment(venv):
    """Modules, data and the command, on a path with a space."""
    works(venv / "bin/python", venv)
    command = ("translate", "--model", "tatoeba-de-en", "Ich liebe Bücher.")
    said = run(venv / "bin/transformer-annotated", *command)
    assert said == "I love books.\n"


def test_with_a_read_only_environment(venv):
    """Nothing is written beside the package, even by those who could."""
    folder = venv / SITE_PACKAGES / "transformer_annotated"

    def files():
        return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}

    before = files()
    for path in (*before, folder):
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        works(venv / "bin/python", venv)
        assert files() == before
    finally:
        for path in (*before, folder):
            path.chmod(path.stat().st_mode | 0o200)


def test_for_one_user_alone(tmp_path, wheel):
    """``pip install --user``, with the interpreter of the system."""
    home = {"PYTHONUSERBASE": tmp_path}
    python = getattr(sys, "_base_executable", sys.executable)
    install(
        *(python, wheel, "--user", "--break-system-packages"),
        **home,
        PYTHONPATH=OUTER,
    )
    (tmp_path / SITE_PACKAGES / "outer.pth").write_text(f"{OUTER}\n")
    works(python, tmp_path, **home)
