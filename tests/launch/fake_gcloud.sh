#!/usr/bin/env bash
# Stands in for gcloud: one queued resource and its slices of two hosts, in the folder $FAKE.
#
#   calls           its words, a line a call
#   state           what the request is, or absent
#   slices          how many slices were requested with --node-count
#   worker-N/       the home of host N: what is asked by ssh runs there
#   slice-S-worker-N/  the same where there are several slices
#   states          cue: a line for each coming look at the request, instead of the true state;
#                   "-" is the true one, and PREEMPT takes the slice away
#   create-fails    cue: the message that create fails with
#   unreachable     cue: the number of a host that ssh cannot reach
#   broken          cue: the number of a host whose commands fail
#   preempted       cue: the name of a slice that is preempted while its request is still active
# Messages are worded as those of the SDK 528.
set -euo pipefail

echo "$*" >> "$FAKE/calls"

flag() {
  local word
  for word in "${words[@]}"; do
    if [[ "$word" == "--$1="* ]]; then echo "${word#*=}"; fi
  done
}

take_away() {
  local file
  for file in "$FAKE"/*worker-*/*/train.pid; do
    if [[ -e "$file" ]]; then kill -KILL -- "-$(ps -o pgid= "$(<"$file")" | tr -d ' ')" || true; fi
  done
  rm -rf "$FAKE"/*worker-* "$FAKE/preempted"
}

not_found() {
  echo "ERROR: (gcloud.compute.tpus.$1) NOT_FOUND: Resource '$NAME' was not found" >&2
  exit 1
}

ssh_failed() { echo '[/usr/bin/ssh] exited with return code [255].'; }

state() { cat "$FAKE/state" 2>/dev/null || echo absent; }

# home SLICE HOST: the folder of a host.
home() { if ((slices > 1)); then echo "$FAKE/slice-$1-worker-$2"; else echo "$FAKE/worker-$2"; fi; }

# each_host WHAT WORDS...: that function for every host that --node and --worker name; as gcloud, 255
# when one cannot be reached, after tries that name it.
each_host() {
  local node nodes=0 code=0
  if [[ "$kind" == queued-resources ]]; then nodes="$(flag node)"; fi
  if [[ "$nodes" == all ]]; then nodes="$(seq 0 $((slices - 1)))"; fi
  for node in $nodes; do each_host_of_slice "$@" || code=$?; done
  return "$code"
}

each_host_of_slice() {
  local host hosts code=0
  hosts="$(flag worker)"
  if [[ "$hosts" == all ]]; then hosts="0 1"; fi
  for host in $hosts; do
    echo "SSH: Attempting to connect to worker $host..." >&2
    if [[ "$(cat "$FAKE/unreachable" 2>/dev/null)" == "$host" ]]; then
      echo 'Failed to execute command on multiple workers. This may have happened if you have not' \
        'added your SSH key to your ssh-agent using "ssh-add ~/.ssh/google_compute_engine".' >&2
      echo "Retrying: SSH command error: $(ssh_failed)" >&2
      echo "SSH: Attempting to connect to worker $host..." >&2
      echo "ERROR: (gcloud.compute.tpus.$kind.$action) $(ssh_failed)" >&2
      code=255
    elif [[ "$(cat "$FAKE/broken" 2>/dev/null)" == "$host" ]] || ! "$1" "$host" "${@:2}"; then
      echo "##### Command execution on worker $host failed with exit status 1. Continuing." >&2
      code=1
    fi
  done
  return "$code"
}

ssh() {
  (cd "$(home "$node" "$1")" && HOME="$PWD" HOSTNAME="t1v-n-$node-w-$1" FAKE_SLICE="$node" \
    bash -c "$(flag command)")
}

scp() { cp "$2" "$(home "$node" "$1")/"; }

words=("$@")
[[ "$1 $2" == "compute tpus" ]]
kind="$3" action="$4" NAME="$5"
slices="$(cat "$FAKE/slices" 2>/dev/null || echo 1)"
case "$kind $action" in
  *' create')
    if [[ -e "$FAKE/create-fails" ]]; then cat "$FAKE/create-fails" >&2; exit 1; fi
    slices="$(flag node-count)"
    echo "${slices:=1}" > "$FAKE/slices"
    for node in $(seq 0 $((slices - 1))); do mkdir "$(home "$node" 0)" "$(home "$node" 1)"; done
    echo ACTIVE > "$FAKE/state"
    ;;
  'queued-resources describe')
    next="$(head -n 1 "$FAKE/states" 2>/dev/null || true)"
    sed -i 1d "$FAKE/states" 2>/dev/null || true
    if [[ "$next" == PREEMPT ]]; then
      take_away
      echo SUSPENDED > "$FAKE/state"
    elif [[ -n "$next" && "$next" != - ]]; then
      echo "$next"
      exit
    fi
    [[ "$(state)" != absent ]] || not_found "$kind.$action"
    state
    ;;
  'tpu-vm describe')
    [[ "$(state)" != absent ]] || not_found "$kind.$action"
    if [[ "$(cat "$FAKE/preempted" 2>/dev/null)" == "$NAME" ]]; then echo PREEMPTED; else echo READY; fi
    ;;
  *' delete')
    [[ "$(state)" != absent ]] || not_found "$kind.$action"
    take_away
    rm "$FAKE/state"
    ;;
  *' ssh') each_host ssh ;;
  *' scp') each_host scp "$5" ;;
  *) echo "fake gcloud: $*" >&2; exit 1 ;;
esac
