# The course's commands. `make help` lists them. Needs GNU make 3.81 or later and a POSIX shell.
#
# Everything runs with the Python of `.venv`, which `make` sets up by itself. To use an environment of your own
# instead (conda: environment.yml does this), set COURSE_PYTHON to its interpreter; nothing is then installed.

SHELL = /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:
COURSE_PYTHON ?= .venv/bin/python
RUN = $(COURSE_PYTHON)
UV ?= uv

# A variable counts only where it was typed after `make`: SEED or TEST may mean something else in your shell.
typed = $(if $(filter command,$(origin $(1))),$($(1)))
option = $(if $(call typed,$(1)),--$(2) "$(call typed,$(1))")
DATA_OPTIONS = $(call option,SOURCE,source) $(call option,TRAIN,train) $(call option,TEST,test) \
	$(call option,SEED,seed) $(call option,NOISE,noise) $(call option,CROP,crop) $(call option,JITTER,jitter)

# Any Python from 3.8 on can run the set-up, which then looks for one that fits the course.
SET_UP = set_up() { for python in "$$PYTHON" .venv/bin/python python3.13 python3.12 python3.11 python3 python; do \
	if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then \
	exec "$$python" -I course_utils/bootstrap.py "$$1"; fi; done; \
	echo "The course needs Python 3.11 to 3.13, and none was found. Install one (python.org, your system's packages)" \
	"or name it: make lab PYTHON=/path/to/python3.12" >&2; exit 1; }; set_up

.PHONY: help ready data lab build-data show-data release collect autograde similarity feedback grades student-bundle build \
	check-build test test-quick test-cuda lint format lock book matrix bench clean

help: ## List the commands
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo 'The first command that needs them installs the packages into .venv (Linux: about 3.2 GB to download, 6.4 GB'
	@echo 'on the disk, most of it CUDA; macOS: about 0.4 and 1.2 GB). Linux without a GPU, about 0.5 GB to download, 1.6 GB on'
	@echo 'the disk:  make lab TORCH=cpu TORCH_INDEX=ADDRESS   (the index that pytorch.org shows for CPU)'
	@echo 'Another interpreter:  make lab PYTHON=/path/to/python3.12'

ready:
ifeq ($(COURSE_PYTHON),.venv/bin/python)
	@$(SET_UP) env
endif

data: ready
	@$(RUN) -m course_utils build-data --if-missing

##@ Student
lab: data ## Set up what is missing and open JupyterLab on notebooks/ (ARGS="--no-browser --port 8899")
	@$(SET_UP) notebooks
	$(RUN) -m jupyterlab notebooks --LabApp.news_url=None $(call typed,ARGS)

build-data: ready ## Make the images anew (SOURCE=drawn|cifar10|PATH TRAIN= TEST= SEED= NOISE= CROP= JITTER=)
	$(RUN) -m course_utils build-data $(DATA_OPTIONS)

show-data: data ## Look at the images: a contact sheet
	$(RUN) -m course_utils show-data

##@ Instructor (every section, or SECTION=01_tensor_costs)
release: ready ## Make the students' notebooks through nbgrader (replaces those in notebooks/)
	$(RUN) -m grading.release $(call typed,SECTION)

collect: ready ## Put what was handed in there (FROM=submissions.zip, or a folder; ARGS=--dry-run)
	$(RUN) -m grading.collect $(call typed,ARGS) "$(or $(call typed,FROM),handed-in)"

autograde: data ## Grade what is new in grading/submitted/STUDENT/SECTION/ (ARGS="--jobs 4 --students ann bob")
	$(RUN) -m grading.autograde $(call option,SECTION,assignment) $(call typed,ARGS)

similarity: ready ## List answers that are alike: grading/similarity.html (ARGS="--threshold 0.9 --top 20")
	$(RUN) -m grading.similarity $(call option,SECTION,assignment) $(call typed,ARGS)

feedback: ready ## Write the feedback pages into grading/feedback/
	$(RUN) -m grading.write_feedback "$(or $(call typed,SECTION),*)" $(call typed,ARGS)

grades: ready ## Export the marks to grading/ (FORMAT=plain|canvas|moodle FROM=what-the-platform-exported.csv)
	$(RUN) -m grading.grades $(call option,FORMAT,format) $(call option,FROM,from) $(call option,SECTION,assignment) $(call typed,ARGS)

student-bundle: data ## Pack what students get: pytorch-foundations.zip (ARGS=--no-data leaves the images out)
	$(RUN) -m grading.bundle $(call typed,ARGS)

##@ Maintainer
build: data ## Build notebooks, expected behaviours and the reference edition from solutions/
	$(RUN) -m grading.build $(call typed,ARGS)

check-build: data ## Fail where what is committed differs from a new build
	$(RUN) -m grading.build --check

test: data lint ## All checks: style, quick tests, then notebooks and whole classes (ARGS="-k memory")
	$(RUN) -m pytest $(call typed,ARGS)

test-quick: data lint ## Style, and the tests that start no kernel
	$(RUN) -m pytest -m "not kernel" $(call typed,ARGS)

test-cuda: data ## The device tests on a CUDA GPU (skipped, with the reason, where there is none)
	$(RUN) -m pytest tests/simgpu -m cuda $(call typed,ARGS)

lint: ready ## Check the style
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

format: ready ## Bring the style in order
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

lock: ## Write requirements.txt anew from pyproject.toml (needs uv: pip install uv)
	$(UV) pip compile pyproject.toml --all-extras --universal --python-version 3.11 \
	  --custom-compile-command "make lock" --quiet --output-file requirements.txt

book: ready ## Render book/solutions and book/learners, static HTML, from the kept outputs
	$(RUN) -m grading.book $(call typed,ARGS)

matrix: data ## Run the tests on other versions, write docs/versions.md (needs uv; ARGS="--python 3.12 --torch 2.6.0")
	$(RUN) tests/matrix.py --uv $(UV) $(call typed,ARGS)

bench: data ## Print the measurements of benchmarks/
	@for script in benchmarks/*.py; do echo "== $$script"; $(RUN) "$$script" || exit 1; done

clean: ## Remove caches alone: no notebook, submission, mark, data or environment
	rm -rf .pytest_cache .ruff_cache build *.egg-info
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
