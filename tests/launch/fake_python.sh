#!/usr/bin/env bash
# Stands in for the Python of a host, and for its venv and pip: what `-m bertjax pretrain` does is
# the bash file $FAKE/pretrain, and `finetune` likewise.
set -euo pipefail

# shellcheck disable=SC1091 # a test writes it
case "$(basename "$0") $*" in
  pip\ *) echo "pip $*" >> "$FAKE/pips" ;;
  *' -V'*) echo 'Python 3.13.0' ;;
  *' -m venv --clear '*)
    mkdir -p "${!#}/bin"
    ln -sf "$(realpath "$0")" "${!#}/bin/python"
    ln -sf "$(realpath "$0")" "${!#}/bin/pip"
    ;;
  *' -m bertjax pretrain '*) source "$FAKE/pretrain" ;;
  *' -m bertjax finetune '*) source "$FAKE/finetune" ;;
  *' -c '*) ;;
  *) echo "fake python: $*" >&2; exit 1 ;;
esac
