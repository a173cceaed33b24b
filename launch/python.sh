# shellcheck shell=bash
# Sourced by the scripts that make an environment: finds a Python and makes a venv with bertjax in it.

# find_python VERSION...: prints the first of the versions that runs. $PYTHON overrides; interpreters
# that pyenv holds count, also those it has not selected.
find_python() {
  if [[ -n "${PYTHON:-}" ]]; then
    command -v "$PYTHON" || { echo "PYTHON=$PYTHON does not run" >&2; return 1; }
    return
  fi
  local version candidate held=""
  if command -v pyenv >/dev/null; then held="$(pyenv root)/versions"; fi
  for version in "$@"; do
    for candidate in "python$version" "$held/$version"*/bin/python; do
      if "$candidate" -c "import ensurepip, ssl, sys, venv
sys.exit('%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null; then
        command -v "$candidate"
        return
      fi
    done
  done
  echo "no Python of $* runs here: install one, or give its path as PYTHON=..." >&2
  return 1
}

# make_venv FOLDER PYTHON WHAT...: a venv of that Python with WHAT installed, made once and renewed
# when WHAT, setup.py or the Python changes.
make_venv() {
  local folder="$1" python="$2" stamp
  shift 2
  stamp="$("$python" -VV) $* $(cksum < setup.py)"
  if [[ "$(cat "$folder/installed" 2>/dev/null)" == "$stamp" ]]; then return; fi
  echo "making $folder with $("$python" -V)"
  "$python" -m venv --clear "$folder"
  "$folder/bin/pip" install -qq --disable-pip-version-check --upgrade pip
  local what
  for what in "$@"; do  # one by one: torch must be there before what depends on it
    # shellcheck disable=SC2086 # a requirement may bring its options
    "$folder/bin/pip" install -qq --disable-pip-version-check $what
  done
  echo "$stamp" > "$folder/installed"
}
