#!/usr/bin/env bash
# Runs on every host of a slice: `bash launch/train.sh FLAGS...`, with the flags of `bertjax pretrain`,
# or of the verb in $VERB, such as VERB=finetune.
#
# The processes find each other by --distributed, unless the flags contain --coordinator. If a run was
# preempted, lost another process (exit code 75) or was killed by a signal, it is restarted after
# $RESTART_PAUSE seconds, at most $RESTARTS times in a row; a run of ten minutes resets this count. It
# is not restarted after bad input (2) and tracebacks (1). A SIGTERM to this script is passed on to the
# run, which is then not restarted. $PYTHON is the interpreter (default: that of this checkout's .venv).
set -euo pipefail

readonly LONG_ENOUGH=600  # seconds
python="${PYTHON:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.venv/bin/python}"
restarts="${RESTARTS:-5}"
pause="${RESTART_PAUSE:-10}"

say() { printf 'train.sh on %s: %s\n' "${HOSTNAME:-this host}" "$*"; }

# spell SECONDS: 3725 is 1 h 2 min 5 s.
spell() {
  local out=""
  if (($1 >= 3600)); then out="$(($1 / 3600)) h "; fi
  if (($1 >= 60)); then out+="$(($1 / 60 % 60)) min "; fi
  printf '%s%d s' "$out" $(($1 % 60))
}

flags=("$@")
if [[ " $* " != *" --coordinator"* && " $* " != *" --distributed "* ]]; then
  flags=(--distributed "$@")
fi
if ! command -v "$python" >/dev/null; then
  say "$python not found: run bash launch/host.sh install, or set PYTHON" >&2
  exit 2
fi
ulimit -n "$(ulimit -Hn)"  # readers, checkpoints and sockets of a pod need more than 1,024 files
export PYTHONUNBUFFERED=1

child="" stopping="" interrupted=""
hand_on() {
  stopping=yes interrupted=yes
  if [[ -n "$child" ]]; then kill -TERM "$child" 2>/dev/null || true; fi
}
trap hand_on TERM INT

in_row=0 lost=0
while true; do
  began=$SECONDS
  "$python" -m bertjax "${VERB:-pretrain}" "${flags[@]}" &
  child=$!
  interrupted=yes
  while [[ -n "$interrupted" ]]; do  # a trapped signal ends `wait` before the child ends
    interrupted="" code=0
    wait "$child" || code=$?
  done
  child="" ended=$SECONDS lived=$((SECONDS - began))
  if ((code == 0)); then
    say "done after $(spell "$SECONDS"), of which $(spell "$lost") between stops and restarts"
    exit 0
  elif [[ -n "$stopping" ]]; then
    say "stopped, exit code $code: run the same command again to resume"
    exit "$code"
  elif ((code != 75 && (code <= 128 || code == 130))); then
    say "exit code $code after $(spell "$lived"): not restarted" >&2
    exit "$code"
  fi
  if ((lived >= LONG_ENOUGH)); then in_row=0; fi
  if ((++in_row > restarts)); then
    say "exit code $code after $(spell "$lived"), and $restarts restarts in a row: giving up" >&2
    exit "$code"
  fi
  say "exit code $code after $(spell "$lived"): restart $in_row of $restarts in a row, in $pause s"
  sleep "$pause" &
  wait $! || true
  if [[ -n "$stopping" ]]; then exit "$code"; fi
  lost=$((lost + SECONDS - ended))
  say "restarting; time lost between stops and restarts so far: $(spell "$lost")"
done
