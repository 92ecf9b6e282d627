# Quarterdeck. Every target sets up what it needs; nothing here needs root unless it says so.
PYTHON ?= python3
PORT ?= 8000
CLOUD_PORT ?= 5600
SLURM ?= sandbox
VENV := .venv/bin
LOCK := uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header --quiet

.PHONY: help run setup setup-dev test lint format lock messages lab-slurm verify-main-job verify-aws verify-slurm verify-kubernetes screenshots clean

help:  ## show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

run:  ## set up and run everything here until Ctrl-C [PORT=8000] [CLOUD_PORT=5600] [SLURM=real: root]
	@$(PYTHON) deploy/bootstrap.py && exec $(VENV)/python manage.py up --port $(PORT) --cloud-port $(CLOUD_PORT) --slurm $(SLURM)

setup:  ## only set up
	@$(PYTHON) deploy/bootstrap.py

setup-dev:  ## set up with what the tests need
	@$(PYTHON) deploy/bootstrap.py --dev

test:  ## everything that must hold before a change goes in [ONLY=ruff,mypy,…]
	@$(PYTHON) deploy/bootstrap.py --dev && exec $(VENV)/python tests/run.py $(if $(ONLY),--only $(ONLY))

lint: setup-dev  ## the quick checks
	@exec $(VENV)/python tests/run.py --no-install --only ruff,format,contracts,mypy,djlint

format: setup-dev  ## put the code into its form
	@$(VENV)/ruff check --fix --quiet . ; $(VENV)/ruff format .

lock:  ## resolve requirements/*.in anew [UPGRADE=1] (needs uv)
	@cd requirements && for name in runtime sandbox dev node; do \
	  $(LOCK) $(if $(UPGRADE),--upgrade) --output-file $$name.txt $$name.in || exit 1; done

messages: setup-dev  ## collect the words to translate into locale/ (needs GNU gettext)
	@$(VENV)/python manage.py makemessages --all --no-obsolete --ignore node_modules --ignore .venv --ignore var
	@$(VENV)/python -m portal.messages

lab-slurm: setup-dev  ## a real Slurm of [VERSION=22.05|24.11|26.05] until Ctrl-C, with pretend GPUs (needs root)
	@$(VENV)/python -m sandbox.lab run --dir /tmp/quarterdeck-slurm-$(or $(VERSION),22.05)/lab --release $(or $(VERSION),22.05) --user games

verify-main-job: setup-dev  ## the main job with its figures, on the sandbox and on real Slurm
	@exec $(VENV)/python tests/verify_main_job.py

verify-aws: setup-dev  ## capacity, cluster kinds and storage with their figures, on the sandbox's AWS
	@exec $(VENV)/python tests/verify_aws.py

verify-slurm: setup-dev  ## Slurm in full with its figures, on real 22.05, 24.11 and 26.05 (needs root; two hours)
	@exec $(VENV)/python tests/verify_slurm.py

verify-kubernetes: setup-dev  ## Kubernetes with its figures, on the sandbox; the contract also on QD_TEST_KUBECONFIG
	@exec $(VENV)/python tests/verify_kubernetes.py

screenshots: setup-dev  ## every page in both themes, languages and widths, into screenshots/
	@exec $(VENV)/python tests/screenshots.py

clean:  ## remove what set-up and runs made here (the database too)
	@rm -rf .venv .venv-torch node_modules var staticfiles screenshots test-results
	@find locale -name '*.mo' -delete
