# Every target does all the set-up it needs, in .venv.
PYTHON ?= $(or $(shell command -v python3.11),python3)
PORT   ?= 8000
BIN    := .venv/bin
SITE   := _build/html
START  := $(shell date +%s)
EXPORT := transformer_annotated/_modidx.py
STEP    = @printf '\n\033[1m==> %s\033[0m\n'
BUILD   = $(BIN)/jupyter-book build . --toc book/_toc.yml -q -W -n --keep-going
PIP     = $(BIN)/pip install -q --disable-pip-version-check

# Notebooks and tests run side by side, so each takes one core.
export OMP_NUM_THREADS := 1

.PHONY: book test test-anywhere crash fuzz serve pdf bench sync address browser clean

# Sphinx does not repeat the warnings of a build that failed, unless it forgets it.
book: .venv/ready $(EXPORT)  ## Export the notebooks, run them, build the website.
	$(STEP) "Running the notebooks and building the pages (only what changed)"
	@$(BUILD) || (rm -rf _build/.doctrees; exit 1)
	@printf '\nBuilt in %s s. Open %s\n' "$$(($$(date +%s) - $(START)))" "file://$(CURDIR)/$(SITE)/index.html"

test: .venv/ready browser  ## Check everything.
	$(STEP) "Checking the style of notebooks, package and tests"
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(STEP) "Testing the package, the ledger, and that notebooks and package agree"
	$(BIN)/pytest -q -n 2 -m "not site"
	$(STEP) "Testing what computes as on an older processor, in another order"
	$(BIN)/python tests/anywhere.py --one
	$(STEP) "Running the notebooks and building the pages, all of them"
	$(BUILD) --all
	$(STEP) "Opening every page in a real browser"
	$(BIN)/pytest -q -n 2 -m site

test-anywhere: .venv/ready  ## Test as on other machines (ten minutes): instructions, threads, order, folders.
	$(BIN)/python tests/anywhere.py
	$(STEP) "What notebooks print here (-) and as on an older processor (+)"
	$(BIN)/python tests/outputs.py

crash: N ?= 100
crash: .venv/ready  ## Kill runs at random moments: make crash N=100 (ten minutes).
	CRASH_KILLS=$(N) $(BIN)/pytest -q -s tests/test_crash.py

fuzz: N ?= 1000
fuzz: .venv/ready  ## Damage N=1000 inputs in N ways; the seed is printed.
	$(BIN)/python -m tests.fuzz -n $(N)

serve: book  ## Open the website on localhost.
	$(STEP) "http://localhost:$(PORT) (Ctrl-C stops it)"
	@(sleep 1; $(BIN)/python -m webbrowser -t http://localhost:$(PORT) >/dev/null) &
	$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory $(SITE)

pdf: book browser  ## Print the whole book into one PDF.
	$(STEP) "Printing every page of the site"
	$(BIN)/python book/pdf.py

bench: export OMP_NUM_THREADS := 2
bench: .venv/ready  ## Measure speed side by side with others (quarter of an hour).
	@$(PIP) -r benchmarks/requirements.txt
	$(BIN)/python -m benchmarks.training --size tiny
	$(BIN)/python -m benchmarks.training --size base --rounds 2
	$(BIN)/python -m benchmarks.recipe
	$(BIN)/python -m benchmarks.decoding --size tiny
	$(BIN)/python -m benchmarks.decoding --size base
	$(BIN)/python -m benchmarks.first
	$(BIN)/python -m benchmarks.loss
	$(BIN)/python -m benchmarks.corpus
	$(BIN)/python -m benchmarks.padding
	$(BIN)/python -m benchmarks.longer

sync: .venv/ready  ## After editing a notebook: strip its outputs, export it, tidy the code.
	$(BIN)/nbdev-clean
	$(BIN)/python book/export.py
	$(BIN)/python book/readme_picture.py
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

address: .venv/ready  ## Move the project: make address URL=https://github.com/you/your-fork
	@$(BIN)/python book/address.py "$(URL)"

clean:  ## Remove everything that was built or installed here.
	rm -rf .venv _build build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11, 3.12 or 3.13 is needed; point to one: make PYTHON=/path/to/python3.11" if not (3, 11) <= sys.version_info < (3, 14) else 0)'
	$(STEP) "Installing the requirements in .venv (about three minutes, once)"
	@$(PYTHON) -m venv .venv
	@$(PIP) -r requirements.txt -e .
	@touch $@

# nbdev writes this file last; modules keep their age when nothing changed.
$(EXPORT): .venv/ready $(wildcard notebooks/*.ipynb notebooks/*/*.ipynb transformer_annotated/[!_]*.py transformer_annotated/*/[!_]*.py)
	$(STEP) "Exporting the notebooks to the package"
	@$(BIN)/python book/export.py

# The browser tests take any Chromium or Chrome that is installed.
browser: .venv/ready
	@if $(BIN)/python tests/browser.py; then exit 0; fi; \
	printf '\n\033[1m==> Installing a browser\033[0m\n'; \
	root=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	if command -v apt-get >/dev/null && $$root apt-get update && $$root apt-get install -y chromium; \
	then $(BIN)/python tests/browser.py; else $(BIN)/playwright install --with-deps chromium; fi
