.DEFAULT_GOAL := help
SEEDS ?= 100000
.PHONY: help setup test test-fast test-slow test-full simulate demo lint types generate limits docs bench

help:  ## Explains the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## Installs everything into .venv and the cache (cheap when it is there)
	@scripts/setup

test:  ## Lint, types, layers, generated code and all tests but the slow and the long ones
	@scripts/test

test-fast:  ## What needs no Spark: two minutes
	@scripts/test --fast

test-slow:  ## The slow tests alone, which CI runs after the others
	@scripts/test --slow

test-full:  ## The slow and the long tests too, and both commands in a bare root (needs root)
	@scripts/test --full

simulate: setup  ## Clusters under random faults, on all cores: make simulate SEEDS=1000000
	@.venv/bin/python -m tests.simulation --seeds $(SEEDS)

demo:  ## The main job on real data: make demo ARGS="--days 30 --json"
	@scripts/demo $(ARGS)

lint: setup  ## Lint and formatting, and fixes what can be fixed automatically
	@.venv/bin/ruff check --fix .
	@.venv/bin/ruff format .
	@.venv/bin/lint-imports

types: setup  ## Types
	@.venv/bin/mypy

generate: setup  ## Generates the wire code and the diagrams, and builds the log store's jar
	@scripts/generate
	@scripts/generate-diagrams
	@jvm/build

limits: setup  ## Writes docs/limits.md, every bound of the code
	@scripts/generate-limits

docs: setup  ## The site of the documents, into build/site
	@scripts/docs

bench: setup  ## One benchmark, as JSON: make bench NAME=startup
	@.venv/bin/python -m benchmarks.$(NAME) --json
