#!/usr/bin/env bash
# Simulates a pod on this machine: `bash launch/local_pod.sh N -- FLAGS...` runs N real processes of
# `bertjax pretrain FLAGS`, each through launch/train.sh as on its own host, with $DEVICES (default: 1)
# virtual CPU devices each. Each line of output is prefixed with the number of its process.
#
# If one process fails, the others have $GRACE seconds (default: 60) to exit; then they are killed. The
# exit code is that of the first failure. Ctrl-C or a SIGTERM preempts all processes: they save and exit
# with code 75; a second signal kills them. $RESTARTS (default: 0) is passed to train.sh.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

bad() { echo "local_pod.sh: error: $*" >&2; exit 2; }

count="${1:-}"
[[ "$count" =~ ^[1-9][0-9]*$ ]] || bad "usage: local_pod.sh N -- FLAGS OF bertjax pretrain; N is missing or not a number"
shift
if [[ "${1:-}" == -- ]]; then shift; fi
(($# > 0)) || bad "usage: local_pod.sh N -- FLAGS OF bertjax pretrain; the flags are missing"

export PYTHON="${PYTHON:-$here/.venv/bin/python}" RESTARTS="${RESTARTS:-0}"
export JAX_PLATFORMS=cpu
export XLA_FLAGS="${XLA_FLAGS:-} --xla_force_host_platform_device_count=${DEVICES:-1}"
command -v "$PYTHON" >/dev/null || bad "PYTHON=$PYTHON: not found; set PYTHON to an interpreter with bertjax"
grace="${GRACE:-60}"
port="${PORT:-$("$PYTHON" "$here/launch/free_port.py")}"

tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
set -m  # each process leads a group, so that a kill ends the whole group
members=() readers=()
for ((i = 0; i < count; i++)); do
  mkfifo "$tmp/$i"
  sed -u "s/^/[$i] /" < "$tmp/$i" &
  readers+=($!)
  HOSTNAME="process $i" bash "$here/launch/train.sh" "--coordinator=127.0.0.1:$port" \
    "--num_processes=$count" "--process_id=$i" "$@" > "$tmp/$i" 2>&1 < /dev/null &
  members+=($!)
done
echo "local_pod.sh: $count processes with ${DEVICES:-1} devices each, coordinator 127.0.0.1:$port"

kill_all() { for pid in "${members[@]}"; do kill -KILL -- "-$pid" || true; done; }

asked=""
# shellcheck disable=SC2329 # the trap calls it
stop_all() {
  if [[ -n "$asked" ]]; then kill_all; fi
  asked=yes
  kill -TERM "${members[@]}" || true
}
trap stop_all INT TERM

left=("${!members[@]}") code=0 failed_at=""
while ((${#left[@]} > 0)); do
  still=()
  for i in "${left[@]}"; do
    if kill -0 "${members[i]}"; then
      still+=("$i")
      continue
    fi
    status=0
    wait "${members[i]}" || status=$?
    echo "local_pod.sh: process $i exited after $SECONDS s, exit code $status"
    if ((status != 0 && code == 0)); then code=$status failed_at=$SECONDS; fi
  done
  left=(${still[@]+"${still[@]}"})
  if [[ -n "$failed_at" ]] && ((${#left[@]} > 0 && SECONDS - failed_at >= grace)); then
    echo "local_pod.sh: ${#left[@]} still running $grace s later: killing them"
    kill_all
  fi
  sleep 0.2
done 2>/dev/null  # bash reports each job that a signal ended
kill_all 2>/dev/null  # child processes that they left
wait "${readers[@]}"
exit "$code"
