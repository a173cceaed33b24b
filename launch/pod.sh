# shellcheck shell=bash
# Sourced by tpu_vm.sh: reads the file of a pod, and translates its values to Google's names.

readonly KEYS="PROJECT ZONE NAME ACCELERATOR_TYPE SLICES RUNTIME_VERSION CREATE CAPACITY CREATE_FLAGS \
SSH_FLAGS BUCKET VERB CONFIG DATA WORKDIR CACHE ARGS LIBTPU_INIT_ARGS RESTARTS RECREATIONS IMAGE \
GKE_ACCELERATOR GKE_TOPOLOGY GKE_HOSTS GKE_CHIPS"

bad() {
  printf 'tpu_vm.sh: error: %s\n' "$*" >&2
  exit 2
}

# read_pod FILE: sets the keys of the file, $type and $runtime with Google's names, and the lists
# create_flags, ssh_flags and nodes (the names of the slices). Error messages name the file and the key.
read_pod() {
  local file="$1" key line
  [[ -n "$file" ]] || bad "--pod=FILE is missing: copy launch/pod.env and fill it in"
  [[ -f "$file" ]] || bad "--pod=$file: file not found; copy launch/pod.env and fill it in"
  for key in $KEYS; do printf -v "$key" ''; done
  VERB=pretrain SLICES=1 CREATE=queued CAPACITY=on_demand RESTARTS=5 RECREATIONS=20
  while IFS=: read -r line key; do
    key="${key%=}" key="${key##* }"
    [[ " $KEYS " == *" $key "* ]] || bad "$file, line $line: unknown key $key; the keys are $KEYS"
  done < <(grep -nEo '^ *(export )?[A-Za-z_0-9]+=' "$file" || true)
  # shellcheck source=launch/pod.env
  source "$file"
  local required="PROJECT ZONE NAME ACCELERATOR_TYPE WORKDIR"
  case "$VERB" in
    pretrain) required+=" CONFIG" ;;
    finetune)
      required+=" ARGS"
      [[ -z "$CONFIG" ]] || bad "$file: CONFIG=$CONFIG: must be empty with VERB=finetune; use ARGS" ;;
    *) bad "$file: VERB=$VERB: must be pretrain or finetune" ;;
  esac
  for key in $required; do
    [[ -n "${!key}" ]] || bad "$file: $key is not set"
  done
  [[ "$NAME" =~ ^[a-z]([a-z0-9-]*[a-z0-9])?$ ]] \
    || bad "$file: NAME=$NAME: must start with a letter and contain small letters, digits and -"
  [[ -z "$CONFIG" || (-f "${CONFIG%%:*}" && "$CONFIG" != /* && "$CONFIG" != *..*) ]] \
    || bad "$file: CONFIG=$CONFIG: must be a file of this checkout, such as configs/bert_base.py"
  [[ "$BUCKET" != *://* ]] || bad "$file: BUCKET=$BUCKET: give only the name, without gs://"
  [[ "$PROJECT" != my-project ]] || bad "$file: PROJECT=my-project is the example's project: give your own"
  for key in DATA WORKDIR CACHE; do
    [[ "${!key}" != gs://my-bucket/* ]] \
      || bad "$file: $key=${!key} is in the example's bucket: set BUCKET to your own"
  done
  [[ "$WORKDIR" == gs://?* ]] \
    || bad "$file: WORKDIR=$WORKDIR: must be gs://..., because the disks of a slice are deleted with it"
  [[ "$CREATE" =~ ^(queued|direct)$ ]] || bad "$file: CREATE=$CREATE: must be queued or direct"
  [[ "$RESTARTS$RECREATIONS" =~ ^[0-9]+$ ]] || bad "$file: RESTARTS and RECREATIONS must be numbers"
  [[ "$SLICES" =~ ^[1-9][0-9]*$ ]] || bad "$file: SLICES=$SLICES: must be a number from 1 on"
  [[ "$SLICES" == 1 || "$CREATE" == queued ]] \
    || bad "$file: CREATE=direct: must be queued, because SLICES=$SLICES slices are requested together"
  # shellcheck disable=SC2034 # tpu_vm.sh reads it
  if ((SLICES == 1)); then nodes=("$NAME"); else mapfile -t nodes < <(seq -f "$NAME-%g" 0 $((SLICES - 1))); fi
  name_type "$file"
  # shellcheck disable=SC2206,SC2034 # these keys are lists of words
  ssh_flags=(--quiet $SSH_FLAGS) create_flags=(--quiet $CREATE_FLAGS)
  case "$CAPACITY" in
    spot) create_flags+=(--spot) ;;
    reserved) create_flags+=(--reserved) ;;
    on_demand) ;;
    *) bad "$file: CAPACITY=$CAPACITY: must be spot, reserved or on_demand" ;;
  esac
}

# name_type FILE: sets $type and $runtime. https://docs.cloud.google.com/tpu/docs/runtimes lists the
# images; v5e is v5litepod there.
name_type() {
  type="${ACCELERATOR_TYPE/#v5e-/v5litepod-}"
  case "$type" in
    v[234]-[1-9]*) runtime=tpu-ubuntu2204-base ;;
    v5litepod-[1-9]*) runtime=v2-alpha-tpuv5-lite ;;
    v5p-[1-9]*) runtime=v2-alpha-tpuv5 ;;
    v6e-[1-9]*) runtime=v2-alpha-tpuv6e ;;
    tpu7x*) bad "$1: ACCELERATOR_TYPE=$type is available in GKE only: see launch/jobset.yaml" ;;
    *) bad "$1: ACCELERATOR_TYPE=$type: must be a type such as v2-8 v3-32 v4-32 v5e-16 v5p-128 v6e-64" ;;
  esac
  runtime="${RUNTIME_VERSION:-$runtime}"
}

# gcloud_remedy FILE: prints what to do about gcloud's message in the file.
gcloud_remedy() {
  if grep -qiE 'RESOURCE_EXHAUSTED|quota' "$1"; then
    printf 'request quota for %s in %s (console: IAM, Quotas, TPU API), or use ' "$type" "$ZONE"
    printf 'another ZONE or CAPACITY'
  elif grep -qiE 'no more capacity|stockout|not enough' "$1"; then
    printf 'no capacity in %s: CREATE=queued waits for it, or try another ZONE' "$ZONE"
  elif grep -qiE 'PERMISSION_DENIED|UNAUTHENTICATED|auth login|not been used|SERVICE_DISABLED' "$1"
  then
    printf 'gcloud auth login; gcloud services enable tpu.googleapis.com --project=%s; ' "$PROJECT"
    printf 'the account needs the role roles/tpu.admin there'
  elif grep -qiE 'INVALID_ARGUMENT|accelerator.type|runtime' "$1"; then
    printf 'list the types of %s: gcloud compute tpus accelerator-types list --zone=%s --project=%s' \
      "$ZONE" "$ZONE" "$PROJECT"
  elif grep -qiE 'command not found|No such file' "$1"; then
    printf 'install gcloud: https://cloud.google.com/sdk/docs/install'
  else
    printf 'tpu_vm.sh status shows the current state'
  fi
}
