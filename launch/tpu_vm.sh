#!/usr/bin/env bash
# Manages a TPU slice and its run:
# `bash launch/tpu_vm.sh VERB --pod=FILE [--worker=N] [--slice=N] [--dry-run]`.
#
#   create    requests the slice, and waits until it is ready
#   install   installs this checkout and its Python packages on every host
#   start     starts launch/train.sh on every host, except where it is already running
#   logs      follows the log of one host (--worker and --slice; default: 0)
#   status    prints the state of the slice, and a line for each host
#   watch     shows the log of host 0 until the run ends; recreates the slice after a preemption
#   stop      makes the run save its step and exit; the slice stays
#   delete    deletes the slice and its request
#   run       create, install, start, watch, and delete when the run is done
#
# FILE is a copy of launch/pod.env, which explains the keys. --dry-run prints every command and runs
# none. If the file asks for several slices, they are one request: all verbs act on all of them, and
# all are recreated if one is preempted.
#
# Requires gcloud, logged in, and for slices with several hosts the key in the ssh agent:
# `ssh-add ~/.ssh/google_compute_engine`. Exit code: that of the run; 2 for bad flags or a bad pod
# file; 1 if a step fails. The commands are those of `gcloud compute tpus`, SDK 528.
set -euo pipefail
from="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source launch/pod.sh

verb="" pod="" worker=0 slice=0 dry_run=""
for word in "$@"; do
  case "$word" in
    --pod=*) pod="${word#*=}" ;;
    --worker=*) worker="${word#*=}" ;;
    --slice=*) slice="${word#*=}" ;;
    --dry-run) dry_run=yes ;;
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    create | install | start | logs | status | watch | stop | delete | run)
      [[ -z "$verb" ]] || bad "two verbs, $verb and $word: give one"
      verb="$word" ;;
    *) bad "unknown word $word: --help lists the verbs and flags" ;;
  esac
done
[[ -n "$verb" ]] || bad "the verb is missing: create, install, start, logs, status, watch, stop, delete or run"
if [[ -n "$pod" && "$pod" != /* ]]; then pod="$from/$pod"; fi
read_pod "$pod"

where=("--project=$PROJECT" "--zone=$ZONE")
folder="bertjax-$NAME"  # on each host
host=(bash "$folder/launch/host.sh")
if ((SLICES > 1)); then host=(env "SLICES=$SLICES" "${host[@]}"); fi
recreated=0  # times, after preemptions
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
: > "$tmp/stderr"
exec 3>&1
readonly POLL="${POLL:-30}"  # seconds
readonly MISSES=10  # polls without an answer, in a row, before `watch` gives up

say() { if [[ -n "$dry_run" ]]; then echo "# $*" >&3; else echo "$(date +%H:%M:%S)  $*" >&3; fi; }

# quote WORDS...: prints them quoted for a shell.
quote() {
  local word inner="'\\''" line=""
  for word in "$@"; do
    case "$word" in
      "" | *[!A-Za-z0-9_./:=,@%+-]*)
        word="${word//\'/$inner}"
        case "$word" in
          --*=*) line+=" ${word%%=*}='${word#*=}'" ;;
          *) line+=" '$word'" ;;
        esac ;;
      *) line+=" $word" ;;
    esac
  done
  echo "${line# }"
}

# call COMMAND...: runs a command; in a dry run prints it instead. All commands go through here.
# The command's stderr is in $tmp/stderr.
call() {
  if [[ -n "$dry_run" ]]; then echo "\$ $(quote "$@")" >&3; else "$@" 2>"$tmp/stderr" 3>&-; fi
}

# fail STEP REMEDY: prints gcloud's message, the hosts, and what to do. Exit code 1.
fail() {
  local step="$1" remedy="$2" on="" said
  said="$(grep -E 'ERROR|[Ee]rror|failed|denied' "$tmp/stderr" | grep -v '^#####' | tail -n 1)" \
    || said="$(tail -n 1 "$tmp/stderr")"
  on="$(blamed_workers)"
  printf 'tpu_vm.sh: %s failed%s: %s\n' "$step" "${on:+ on worker $on}" "${said:0:400}" >&2
  printf 'tpu_vm.sh: %s\n' "$remedy" >&2
  exit 1
}

# blamed_workers: prints "3" or "0, 3": workers whose command failed, and workers that ssh could not
# reach (gcloud repeats the attempt). gcloud does not name their slice.
blamed_workers() {
  {
    sed -nE 's/.*Command execution on worker ([0-9]+) failed.*/\1/p' "$tmp/stderr"
    sed -nE 's/.*Attempting to connect to worker ([0-9]+).*/\1/p' "$tmp/stderr" \
      | sort | uniq -c | awk -v slices="$SLICES" '$1 > slices {print $2}'
  } | sort -nu | paste -sd, - | sed 's/,/, /g'
}

# on_hosts WORKERS VERB WORDS...: runs host.sh on "all" workers or on one; prints their stdout.
on_hosts() { remote "$1" "$(quote "${host[@]}" "${@:2}")"; }

remote() {
  select_hosts "$1"
  call gcloud compute tpus "$kind" ssh "$NAME" "${where[@]}" "${ssh_flags[@]}" "${hosts[@]}" \
    "--command=$2"
}

# select_hosts WORKERS: sets $kind and the flags $hosts for gcloud's ssh and scp. "all" workers are
# those of all slices; one worker is in the slice --slice.
select_hosts() {
  kind=tpu-vm hosts=("--worker=$1")
  if ((SLICES > 1)); then
    kind=queued-resources
    if [[ "$1" == all ]]; then hosts+=(--node=all); else hosts+=("--node=$slice"); fi
  fi
}

ssh_remedy() {
  if grep -q 'not present in the SSH agent' "$tmp/stderr"; then
    printf 'run ssh-add ~/.ssh/google_compute_engine, which several hosts need; then '
  elif grep -qE 'return code \[255\]|timed out|refused' "$tmp/stderr"; then
    printf 'a host did not answer: tpu_vm.sh status shows the slice; allow port 22 in the firewall '
    printf 'of its network (or, from within it, SSH_FLAGS="--internal-ip"), and if none answers, '
    printf 'ssh-add ~/.ssh/google_compute_engine; then '
  fi
  printf 'run tpu_vm.sh %s --pod=%s again: finished steps are not repeated' "$1" "$pod"
}

# look: sets $state to absent, waiting, ready or lost, and $word to Google's name of the state; with
# several slices, those of the first that is not ready. Returns 1 if gcloud does not answer.
look() {
  local node
  if [[ "$CREATE" == queued ]]; then
    ask queued-resources "$NAME" state.state || return 1
    if [[ "$state" != ready ]]; then return; fi
  fi
  for node in "${nodes[@]}"; do
    ask tpu-vm "$node" state || return 1
    if [[ "$CREATE$state" == queuedabsent ]]; then state=lost; fi
    if [[ "$state" != ready ]]; then return; fi
  done
}

ask() {
  state=waiting word="unknown"
  if ! call gcloud compute tpus "$1" describe "$2" "${where[@]}" "--format=value($3)" \
    > "$tmp/answer"; then
    grep -q NOT_FOUND "$tmp/stderr" || return 1
    state=absent word=ABSENT
    return
  fi
  word="$(<"$tmp/answer")"
  if [[ -n "$dry_run" ]]; then word=READY; fi
  case "$word" in
    ACTIVE | READY) state=ready ;;
    SUSPENDING | SUSPENDED | PREEMPTED | TERMINATED | STOPPED | STOPPING | DELETING | FAILED)
      state=lost ;;
  esac
}

create() {
  look || fail describe "$(gcloud_remedy "$tmp/stderr")"
  if [[ -n "$dry_run" ]]; then state=absent; fi
  if [[ "$state" == absent ]]; then
    local what="$type" named=("--node-id=$NAME")
    if ((SLICES > 1)); then
      what="$SLICES slices of $type" named=("--node-count=$SLICES" "--node-prefix=$NAME")
    fi
    say "requesting $NAME: $what in $ZONE, $CAPACITY"
    if [[ "$CREATE" == queued ]]; then
      call gcloud compute tpus queued-resources create "$NAME" "${named[@]}" "${where[@]}" \
        "--accelerator-type=$type" "--runtime-version=$runtime" "${create_flags[@]}" \
        || fail create "$(gcloud_remedy "$tmp/stderr")"
    else
      call gcloud compute tpus tpu-vm create "$NAME" "${where[@]}" \
        "--accelerator-type=$type" "--version=$runtime" "${create_flags[@]}" \
        || fail create "$(gcloud_remedy "$tmp/stderr")"
    fi
  fi
  local seen="" since=$SECONDS
  while true; do
    look || true  # without an answer, the loop asks again
    if [[ "$word" != "$seen" ]]; then
      say "$NAME is $word"
      if [[ -z "$seen" && "$state" == waiting ]]; then
        say "Ctrl-C keeps the request; run the same command again to continue waiting"
      fi
      seen="$word"
    fi
    if [[ "$state" == ready ]]; then break; fi
    if [[ "$state" == lost ]]; then
      call gcloud compute tpus queued-resources describe "$NAME" "${where[@]}" \
        '--format=value(state.failedData.error.message)' > "$tmp/answer" || true
      mv "$tmp/answer" "$tmp/stderr"
      fail create "$NAME is $word: tpu_vm.sh delete --pod=$pod, then create it again"
    fi
    sleep "$POLL"
  done
  say "$NAME is ready after $((SECONDS - since)) s"
}

install() {
  local archive="$tmp/bertjax.tar.gz"
  local content=(bertjax configs launch setup.py)
  if [[ -n "$CONFIG" && "$CONFIG" != configs/* ]]; then content+=("${CONFIG%%:*}"); fi
  call tar --exclude=__pycache__ -czf "$archive" "${content[@]}" \
    || fail "install (packing)" "the checkout must be readable and /tmp must have free space"
  select_hosts all
  call gcloud compute tpus "$kind" scp "$archive" "$NAME:" "${where[@]}" "${ssh_flags[@]}" \
    "${hosts[@]}" || fail "install (copying)" "$(ssh_remedy install)"
  local unpack="mkdir -p $folder && tar -xzf bertjax.tar.gz -C $folder"
  remote all "$unpack && $(quote "${host[@]}" install)" \
    || fail install "$(ssh_remedy install)"
}

start() {
  local settings=("RESTARTS=$RESTARTS") flags=("--config=$CONFIG" "--workdir=$WORKDIR")
  local data=--config.data.path
  if [[ "$VERB" == finetune ]]; then
    settings+=("VERB=finetune") flags=("--output=$WORKDIR") data=--data
  fi
  if [[ -n "$LIBTPU_INIT_ARGS" ]]; then settings+=("LIBTPU_INIT_ARGS=$LIBTPU_INIT_ARGS"); fi
  if [[ -n "$CACHE" ]]; then settings+=("JAX_COMPILATION_CACHE_DIR=$CACHE"); fi
  if [[ -n "$DATA" ]]; then flags+=("$data=$DATA"); fi
  # shellcheck disable=SC2206 # ARGS is a list of words
  flags+=($ARGS)
  remote all "$(quote env "${settings[@]}" "${host[@]}" start "${flags[@]}")" \
    || fail start "$(ssh_remedy start)"
}

logs() {
  remote "$worker" "tail -n 100 -F $folder/train.log" || fail logs "$(ssh_remedy logs)"
}

status() {
  look || fail describe "$(gcloud_remedy "$tmp/stderr")"
  say "$NAME ($type in $ZONE) is $word"
  if [[ "$state" == ready ]]; then on_hosts all status || fail status "$(ssh_remedy status)"; fi
}

stop() { on_hosts all stop || fail stop "$(ssh_remedy stop)"; }

delete() {
  local command=(queued-resources delete "$NAME" --force)
  if [[ "$CREATE" == direct ]]; then command=(tpu-vm delete "$NAME"); fi
  if call gcloud compute tpus "${command[@]}" "${where[@]}" --quiet; then
    if [[ -z "$dry_run" ]]; then say "$NAME is deleted"; fi
  elif grep -q NOT_FOUND "$tmp/stderr"; then
    say "$NAME does not exist"
  else
    fail delete "it may still cost money: $(gcloud_remedy "$tmp/stderr")"
  fi
}

# show_log: prints the new lines of host 0's log.
show_log() {
  on_hosts 0 log "$shown" > "$tmp/answer" || return 0
  cat "$tmp/answer" >&3
  shown=$((shown + $(wc -c < "$tmp/answer")))
}

# bring_up: create, install and start; begins again if the slice is preempted meanwhile.
bring_up() {
  until (create; install; start); do  # a subshell, so that a failure exits only the subshell
    if ! look || [[ "$state" != lost || "$word" == FAILED ]]; then exit 1; fi
    clear_away
  done
}

# once_more WHAT: counts recreations, and fails when there are more than RECREATIONS.
once_more() {
  if ((++recreated > RECREATIONS)); then
    echo "$1 $recreated times, but RECREATIONS=$RECREATIONS" > "$tmp/stderr"
    fail watch "increase RECREATIONS, or run tpu_vm.sh $verb again"
  fi
  say "$1: restarting, $recreated of at most $RECREATIONS times"
}

clear_away() {
  if [[ -n "$dry_run" ]]; then say "after a preemption:"; else once_more "$NAME is $word"; fi
  delete
}

recreate() {
  local since=$SECONDS
  clear_away
  bring_up
  shown=0
  say "training again; $((SECONDS - since)) s lost, and the steps since the last checkpoint"
}

watch() {
  local misses=0
  shown=0
  if [[ -n "$dry_run" ]]; then
    say "every $POLL s:"
    look
    on_hosts all status
    show_log
    recreate
    return
  fi
  while true; do
    if look; then
      case "$state" in
        ready) if check; then misses=0; else misses=$((misses + 1)); fi ;;
        lost | absent) recreate ;;
        waiting) say "$NAME is $word" ;;
      esac
      if [[ -n "${ended:-}" ]]; then return "$ended"; fi
    else
      misses=$((misses + 1))
    fi
    if ((misses >= MISSES)); then
      fail watch "no answer $misses times in a row. $(ssh_remedy watch). The run may still be running"
    fi
    sleep "$POLL"
  done
}

# check: checks the hosts of a ready slice once. Sets $ended to the exit code of the run if it has
# ended. Returns 1 if the hosts do not answer.
check() {
  on_hosts all status > "$tmp/answer" || return 1
  grep -E '^(slice [0-9?]+ )?worker [0-9]+: ' "$tmp/answer" | sort -V > "$tmp/hosts" || return 1
  show_log
  # Lost processes first: the others may have failed because of them.
  if grep -E ': (gone|idle)' "$tmp/hosts" >&3; then
    once_more "a host lost its process"
    start
  elif grep -E ': failed' "$tmp/hosts" >&2; then
    ended="$(sed -nE 's/.*: failed ([0-9]+).*/\1/p' "$tmp/hosts" | sort -n | head -n 1)"
    on_hosts all stop > /dev/null || true
    say "the run failed; $NAME still runs and costs money: fix the error and start again, or delete it"
  elif ! grep -qvE ': done' "$tmp/hosts"; then
    say "the run is done"
    ended=0
  elif ! grep -qvE ': stopped' "$tmp/hosts"; then
    say "the run was stopped: start resumes it; $NAME costs money until delete"
    ended=75
  fi
}

run() {
  bring_up
  local code=0
  watch || code=$?
  if ((code == 0)); then delete; fi
  return "$code"
}

"$verb"
