# shellcheck shell=bash
# Sourced by the scripts that make an environment: finds a Python and makes a venv with bertjax in it.

# Packages are installed without bytecode, and the first program that imports a module writes it.
# Forbidden to write, every program would compile JAX anew: 14 s instead of 5 s on a slow machine.
unset PYTHONDONTWRITEBYTECODE

# find_python VERSION...: prints the first version that works. $PYTHON overrides it; interpreters of
# pyenv are included, even if they are not selected.
find_python() {
  if [[ -n "${PYTHON:-}" ]]; then
    command -v "$PYTHON" || { echo "PYTHON=$PYTHON: cannot be run" >&2; return 1; }
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
  echo "no working Python of the versions $*: install one, or give its path as PYTHON=..." >&2
  return 1
}

# make_venv FOLDER PYTHON WHAT...: creates a venv of that Python with WHAT installed, unless it exists
# with the same WHAT, setup.py and Python.
make_venv() {
  local folder="$1" python="$2" stamp
  shift 2
  stamp="$("$python" -VV) $* $(cksum < setup.py)"
  if [[ "$(cat "$folder/installed" 2>/dev/null)" == "$stamp" ]]; then return; fi
  echo "creating $folder with $("$python" -V)"
  "$python" -m venv --clear "$folder"
  "$folder/bin/pip" install -qq --disable-pip-version-check --upgrade pip
  local what
  for what in "$@"; do  # one by one: torch must be installed before packages that depend on it
    # shellcheck disable=SC2086 # a requirement may contain options
    "$folder/bin/pip" install -qq --disable-pip-version-check --no-compile $what
  done
  echo "$stamp" > "$folder/installed"
}
