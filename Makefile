# Usage: make demo [BACKENDS="torch jax tensorflow"] | make test [ARGS="..."] | make bench [ARGS="..."]
#        make lint | make clean
#
# Everything is installed into .venv by plain pip, as this machine has it configured, at the versions of constraints.txt.
# torch: pip takes the build its index offers. Where that is the CUDA build and you want the CPU one, point pip at PyTorch's
# CPU index first (its installation page says how).

PYTHON ?= python3
BACKENDS ?= jax
DEVICES ?= 2
# Where tensorflow-cpu has no wheel: make test TENSORFLOW=tensorflow
TENSORFLOW ?= tensorflow-cpu
ARGS ?=

VENV := .venv
VENV_PYTHON := $(VENV)/bin/python

EXTRAS_torch := torch,examples
EXTRAS_jax := jax,examples
EXTRAS_tensorflow := $(TENSORFLOW),examples
EXTRAS_bench := torch,jax,$(TENSORFLOW),bench
EXTRAS_lint := lint
EXTRAS_test := torch,jax,$(TENSORFLOW),test

.PHONY: demo test bench lint clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

demo: $(BACKENDS:%=$(VENV)/installed-%)
	@$(VENV_PYTHON) examples/demo.py --devices $(DEVICES) $(BACKENDS)

test: $(VENV)/installed-test
	@$(VENV_PYTHON) tests/run.py $(ARGS)

bench: $(VENV)/installed-bench
	@$(VENV_PYTHON) -m benchmarks $(ARGS)

lint: $(VENV)/installed-lint
	@$(VENV_PYTHON) tests/run.py --lint-only

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find unifit backends tests examples -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/created:
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info[:2] < (3, 14) else \
	"unifit needs Python 3.11, 3.12 or 3.13, and this is " + sys.version.split()[0] + ". Name one: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# One stamp per set of extras: pip runs again only when what it would read has changed.
$(VENV)/installed-%: pyproject.toml constraints.txt | $(VENV)/created
	@echo "Installing unifit[$(EXTRAS_$*)] into $(VENV) ..."
	@$(VENV_PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS_$*)]"
	@touch $@
