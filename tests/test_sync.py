"""Notebooks and package agree, notebooks are clean, one address everywhere."""

import ast
import filecmp
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import transformer_annotated
from tests.site import ROOT

PACKAGE = ROOT / "transformer_annotated"
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
EACH_NOTEBOOK = pytest.mark.parametrize(
    "path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS]
)
ADDRESS = yaml.safe_load((ROOT / "_config.yml").read_text())["repository"][
    "url"
]


@pytest.fixture
def copy(tmp_path):
    """The notebooks in a project that has nothing exported yet."""
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    for written in [*PACKAGE.rglob("__init__.py"), PACKAGE / "__main__.py"]:
        place = tmp_path / written.relative_to(ROOT)
        place.parent.mkdir(exist_ok=True)
        shutil.copy(written, place)
    return tmp_path


def modules(folder):
    """The package's files below a folder."""
    package = folder / PACKAGE.name
    return {path.relative_to(package) for path in package.rglob("*.py")}


def code_cells(path):
    """The sources of a notebook's code cells."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]


def test_package_is_what_the_notebooks_export(copy):
    """No generated module was edited by hand, none is missing or left over."""
    export = [sys.executable, ROOT / "book/export.py"]
    subprocess.run(export, cwd=copy, check=True)
    assert modules(copy) == modules(ROOT)
    _, mismatch, errors = filecmp.cmpfiles(
        copy / PACKAGE.name, PACKAGE, modules(ROOT), shallow=False
    )
    assert not mismatch and not errors, "run `make sync`"


def test_notebooks_are_clean(copy):
    """No outputs, counts or stray metadata: nbdev-clean changes nothing."""
    program = Path(sys.executable).with_name("nbdev-clean")
    subprocess.run([program], cwd=copy, check=True)
    for path in NOTEBOOKS:
        cleaned = (copy / path.relative_to(ROOT)).read_bytes()
        assert cleaned == path.read_bytes(), f"{path.name}: run `make sync`"


@EACH_NOTEBOOK
def test_first_cell_installs_the_package(path):
    """On Colab, where the package is missing, the first cell installs it."""
    first = json.loads(path.read_text(encoding="utf-8"))["cells"][0]
    source = "".join(first["source"])
    assert first["cell_type"] == "code" and source.startswith("#| hide\n")
    assert f"%pip install -q git+{ADDRESS}\n" in source + "\n"


@EACH_NOTEBOOK
def test_code_fits_the_page(path):
    """Lines of code have at most 80 columns; directives are not shown."""
    for source in code_cells(path):
        for line in source.splitlines():
            assert len(line) <= 80 or line.startswith("#|"), line


def test_one_address_everywhere():
    """Every file that names the repository names the one of _config.yml."""
    for name in ("README.md", "CITATION.cff", "pyproject.toml"):
        assert ADDRESS in (ROOT / name).read_text(encoding="utf-8"), name
    listing = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True)
    pattern = re.compile(r"https://github\.com/[\w-]+/transformer_annotated")
    for name in listing.splitlines():
        text = (ROOT / name).read_text(encoding="utf-8", errors="ignore")
        assert set(pattern.findall(text)) <= {ADDRESS}, name


def test_citation_has_the_version_of_the_package():
    """CITATION.cff, the BibTeX entry and the package give one version."""
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    bibtex = (ROOT / "book" / "citation.bib").read_text(encoding="utf-8")
    bibtex = " ".join(bibtex.split())
    assert cff["version"] == transformer_annotated.__version__
    assert f"version = {{{cff['version']}}}" in bibtex
    assert f"title = {{{cff['title']}}}" in bibtex
    assert f"year = {{{cff['date-released'].year}}}" in bibtex


@EACH_NOTEBOOK
def test_what_is_drawn_is_shown(path):
    """A table or chart is the last line of its cell, or nobody sees it."""
    drawn = ("show_table", "heatmap", "line_chart", "Markdown")
    for source in code_cells(path):
        plain = re.sub(r"^(\s*)[%!].*", r"\1pass", source, flags=re.M)
        *before, _ = ast.parse(plain).body or [None]
        for statement in before:
            if isinstance(statement, ast.Expr):
                assert not ast.unparse(statement).startswith(drawn), source


@pytest.mark.parametrize("page", ["README.md", "book/index.md"])
def test_examples_run(page):
    """The examples of README and front page run; shapes are as they say."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (code,) = re.findall(
        r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL
    )
    names = {}
    exec(code, names)
    for line in code.splitlines():
        if ".shape" in line:
            expression, _, shape = line.partition("#")
            assert eval(expression, names) == ast.literal_eval(shape.strip())


def test_every_module_has_its_place_in_the_reference():
    """The API page and the page of tests leave nothing out."""
    api = (ROOT / "book" / "api.md").read_text(encoding="utf-8")
    for path in PACKAGE.rglob("[!_]*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        assert f"automodule:: {name}\n" in api
    tests = (ROOT / "book" / "tests.md").read_text(encoding="utf-8")
    for path in (ROOT / "tests").rglob("test_*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        assert f"automodule:: {name}\n" in tests
