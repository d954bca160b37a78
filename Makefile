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
SITE := _build/html/index.html

# Two chapters or two test files run side by side, one thread each.
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest
# The site's tests need the site; the exercises are checked as a reader meets them.
APART := --ignore tests/test_site.py --ignore tests/exercises
SHAPES := --jaxtyping-packages=transformer,beartype.beartype
# Which test runs which branch: all of them, or it fails; `mutants` goes by it, too.
COVER := --cov --cov-branch --cov-context=test --cov-report= -o junit_family=xunit1
SECONDS_OF_MUTANTS ?= 45
NBVAL := --nbval --nbval-sanitize-with tests/nbval_sanitize.cfg --nbval-cell-timeout=600
SPHINX := $(BIN)/jupyter-book build . --builder html -W --keep-going -n

.DEFAULT_GOAL := help
.PHONY: help book site test lint units mutants sample chapters browser lab sync weights bench clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*  ## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

book: sync  ## run the chapters that changed (FRESH=1: all), render the book, say where it is
	@$(MAKE) --no-print-directory site
	@echo "The book is at $(SITE)"

test: $(INSTALLED)  ## install what is missing and check everything
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory units
	@$(MAKE) --no-print-directory chapters
	@$(MAKE) --no-print-directory --jobs 2 sample site  # each keeps one core busy
	@$(MAKE) --no-print-directory browser

lint: $(INSTALLED)  ## style, types, and that book, modules and notebooks agree
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(PY) tools/tangle.py --check
	$(PY) tools/notebooks.py check

units: $(INSTALLED)  ## the package's tests, every shape checked, every branch reached
	@rm -f .coverage .mutants/units-*.xml
	$(PYTEST) tests $(APART) -n 2 --dist loadfile -m "not plain" $(SHAPES) $(COVER) --junitxml=.mutants/units-shapes.xml
	$(PYTEST) tests $(APART) -n 2 --dist loadfile -m plain $(COVER) --cov-append --junitxml=.mutants/units-plain.xml
	$(PYTEST) tests/exercises -n 2
ifneq ($(OS),Windows_NT)  # where some tests cannot run
	$(BIN)/coverage report --fail-under=100 --show-missing --skip-covered
endif

ifneq ($(OS),Windows_NT)
mutants: $(INSTALLED)  ## break the package in every small way (hours; goes on where it was stopped)
	@test -f .coverage || $(MAKE) --no-print-directory units
	OMP_NUM_THREADS=1 $(PY) tools/mutants.py run --jobs 2
	OMP_NUM_THREADS=1 $(PY) tools/mutants.py claims
	$(PY) tools/mutants.py report

sample: $(INSTALLED)  ## some of those, drawn by the commit, for a minute; after `units`
	OMP_NUM_THREADS=1 $(PY) tools/mutants.py run --sample $(SECONDS_OF_MUTANTS)
else
sample:
endif

chapters: $(INSTALLED)  ## run every chapter again; compare all it prints with what is stored
	$(PYTEST) book/notebooks -n 2 --dist loadscope $(NBVAL)

site: $(INSTALLED)
	rm -rf _build
	$(PY) tools/notebooks.py seed
	$(SPHINX)

browser: $(INSTALLED)  ## read the rendered book in a real browser
	$(PY) tools/browser.py
	$(PYTEST) tests/test_site.py -n 2

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
	rm -rf _build build $(VENV) .coverage .mutants .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info

$(INSTALLED): pyproject.toml $(CONSTRAINTS)
	@echo "Installing into $(VENV): a few minutes the first time."
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --upgrade $(TORCH)
	@echo "torch is in; now the rest."
	$(PY) -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS) --editable ".[train,book,dev]"
	@$(PY) -c "import pathlib; pathlib.Path('$(INSTALLED)').touch()"
