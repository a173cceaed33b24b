#!/usr/bin/env bash
# The commands that launch/tpu_vm.sh runs on a host by ssh: `bash launch/host.sh VERB`. If $SLICES is
# above 1, the messages name the slice too.
#
#   install         creates a .venv with bertjax and jax for TPUs
#   start FLAGS...  starts launch/train.sh with the flags of `bertjax pretrain`, or of $VERB, in the
#                   background
#   stop            sends it a SIGTERM: the run saves its step and exits
#   status          prints a line: idle, running, done, stopped, failed CODE, or gone (host restarted)
#   log BYTE        prints train.log from that byte on
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/python.sh

host="${HOSTNAME:-$(hostname)}"
case "$host" in
  *-w-*) worker="worker ${host##*-w-}" ;;  # Google's names of a slice's hosts: t1v-n-1a2b3c4d-w-3
  *) worker="worker 0" ;;
esac
if ((${SLICES:-1} > 1)); then  # the hosts of all slices have the same numbers
  attributes="http://metadata.google.internal/computeMetadata/v1/instance/attributes"
  slice="$(curl -s -m 10 -H 'Metadata-Flavor: Google' "$attributes/tpu-env" \
    | sed -nE "s/^MEGASCALE_SLICE_ID: *'?([0-9]+).*/\1/p")" || slice=""
  worker="slice ${slice:-?} $worker"
fi

# modern_python: prints a Python that bertjax runs on. Ubuntu 22.04, the image of TPU VMs, has 3.10.
modern_python() {
  find_python 3.13 3.12 3.11 2>/dev/null && return
  python3 -m pip install -qq --user uv >&2
  python3 -m uv python install -q 3.13 >&2
  python3 -m uv python find 3.13
}

install() {
  local python
  python="$(modern_python)"
  make_venv .venv "$python" "-e .[tpu,gcs]"
  # jax warns without it: the TPU runtime starts and stops much faster from v5e on.
  local pages=/sys/kernel/mm/transparent_hugepage/enabled
  if [[ -e "$pages" && "$(<"$pages")" != *"[always]"* ]]; then
    echo always | sudo -n tee "$pages" >/dev/null 2>&1 || true
  fi
  echo "$worker: $(.venv/bin/python -V) is ready"
}

running() {
  [[ -e train.pid && -e "/proc/$(<train.pid)" ]] \
    && tr '\0' ' ' < "/proc/$(<train.pid)/cmdline" | grep -q launch/train.sh
}

start() {
  if running; then
    echo "$worker: already running"
    return
  fi
  rm -f train.exit train.pid train.stopped
  setsid nohup bash launch/host.sh supervise "$@" >> train.log 2>&1 < /dev/null &
  until [[ -s train.pid ]]; do sleep 0.1; done
  echo "$worker: started"
}

supervise() {
  bash launch/train.sh "$@" &
  echo $! > train.pid
  local code=0
  wait $! || code=$?
  echo "$code" > train.exit
}

stop() {
  if running; then
    touch train.stopped
    kill -TERM "$(<train.pid)"
    echo "$worker: saving and stopping"
  else
    status
  fi
}

status() {
  local word
  if ! running && [[ -e train.pid && ! -e train.exit ]]; then sleep 1; fi  # it may be about to exit
  if running; then
    word="running, $(($(date +%s) - $(stat -c %Y train.pid))) s"
  elif [[ ! -e train.pid ]]; then
    word=idle
  elif [[ ! -e train.exit ]]; then
    word="gone: the started process no longer exists"
  elif [[ "$(<train.exit)" == 0 ]]; then
    word="done"
  elif [[ -e train.stopped ]]; then
    word="stopped, exit code $(<train.exit)"
  else
    word="failed $(<train.exit): $(grep -vE '^(train.sh.*)?$' train.log | tail -n 1 | cut -c -300)"
  fi
  echo "$worker: $word"
}

log() { if [[ -e train.log ]]; then tail -c "+$(($1 + 1))" train.log; fi; }

case "${1:-}" in
  install | start | supervise | stop | status | log) "$@" ;;
  *) echo "host.sh: unknown verb '${1:-}': must be install, start, stop, status or log" >&2; exit 2 ;;
esac
