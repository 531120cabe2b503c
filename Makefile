# Two commands carry everything: `make reproduce` and `make test`. Both set up .venv first.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
JOBS   ?=
TWO    := --numprocesses=2 --dist=loadscope --no-loadscope-reorder  # a file at a time, the long notebooks first

.PHONY: setup reproduce test lab clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; set PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	@touch $@

reproduce: setup  ## every table and figure at preset quick, offline
	$(BIN)/fedinit reproduce --preset quick $(if $(JOBS),--jobs $(JOBS))

test: setup  ## all tests, the notebooks through nbval included
	OMP_NUM_THREADS=1 FEDINIT_OFFLINE=1 $(BIN)/python -m pytest $(TWO) --nbval --nbval-cell-timeout=1200 notebooks tests

lab: setup  ## JupyterLab on the notebooks
	$(BIN)/jupyter lab --notebook-dir=notebooks

clean:  ## what the commands above made, but for the figures of small and paper
	rm -rf $(VENV) runs figures/quick build *.egg-info
