# The Tested Transformer: `make` lists what can be made.

PYTHON ?= python3
VENV ?= .venv
# Which torch to install, before anything else can ask for another.
TORCH ?= torch==2.13.0
CONSTRAINTS ?= constraints.txt

ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif
PY := $(BIN)/python
INSTALLED := $(VENV)/.installed
PIP := $(PY) -m pip install --quiet --disable-pip-version-check --no-compile
SITE := _build/html/index.html

# Two chapters or two test files run side by side, one thread each. What they free they
# keep: glibc would give the memory back, and fetch the same pages again at each step.
ALONE := OMP_NUM_THREADS=1 MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184 \
	MALLOC_TOP_PAD_=67108864
PYTEST := $(ALONE) $(PY) -m pytest -p no:nbval
# The site's tests need the site; exercises are checked as readers meet them, plain.
BUILT := --ignore tests/test_site.py
APART := $(BUILT) --ignore tests/exercises
SHAPES := --jaxtyping-packages=transformer,beartype.beartype
COVER := --cov --cov-branch --cov-report=
NBVAL := --nbval --nbval-sanitize-with tests/nbval_sanitize.cfg --nbval-cell-timeout=600
SPHINX := $(BIN)/jupyter-book build . --builder html -W --keep-going -n

# Compiled modules are kept: what runs here starts hundreds of Pythons.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help book pdf site test quick lint units coverage mutants nulls seeds chapters browser chromium lab sync weights bench clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*  ## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

book: sync  ## run the chapters that changed (FRESH=1: all), render the book, say where it is
	@$(MAKE) --no-print-directory site
	@echo "The book is at $(SITE)"

pdf: book chromium  ## the whole book as one PDF with bookmarks
	$(PY) tools/pdf.py

# Linting and building the site keep one core busy each; the other parts share two.
test: $(INSTALLED)  ## install what is missing and check everything
	@$(MAKE) --no-print-directory -j 2 lint site
	@$(MAKE) --no-print-directory units
	@$(MAKE) --no-print-directory chapters
	@$(MAKE) --no-print-directory browser

quick: $(INSTALLED)  ## lint, and the tests that the change touches: within a minute
	@$(MAKE) --no-print-directory lint
	OMP_NUM_THREADS=1 $(PY) tools/quick.py

lint: $(INSTALLED)  ## style, types, and that book, modules and notebooks agree
	@$(BIN)/ruff check || { echo 'F821 in a shape? One dimension alone begins with a space: Float[Tensor, " rows"]'; exit 1; }
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(PY) tools/tangle.py --check
	$(PY) tools/notebooks.py check

units: $(INSTALLED) chromium  ## the package's tests, every shape checked
	$(PYTEST) tests $(APART) -n 2 --dist loadfile -m "not plain and not nightly" $(SHAPES)
	$(PYTEST) tests $(BUILT) -n 2 --dist loadfile -m "plain and not nightly"

coverage: $(INSTALLED) chromium  ## which branches those tests reach
	@rm -f .coverage
	$(PYTEST) tests $(APART) -n 2 --dist loadfile -m "not plain" $(SHAPES) $(COVER)
	$(PYTEST) tests $(APART) -n 2 --dist loadfile -m plain $(COVER) --cov-append
	$(BIN)/coverage report --skip-covered

ifneq ($(OS),Windows_NT)
mutants: $(INSTALLED) chromium  ## do tests notice small breaks? hours; less with ONLY='transformer.masks*'
	OMP_NUM_THREADS=1 $(BIN)/mutmut run --max-children 2 $(if $(ONLY),'$(ONLY)')
	$(BIN)/mutmut export-cicd-stats
	$(PY) tools/mutants.py

nulls: $(INSTALLED)  ## does each claim fail for its null? a quarter of an hour; ONLY=05: one chapter
	OMP_NUM_THREADS=1 $(PY) tools/nulls.py $(ONLY)

seeds: $(INSTALLED)  ## which claims do not hold from other seeds? SHIFT=2000, ONLY=05
	OMP_NUM_THREADS=1 $(PY) tools/nulls.py $(ONLY) --seeds $(or $(SHIFT),1000)
endif

chapters: $(INSTALLED)  ## run every chapter again; compare all it prints with what is stored
	$(ALONE) $(PY) -m pytest book/notebooks -n 2 --dist loadscope $(NBVAL)

site: $(INSTALLED)
	rm -rf _build
	$(PY) tools/notebooks.py seed
	$(SPHINX)

browser: $(INSTALLED) chromium  ## read the rendered book in a real browser
	$(PYTEST) tests/test_site.py -n 2

# The browser that pages are read in, and the live model tried in. Only where CI=true is
# a system package installed.
chromium: $(INSTALLED)
	$(PY) tools/browser.py

lab: $(INSTALLED)  ## open the chapters in JupyterLab (LAB=--allow-root: as root)
	$(BIN)/jupyter trust book/notebooks/*.ipynb
	$(BIN)/jupyter lab --notebook-dir=book/notebooks $(LAB)

sync: $(INSTALLED)  ## make the modules from the chapters; run the chapters that changed
	$(PY) tools/tangle.py
	$(PY) tools/notebooks.py write $(if $(FRESH),--all)

weights: $(INSTALLED)  ## train the phrasebook translator that ships with the package
	$(PY) -m transformer train-phrasebook --out transformer/weights/phrasebook.safetensors

bench: $(INSTALLED)  ## race against other libraries: hours, on a quiet machine
	$(PY) benchmarks/bench.py $(if $(QUICK),--quick)

clean:  ## remove all that was made, the virtual environment included
	rm -rf _build build $(VENV) .coverage mutants .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info

# Nothing is compiled in advance: most of what is installed is never imported.
$(INSTALLED): pyproject.toml $(CONSTRAINTS)
	@echo "Installing into $(VENV): a few minutes the first time."
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade $(TORCH)
	@echo "torch is in; now the rest."
	$(PIP) --constraint $(CONSTRAINTS) --editable ".[train,book,dev]"
	@$(PY) -c "import pathlib; pathlib.Path('$(INSTALLED)').touch()"
