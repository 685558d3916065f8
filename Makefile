# The two commands: `make demo` and `make test`. Both install what is missing (apt) and build.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

export CARGO_TERM_COLOR ?= auto
BINARIES := chancery key-service sealer registry storage-node inference-node
PACKAGES := $(foreach name,$(BINARIES),-p $(name))

.PHONY: help
help: ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: setup
setup: ## Install what a fresh Debian lacks: a C compiler and Postgres
	@deploy/setup.sh

.PHONY: build
build: setup ## Build the command and the five services
	cargo build --locked $(PACKAGES)

.PHONY: demo
demo: build ## Seal, store, unlock and run the model that this repository ships, on loopback
	deploy/demo.sh target/debug

.PHONY: test
test: setup lint docs ## Everything that continuous integration runs
	cargo build --locked --workspace --bins --tests
	@if cargo nextest --version >/dev/null 2>&1; then \
	  cargo nextest run --locked --workspace --profile ci; \
	else \
	  cargo test --locked --workspace --all-targets; \
	fi

.PHONY: lint
lint: setup ## Formatting and clippy, warnings as errors
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

.PHONY: docs
docs: ## The API documentation, broken links as errors
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --quiet

.PHONY: bench
bench: ## Every benchmark beside its baseline
	cargo build --locked --release $(PACKAGES)
	cargo bench --locked --workspace

.PHONY: interop
interop: build ## Open what we wrote with the reference packages from PyPI, in a virtual environment
	deploy/interop.sh target/debug
