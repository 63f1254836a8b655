# Hutong. `make demo` shows it, `make test` tests it; both set up everything they need.
SHELL := /bin/bash
PY := .venv/bin/python
.DEFAULT_GOAL := help
.PHONY: help setup demo test check unit audit test-gpu bench-demo bench-callbacks chaos load soak \
	escape deploy upgrade rollback test-compose train-fixture eval-fixture train-demo eval-demo eval-tools

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup:  ## make or repair .venv with all that running needs
	@rm -f .venv/.runtime
	@$(MAKE) --no-print-directory .venv/.runtime

.venv/.runtime: requirements.txt requirements-gpu.txt deploy/requirements-gateway.txt deploy/setup.sh
	@deploy/setup.sh requirements.txt
	@touch $@

.venv/.dev: requirements-dev.txt .venv/.runtime
	@deploy/setup.sh requirements-dev.txt
	@touch $@

demo: .venv/.runtime  ## the whole product on this machine, with a simulated WeCom
	@$(PY) -m app demo

test: .venv/.dev check unit  ## every check and test that needs no GPU

check: .venv/.dev  ## lint, types, import rules
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-cache

unit: .venv/.dev  ## the tests alone
	$(PY) -m pytest -q -m "not gpu"

audit: .venv/.dev  ## known vulnerabilities and var/sbom.cdx.json; Error 3 when it cannot ask
	@$(PY) -m deploy.audit

test-gpu:  ## the tests that need an NVIDIA GPU; PYTHON= picks another interpreter
	$(or $(PYTHON),$(PY)) -m pytest -q -m gpu tests/inference tests/models/test_shared_prefix.py

bench-demo: .venv/.runtime  ## 20 questions through the whole path; last line JSON
	@$(PY) -m tests.benchmarks.demo

bench-callbacks: .venv/.runtime  ## 1,000 messages delivered 3 times each; last line JSON
	@$(PY) -m tests.benchmarks.callbacks

chaos: .venv/.dev  ## 10,000 messages while everything is killed at random; last line JSON
	@$(PY) -m tests.chaos --model models/demo-moe

load: .venv/.dev  ## callbacks a second; last line JSON
	@$(PY) -m tests.load

soak: .venv/.dev  ## 10,000 users, memory of each process
	@$(PY) -m tests.soak

deploy:  ## build and start the composed stack; PROFILES="cpu demo" needs no account
	@deploy/deploy.sh up

upgrade:  ## the same with this tree's code; queue and volumes stay
	@deploy/deploy.sh upgrade

rollback:  ## the images and settings before the last upgrade
	@deploy/deploy.sh rollback

test-compose: .venv/.dev  ## the composed stack under kills, upgrade, rollback; last line JSON
	@$(PY) -m tests.compose

escape: .venv/.dev  ## 200 ways out of the Python sandbox, on each back end; last line JSON
	@$(PY) -m tests.escape

train-fixture: .venv/.runtime  ## train the small model (two CPU cores: under an hour)
	$(PY) -m models.training.train --preset fixture --out var/train-fixture

eval-fixture: .venv/.runtime  ## accuracy of the small model; last line JSON
	@$(PY) -m models.training.evaluate models/fixture-moe

train-demo:  ## train the demo model on one GPU in 21 minutes; PYTHON= picks another interpreter
	$(or $(PYTHON),$(PY)) -m models.training.train --preset demo --device cuda --minutes 20.5 \
		--out var/train-demo

eval-demo: .venv/.runtime  ## accuracy of the demo model; last line JSON
	@$(PY) -m models.training.evaluate models/demo-moe

eval-tools: .venv/.runtime  ## 200 rounds of tool calling in three number formats; last line JSON
	@$(PY) -m tests.eval_tools
