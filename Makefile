# make demo           install into .venv and predict the multi-copy tutorial, with its plot and trace
# make test           install into .venv-test (with torch) and run the whole suite
# make check          the linter, its formatter, and types
# make test-install   simpar alone, at the lowest and the newest versions: the README, examples, an import (2 minutes)
# make docs           build the docs site into out/site, strictly: links, anchors, pages that the navigation lacks
# make field          import the recorded settings of public files, and print how many come in clean, by launcher
# make notebooks      execute the notebooks by Jupyter and keep their outputs
# make bench          time everything, and write docs/proofs/performance.md
# make prove          list what proves a claim and takes longer than the suite may; make prove NAME=gain runs one
# make gpu            on a machine with accelerators: numerics, predicted steps, a profile; 8 minutes, of two devices 15
# make clean          remove what the others made
PYTHON ?= python3

# Every target without a slash or a dot is a command, not a file.
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' $(MAKEFILE_LIST)) accuracy netns

demo: .venv/installed
	.venv/bin/simpar run examples/multi_copy.yaml --plot out/multi_copy.png --trace out/multi_copy

# Modules that are compiled once, not by every process that a test starts.
export PYTHONDONTWRITEBYTECODE =

# Tests that measure time within wide bounds sleep most of it, beside all others; those that measure closely come last.
test: .venv-test/installed
	@$(MAKE) --no-print-directory --jobs 3 --keep-going check test-waits test-others
	@$(MAKE) --no-print-directory test-alone

# As many as there are cores, but no more than four: each holds torch and the compiled engines.
PROCESSES ?= $(shell cores=$$(nproc 2>/dev/null || echo 2); [ $$cores -gt 4 ] && cores=4; [ $$cores -lt 2 ] && cores=2; echo $$cores)

# Before several processes need it at once, each of which would compile the engine for 20 seconds.
warm: .venv-test/installed
	.venv-test/bin/simpar warmup

test-others: warm
	.venv-test/bin/python -m pytest --numprocesses $(PROCESSES) --dist worksteal -m 'not alone and not waits'

test-waits: warm
	.venv-test/bin/python -m pytest --quiet --no-header -m waits

test-alone:
	.venv-test/bin/python -m pytest -m alone

# In environments of its own: what a user gets of `pip install .`, at the lowest and the newest versions.
test-install:
	$(PYTHON) tests/fresh_install.py

check: .venv-test/installed
	.venv-test/bin/ruff check .
	.venv-test/bin/ruff format --check .
# The last numpy of Python 3.10 has other types.
	@if .venv-test/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then .venv-test/bin/mypy; \
	else echo 'mypy: not run, for Python 3.10 has no numpy of the types that are checked'; fi
	.venv-test/bin/python -m tests.code_lines

# One table, tests/proofs.csv, says what each runs; `make prove-NAME` is the same.
prove: .venv-test/installed
	@PATH="$(CURDIR)/.venv-test/bin:$$PATH" .venv-test/bin/python -m tests.prove $(NAME) $(WORDS)

prove-%:
	@$(MAKE) --no-print-directory prove NAME=$*

field: .venv-test/installed
	.venv-test/bin/python -m tests.field_score

accuracy netns:
	@$(MAKE) --no-print-directory prove NAME=$@

prove-browser: .venv-docs/installed
	@$(MAKE) --no-print-directory prove NAME=browser

notebooks: .venv-test/installed
	.venv-test/bin/python -m pip install --quiet nbclient ipykernel
	.venv-test/bin/jupyter-execute --inplace notebooks/*.ipynb

# A venv of its own: the suite needs none of it.
docs: .venv-docs/installed
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict
	.venv-docs/bin/python -m tests.docs_size

bench: .venv-test/installed
	.venv-test/bin/python -m benchmarks $(BENCH)

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet .
	touch $@

.venv-test/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-test
# Of 15,000 modules the tests import few, and keep those compiled: pip would take a minute to compile all.
	.venv-test/bin/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[torch,test]'
	touch $@

.venv-docs/installed: pyproject.toml
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --editable '.[docs]'
	touch $@

# Rehearsed by GPU='--device virtual --size tiny'.
gpu: .venv-test/installed
	.venv-test/bin/python -m executor.gpu_check $(GPU)

clean:
	rm -rf .venv .venv-test .venv-docs out build dist
