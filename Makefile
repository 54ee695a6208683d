# make demo   install into .venv and predict the multi-copy tutorial, with its plot and trace
# make test   install into .venv-test (with torch) and run the whole suite
# make prove-tables   compare the op tables of all examples and 200 fuzzed schedules with the recorded ones
# make prove-pairs    train every pair of features in 900 small plans, and write docs/pairs.md
# make prove-training   train all random plans of ten properties, of which the suite trains every sixth
# make prove-zero     shards of sizes that do not divide, against FSDP2, FSDP1 and autograd, on hundreds of plans
# make prove-mixtures   train 500 random plans with experts, and compare with torch's autograd
# make prove-engines  100,000 random programs on every engine and in exact fractions; goes on where it stopped; writes docs/engine_fuzz.md
# make bench   time everything, and write docs/performance.md
# make prove-paced  100,000 random sets of transfers on paced links, against the engine's times
# make prove-context  three kinds of context parallelism on four ranks over paced links: steps and their order
# make prove-experts  expert parallelism on four ranks over paced links: steps, and what two copies hide
# make prove-sizes    50 predictions: slots and memory against the estimates that come before them
# make test-install   simpar alone, at the lowest and the newest versions: the README, every example, an import (2 minutes)
# make prove-modules  modules of torch and transformers, trained, against their own autograd; writes docs/modules_proof.md
# make prove-planner  10,000 drawn plans: bounds below the engine's answer; 20 spaces: the winner of brute force
# make prove-planner-mixture  a mixture on 64 devices: gap of 10 % within 120 CPU seconds
# make prove-planner-rows  the planner's pick among published plans of one model, beside the fastest of them
# make prove-planner-measured  the planner's pick beside measured plans of three models on paced links; goes on where it stopped
# make prove-planner  10,000 drawn plans: bounds below the engine's answer; 20 spaces: brute force; writes docs/planner_proof.md
# make prove-recording  trainings in plain torch: steps predicted by what torch.profiler recorded; writes docs/recordings_proof.md
# make prove-huggingface  tiny models of transformers on 8 ranks, every pair of axes; writes docs/huggingface_proof.md
# make prove-by-hand  steps of the executor beside the same plans by hand in torch, 4 minutes a row; adds rounds; writes docs/by_hand_proof.md
# make prove-culprit  sabotage of simulated runs: which cause is named first; writes docs/diagnosis_proof.md
# make prove-culprit-runs  sabotage of real runs on 2 and 4 ranks; 10 minutes; goes on where it stopped; writes docs/diagnosis_runs.md
# make prove-cluster  two hosts in namespaces under torchrun, and hosts that fail (needs root)
# make prove-bench    calibrate two hosts in namespaces under torchrun, and hosts that fail (needs root)
# make prove-slurm    the same under Debian's Slurm; says what is missing (needs root)
# make prove-mpi      the same under Debian's Open MPI and MPICH; says what is missing (needs root)
# make prove-kept     checkpoints resharded, and a rank killed under torchrun; writes docs/training_proof.md
# make prove-virtual  virtual accelerators: figures of gloo, many orders, sabotage, 2,000 steps; writes docs/virtual_proof.md
# make prove-on-virtual  every test of numerics, trained on virtual accelerators, file by file (an hour or two; goes on where it was cut off)
# make prove-evidence  52 drawn schedules on paced and kernel-shaped links (root); 30 minutes; goes on where it stopped
# make prove-real     drawn schedules with real computation on two ranks, calibrated in the same run; an hour, alone
# make prove-gain     gains by `simpar measure` on paced links, predicted and measured; 15 minutes; goes on where it stopped; writes docs/gain_proof.md
# make prove-mutations  10,000 mutated inputs of every kind; writes docs/mutations_proof.md
# make prove-mistakes  make 149 mistakes, and write docs/mistakes.md (three minutes)
# make docs   build the docs site into out/site, strictly: links, anchors, pages that the navigation lacks
# make prove-docs  run every command and block of the docs; writes docs/commands.md
# make prove-browser  the page and the notebook in Chromium, sliders moved; writes screenshots of the docs
# make notebooks  execute the notebooks by Jupyter and keep their outputs
# make accuracy  predict every published step, and write the tables of docs/accuracy.md
# make prove-field  predict what practitioners reported, and write docs/field.md (20 CPU seconds)
# make prove-onoff  predict published pairs with an effect of overlap off and on, and write their table there
# make prove-left-out  fit the clock on one set of published steps, and score another set
# make prove-micro  predict products and collectives that were left out of tables, and write docs/micro.md
# make netns  prediction against measurement over shaped links (needs root or user namespaces)
PYTHON ?= python3

# Every target without a slash or a dot is a command, not a file.
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' $(MAKEFILE_LIST))
.PHONY: test-install docs prove-docs prove-browser demo test check prove-tables prove-pairs prove-training prove-zero prove-engines bench prove-paced prove-sizes prove-culprit prove-modules notebooks netns lab clean test-others test-waits test-alone prove-mixtures accuracy prove-context prove-recording prove-huggingface prove-experts

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

test-others:
	.venv-test/bin/python -m pytest --numprocesses $(PROCESSES) --dist worksteal -m 'not alone and not waits'

test-waits:
	.venv-test/bin/python -m pytest --quiet --no-header -m waits

test-alone:
	.venv-test/bin/python -m pytest -m alone

# In environments of its own: what a user gets of `pip install .`, at the lowest and the newest versions.
test-install:
	$(PYTHON) tests/fresh_install.py

check: .venv-test/installed
	.venv-test/bin/ruff check .
	.venv-test/bin/ruff format --check .
	.venv-test/bin/mypy

prove-tables: .venv-test/installed
	.venv-test/bin/python -m tests.op_tables compare

prove-pairs: .venv-test/installed
	.venv-test/bin/python -m tests.pairs

prove-training: .venv-test/installed
	SIMPAR_EVERY=1 .venv-test/bin/python -m pytest --numprocesses 2 tests/test_training_fuzz.py tests/test_recompute_numerics.py tests/test_numerics_pipeline.py tests/test_update_numerics.py \
		tests/test_graph_numerics.py tests/test_numerics_attention.py tests/test_numerics_fuzz.py \
		tests/test_optimizer_parallel_numerics.py tests/test_strategy_combined.py tests/test_strategy_numerics.py

accuracy: .venv-test/installed
	.venv-test/bin/python -m tests.accuracy_page

prove-field: .venv-test/installed
	.venv-test/bin/python -m tests.field_page --write

prove-onoff: .venv-test/installed
	.venv-test/bin/python -m tests.onoff_page

prove-left-out: .venv-test/installed
	.venv-test/bin/python -m tests.left_out_page

prove-micro: .venv-test/installed
	.venv-test/bin/python -m tests.micro_page

netns: .venv-test/installed
	cd tests && PYTHONPATH=..:. ../.venv-test/bin/python -m equipment.validation --net netns:500mbit --ranks 2
	cd tests && PYTHONPATH=..:. ../.venv-test/bin/python -m equipment.validation --net netns:500mbit --ranks 4

notebooks: .venv-test/installed
	.venv-test/bin/python -m pip install --quiet nbclient ipykernel
	.venv-test/bin/jupyter-execute --inplace notebooks/*.ipynb

prove-mistakes: .venv-test/installed
	.venv-test/bin/python -m tests.prove_mistakes --write

# A venv of its own: the suite needs none of it.
docs: .venv-docs/installed
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

prove-docs: .venv-test/installed
	cd tests && PYTHONPATH=..:. ../.venv-test/bin/python prove_docs.py $(DOCS)

# Needs Debian's chromium and chromium-driver; without them it says so and ends well.
prove-browser: .venv-docs/installed
	.venv-docs/bin/python -m pip install --quiet selenium jupyterlab ipywidgets numba pillow pandas
	.venv-docs/bin/python tests/prove_browser.py

# the name before
lab: netns

bench: .venv-test/installed
	.venv-test/bin/python -m benchmarks $(BENCH)

prove-zero: .venv-test/installed
	.venv-test/bin/python tests/prove_zero.py

prove-modules: .venv-test/installed
	.venv-test/bin/python tests/prove_modules.py

prove-huggingface: .venv-test/installed
	.venv-test/bin/python tests/prove_huggingface.py --write

prove-mixtures: .venv-test/installed
	.venv-test/bin/python tests/prove_mixtures.py

prove-engines: .venv-test/installed
	.venv-test/bin/python tests/prove_engines.py

prove-paced: .venv-test/installed
	.venv-test/bin/python tests/prove_paced.py

prove-sizes: .venv-test/installed
	.venv-test/bin/python tests/prove_sizes.py

prove-context: .venv-test/installed
	.venv-test/bin/python tests/prove_context.py

prove-virtual: .venv-test/installed
	PYTHONPATH=tests .venv-test/bin/python tests/prove_virtual.py --write

prove-on-virtual: .venv-test/installed
	.venv-test/bin/python tests/prove_on_virtual.py --write

prove-evidence: .venv-test/installed
	.venv-test/bin/python tests/prove_evidence.py --seed 2026 --folder out/evidence --write docs/evidence_proof.md

prove-real: .venv-test/installed
	.venv-test/bin/python tests/prove_real.py --seed 2027 --blocks 3 --favour-communication --folder out/real --write docs/real_proof.md

prove-gain: .venv-test/installed
	.venv-test/bin/python tests/prove_gain.py --seed 2028 --folder out/gain --write docs/gain_proof.md

prove-mutations: .venv-test/installed
	.venv-test/bin/python tests/prove_mutations.py --cases 10000 --seed 2026 --write docs/mutations_proof.md
prove-planner: .venv-test/installed
	.venv-test/bin/python -m tests.prove_planner --plans 10000 --spaces 20 --seed 1 --page docs/planner_proof.md

prove-planner-mixture: .venv-test/installed
	.venv-test/bin/python -m tests.prove_planner --gap examples/plans/qwen3_30b_64_h100.yaml

prove-planner-rows: .venv-test/installed
	.venv-test/bin/python -m tests.planner_regret

prove-planner-measured: .venv-test/installed
	.venv-test/bin/python -m tests.prove_planner_measured

prove-recording: .venv-test/installed
	.venv-test/bin/python tests/prove_recording.py

prove-by-hand: .venv-test/installed
	.venv-test/bin/python tests/prove_by_hand.py --write

prove-experts: .venv-test/installed
	.venv-test/bin/python tests/prove_experts.py

prove-cluster: .venv-test/installed
	.venv-test/bin/python -m tests.prove_cluster namespaces --write

prove-slurm: .venv-test/installed
	.venv-test/bin/python -m tests.prove_cluster slurm --write

prove-bench: .venv-test/installed
	.venv-test/bin/python -m tests.prove_bench --write

prove-mpi: .venv-test/installed
	.venv-test/bin/python -m tests.prove_cluster mpi --write

prove-kept: .venv-test/installed
	.venv-test/bin/python -m tests.prove_training --write

prove-culprit: .venv-test/installed
	.venv-test/bin/python tests/prove_culprit.py --draws 3 --seed 2026 --write

prove-culprit-runs: .venv-test/installed
	.venv-test/bin/python tests/prove_culprit_runs.py --seed 2040 --write docs/diagnosis_runs.md

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

clean:
	rm -rf .venv .venv-test .venv-docs out build dist
