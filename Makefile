# Two commands do everything from nothing: `make demo` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
NB ?= bmretriever_evaluation
BIN := $(CURDIR)/.venv/bin
export PATH := $(BIN):$(PATH)
export MEDIR_HOME ?= $(CURDIR)/.medir
export PYTHONWARNINGS := ignore
export TOKENIZERS_PARALLELISM := true
MARK := .venv/installed
FAST := HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 MEDIR_PROGRESS=0
# What a passed test wrote goes at once: the homes of all tests together are gigabytes.
PYTEST := python -m pytest -q -o tmp_path_retention_policy=failed -o tmp_path_retention_count=1

.PHONY: demo test medium lint test-orders slow lab figures coverage clean install docs docs-serve docs-version docs-check
.DELETE_ON_ERROR:

install: $(MARK)

# One shell, so that it can time itself. It ends by reading the embedded language model once: a machine that cannot read it
# says so here, and later loads are quick.
$(MARK): requirements/lock-py311-cpu.txt settings.ini setup.py
	@start=$$(date +%s); set -ex; \
	test -x $(BIN)/python || $(PYTHON) -m venv .venv; \
	pip install -q --disable-pip-version-check torch==2.13.0; \
	pip install -q --disable-pip-version-check --no-deps -r requirements/lock-py311-cpu.txt; \
	pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .; \
	HF_HUB_OFFLINE=1 TQDM_DISABLE=1 medir contract smollm2 hpo-lay > /dev/null; \
	echo $$(($$(date +%s) - start)) > $(MARK)

# The first paper notebook (or NB=...) with live embedded models; prints where notebook, table and figures lie.
demo: $(MARK)
	HF_HUB_OFFLINE=1 OMP_WAIT_POLICY=PASSIVE medir run $(NB) --preset demo

# One formatter and a short list of rules for notebooks, modules and tests (ruff.toml).
lint: $(MARK)
	@ruff format --no-cache --check . && ruff check --no-cache .

# The rules, notebooks and modules in step, every lesson, every fast test; prints how long each took. The papers' notebooks and
# the efficiency notebook, two thirds of the time of all, run in `make medium`, which reads what they wrote, too.
# What notebooks leave in temporary folders (a home that a lesson named is that of the lessons after it, too) goes with them.
# The tests stand in the order of their files, so that two runs can be compared; `make test-orders` shuffles them.
test: $(MARK) lint
	@cat nbs/*.ipynb nbs/*/*.ipynb medir_nb/*.py medir_nb/*/*.py | cksum > .venv/before
	@rm -rf .venv/before.d && cp -r medir_nb .venv/before.d
	@nbdev_export && nbdev_clean
	@cat nbs/*.ipynb nbs/*/*.ipynb medir_nb/*.py medir_nb/*/*.py | cksum | cmp -s - .venv/before || { echo "notebooks and modules were out of step: commit what nbdev_export and nbdev_clean changed (modules as they were: .venv/before.d)"; exit 1; }
	@start=$$(date +%s); scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	TMPDIR=$$scratch $(FAST) nbdev_test --skip_file_re '^[_.]|^efficiency' --skip_folder_re '^[_.]|^papers' --n_workers 2 --timing && middle=$$(date +%s) && \
	$(FAST) $(PYTEST) -p no:randomly -n 2 --dist loadfile -m "not slow and not medium" tests && end=$$(date +%s) && \
	echo "install $$(cat $(MARK)) s, nbdev_test $$((middle - start)) s, pytest $$((end - middle)) s"

# The papers' notebooks with their defaults, and the tests that take seconds each: trainings killed and resumed, plans of whole
# batches, every architecture saved and read. The file that takes longest comes first, so that no worker waits for the other.
medium: $(MARK)
	$(FAST) $(PYTEST) -p no:randomly -n 2 --dist loadfile -m "medium and not slow" tests/test_smoke.py tests

# The figures that take minutes: NFCorpus with a real encoder, mteb side by side, live models, a simulated cluster. Ray lies in a
# folder of its own: what it needs besides is in the lock.
slow: $(MARK)
	[ -d .venv-ray ] || .venv/bin/pip install -q --disable-pip-version-check --no-deps --target .venv-ray 'ray==2.60.*'
	PYTHONPATH=$(CURDIR)/.venv-ray HF_HUB_OFFLINE=1 OMP_WAIT_POLICY=PASSIVE $(PYTEST) -p no:randomly -m slow tests

# The tests of `make test` and `make medium` in three shuffled orders, on one worker, two and four. A seed shuffles, gives the
# tiny models other weights, and sets the random state that each test finds; other seeds: make test-orders SEEDS="4 5 6".
SEEDS ?= 1 2 3
test-orders: $(MARK)
	@set -- $(SEEDS); failed=0; ran=; \
	for how in "-n 1 --dist load" "-n 2 --dist loadfile" "-n 4 --dist load"; do \
		start=$$(date +%s); verdict=passed; \
		MEDIR_TEST_SEED=$$1 $(FAST) $(PYTEST) $$how --randomly-seed=$$1 --randomly-dont-reset-seed \
			-m "not slow" tests || { verdict=FAILED; failed=1; }; \
		ran="$$ran\nseed $$1, $$how: $$verdict in $$(($$(date +%s) - start)) s"; shift; \
	done; printf "$$ran\n"; exit $$failed

lab: $(MARK)
	python -m ipykernel install --prefix .venv --name python3 --display-name "medir_nb" > /dev/null
	jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) nbs

# figures/, the README's scores and the outputs stored in a paper's notebook come from its demo; those of two trainings, whose demo
# is too short to say anything, from their showcase.
STORED = $(if $(filter bmretriever_training bmretriever_ablations,$(NB)),showcase,demo)
figures: $(MARK)
	HF_HUB_OFFLINE=1 OMP_WAIT_POLICY=PASSIVE medir run $(NB) --preset $(STORED) --copy figures
	HF_HUB_OFFLINE=1 python tools/store_outputs.py $(NB)

# What was measured: the README's sentence, the table of docs/rerunning.md, and the line at the top of each paper notebook.
coverage: $(MARK)
	HF_HUB_OFFLINE=1 python tools/write_coverage.py

# The site, without a connection: pages laid out from notebooks, docstrings, registries and docs/, then built into site/.
# Its tools live in an environment of their own; nothing of the library is installed there.
DOCS := .venv-docs/installed
$(DOCS): requirements/docs.txt
	test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install -q --disable-pip-version-check --no-deps -r requirements/docs.txt
	touch $(DOCS)

docs: $(MARK) $(DOCS)
	HF_HUB_OFFLINE=1 python tools/site/stage.py _proc/site
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict -q
	@echo "site/index.html: $$(find site -type f ! -name '*.png' ! -name '*.svg' -printf '%s\n' | awk '{s += $$1} END {printf "%.2f", s / 1e6}') MB without pictures"

# Shows what `make docs` built; PORT=8000.
PORT ?= 8000
docs-serve: docs
	python -m http.server --bind 127.0.0.1 --directory site $(PORT)

# What `make docs` laid out as one version beside the others, on the branch gh-pages of this clone (mike); nothing is pushed.
# A tag's: make docs-version VERSION=0.1.0 ALIAS=latest; the main branch's: make docs-version VERSION=dev.
MIKE := PATH=$(CURDIR)/.venv-docs/bin:$(PATH) SITE_DIR=_proc/version NO_MKDOCS_2_WARNING=1 $(CURDIR)/.venv-docs/bin/mike
docs-version: $(DOCS)
	@test -n "$(VERSION)" || { echo "which version? make docs-version VERSION=0.1.0 ALIAS=latest"; exit 1; }
	@test -f _proc/site/nav.json || { echo "no pages are laid out: make docs first"; exit 1; }
	$(MIKE) deploy --update-aliases $(VERSION) $(ALIAS)
	@if test -n "$(ALIAS)" || test -z "$$(git ls-tree --name-only gh-pages index.html)"; then $(MIKE) set-default $(or $(ALIAS),$(VERSION)); fi

# The site in a real browser: Debian's chromium and chromium-driver, axe-core and a screen reader of npm. Screenshots lie
# in _proc/shots.
AXE := .venv-docs/axe/axe.min.js
READER := .venv-docs/reader/reader.js
$(AXE): $(DOCS)
	mkdir -p .venv-docs/axe
	cd .venv-docs/axe && npm pack --silent axe-core@4.14.1 && tar xzf axe-core-4.14.1.tgz && cp package/axe.min.js . && rm -rf package *.tgz
$(READER): $(DOCS)
	mkdir -p .venv-docs/reader
	cd .venv-docs/reader && npm pack --silent @guidepup/virtual-screen-reader@0.33.0 && tar xzf guidepup-virtual-screen-reader-0.33.0.tgz && cp package/lib/esm/index.browser.js reader.js && rm -rf package *.tgz

docs-check: docs $(AXE) $(READER)
	HF_HUB_OFFLINE=1 python -m medir_nb.workbook leaderboard referees --html _proc/hostile.html --scores tools/site/hostile.json --home _proc/home
	python tools/site/large.py _proc/large.json
	HF_HUB_OFFLINE=1 python -m medir_nb.workbook leaderboard --html _proc/large.html --scores _proc/large.json --home _proc/home
	rm -rf _proc/versions && git init -q _proc/versions && git -C _proc/versions config user.name site && git -C _proc/versions config user.email site@localhost && git -C _proc/versions commit -q --allow-empty -m site
	set -e; cd _proc/versions; for version in 0.1 0.2; do $(MIKE) deploy -F ../../mkdocs.yml --update-aliases $$version latest; done
	git -C _proc/versions checkout -q gh-pages
	rm -rf _proc/hostile && python tools/site/hostile.py _proc/hostile
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build -q -f _proc/hostile/mkdocs.yml
	.venv-docs/bin/python tools/site/check.py site _proc/hostile.html $(AXE) $(READER) _proc/shots _proc/versions _proc/hostile/site _proc/large.html

clean:
	rm -rf .venv .venv-docs site _proc *.egg-info
