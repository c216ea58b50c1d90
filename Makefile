# The same targets that CI calls. `make demo` and `make test` set the environment up by themselves.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
DATA ?=
OUT ?= out

.PHONY: setup demo fit test test-slow honesty lint docs docs-fresh docs-archive figures gallery outside conformance release-check bench bench-full bench-record clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "jaximpact needs Python 3.11 or newer: make PYTHON=python3.12 setup")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test,lint]'
	touch $@

demo: setup
	$(BIN)/python experiments/demo.py --out $(OUT)/demo

# restitution from bounces, of a synthetic file or of DATA=bounces.csv
fit: setup
	$(BIN)/python experiments/cases/measured_bounces.py $(if $(DATA),--data $(DATA)) --out $(OUT)/measured_bounces

test: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: setup
	JAX_DISABLE_MOST_OPTIMIZATIONS=0 $(BIN)/python -m pytest -m slow -n 2 --dist load

# a clean status implies a right result, over 2000 random systems, kinks, jumps and opposed gaps included
honesty: setup
	$(BIN)/python -m pytest -m slow tests/properties/test_honesty*.py -s

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy jaximpact

# one version everywhere, a valid citation, packages that install on each Python that is here, extras that resolve
release-check: setup
	$(BIN)/python .ci/release_check.py

# the manual, docs/_build/html/index.html; pages whose code or package has not changed keep their outputs; -a writes all
# of it, as a partial search index forgets the entries of the pages that it was not given
docs: setup
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	$(BIN)/python -m sphinx -a -W --keep-going -b html docs docs/_build/html

docs-fresh: setup
	rm -rf docs/_build docs/generated
	$(MAKE) docs

# wheel and sdist, and the built manual as a zip beside them, in dist/
docs-archive: docs
	$(BIN)/python -m pip install --quiet build
	$(BIN)/python -m build --outdir dist
	$(BIN)/python .ci/docs_archive.py dist

figures: setup
	$(BIN)/python experiments/cases/convergence.py --out $(OUT)/convergence
	$(BIN)/python experiments/cases/friction.py --out $(OUT)/friction
	$(BIN)/python experiments/cases/friction.py --out $(OUT)/friction --digits
	$(BIN)/python experiments/cases/tangents.py --out $(OUT)/tangents
	$(BIN)/python experiments/cases/bounce_to_target.py --out $(OUT)/bounce_to_target
	$(BIN)/python experiments/cases/bounces_by_gradient.py $(if $(DATA),--data $(DATA)) --out $(OUT)/bounces_by_gradient
	$(BIN)/python experiments/gallery/bifurcation_diagram.py --out $(OUT)/bifurcation_diagram
	$(BIN)/python experiments/gallery/basins_picture.py --out $(OUT)/basins_picture
	$(BIN)/python experiments/gallery/two_parameter_map.py --out $(OUT)/two_parameter_map
	$(BIN)/python experiments/gallery/periodic_orbits.py --out $(OUT)/periodic_orbits
	$(BIN)/python experiments/gallery/lyapunov_spectrum.py --out $(OUT)/lyapunov_spectrum

gallery: setup
	$(BIN)/python experiments/gallery/draw.py

# numbers that others published, beside ours
outside: setup
	$(BIN)/python experiments/outside/siconos_examples.py --out $(OUT)/outside
	$(BIN)/python experiments/outside/control_problems.py --out $(OUT)/outside
	$(BIN)/python experiments/outside/bounce_gradient.py --out $(OUT)/outside
	$(BIN)/python experiments/outside/tossed_cube.py --out $(OUT)/outside
	$(BIN)/python experiments/outside/conservative_orbits.py --out $(OUT)/outside
	$(BIN)/python experiments/outside/compiled_functions.py --out $(OUT)/outside
	$(BIN)/python experiments/outside/filters.py --out $(OUT)/outside
	$(BIN)/python experiments/outside/shooting.py --out $(OUT)/outside

conformance: setup
	$(BIN)/python -m pip install --quiet '.[peers]'
	$(BIN)/python experiments/conformance/run.py --page --out $(OUT)/conformance

bench bench-full bench-record: setup
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	$(BIN)/python experiments/benchmarks/run.py $(BENCH)

# PEERS="mjx=venv/bin/python brax=..." names the interpreters of other simulators that are not installed in $(VENV)
bench: BENCH = --out $(OUT)/benchmarks $(if $(PEERS),--python $(PEERS))
bench-full: BENCH = --full --out $(OUT)/benchmarks-full $(if $(PEERS),--python $(PEERS))
bench-record: BENCH = --out experiments/benchmarks/results $(if $(PEERS),--python $(PEERS))

clean:
	rm -rf $(VENV) $(OUT) docs/_build docs/generated .pytest_cache .ruff_cache .mypy_cache
