# The targets make the virtual environment .venv and install what they need; PYTHON chooses the interpreter (3.11 or newer).
PYTHON ?= python3
ARGS ?=
PARTS ?=

.PHONY: train report test faults format

# Just Cluster It on MyWayHome-Sparse until it is solved; flags go into ARGS, as in make train ARGS="--seed 2"
train: .venv/train
	.venv/bin/python ppo_lstm_jci.py --target-return 0.9 $(ARGS)

# A page of the newest run, or of those in RUNS: make report RUNS="runs/ONE runs/OTHER"
report: .venv/train
	.venv/bin/python report.py $(RUNS)

test: .venv/test
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/python -m pytest -q

# kills, damage, load and length: hours; PARTS="kills damage" runs only these
faults: .venv/train
	.venv/bin/python tools/faults.py $(PARTS)

format: .venv/test
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

.venv/train: requirements.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --requirement requirements.txt
	touch $@

.venv/test: .venv/train requirements-dev.txt
	.venv/bin/pip install --quiet --requirement requirements-dev.txt
	touch $@
