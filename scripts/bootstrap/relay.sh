#!/usr/bin/env bash
# Lets a harness whose Python lives in a container submit jobs: Slurm's commands are not in the image, and their
# sockets and libraries are not worth binding, so each call is handed out to this side through a pipe.
# Sourced by slurm.sh, and only then.

readonly HOST_COMMANDS=(sbatch squeue sacct scontrol scancel sinfo srun sacctmgr)

# with_host_slurm FOLDER COMMAND...: run it with stand-ins for Slurm's commands on its PATH; returns its status.
with_host_slurm() {
  local bootstrap=$1 name
  shift
  relay=$(mktemp -d "${TMPDIR:-/tmp}/harness-relay.XXXXXX")
  mkdir "$relay/bin"
  mkfifo "$relay/requests"
  cp -- "$bootstrap/ask-host" "$relay/ask-host"
  for name in "${HOST_COMMANDS[@]}"; do
    ! command -v "$name" >/dev/null || ln -s ../ask-host "$relay/bin/$name"
  done
  serve &
  server=$!
  trap 'kill "$server" 2>/dev/null || :; rm -rf -- "$relay"' EXIT
  # The two names of the same program read the two names of the same settings.
  HARNESS_RELAY=$relay APPTAINERENV_PREPEND_PATH=$relay/bin SINGULARITYENV_PREPEND_PATH=$relay/bin \
    APPTAINER_BIND=${APPTAINER_BIND:+$APPTAINER_BIND,}$relay \
    SINGULARITY_BIND=${SINGULARITY_BIND:+$SINGULARITY_BIND,}$relay "$@"
}

serve() {
  local call
  # Open for both directions, or the pipe would end with its first writer.
  while IFS= read -r call <&3; do
    answer "$call" &
  done 3<>"$relay/requests"
}

# answer CALL: whatever happens, the caller gets a status, or it would wait for ever.
answer() {
  local code=0
  (on_host "$1") >"$1/stdout" 2>"$1/stderr" </dev/null || code=$?
  echo "$code" >"$1/code"
}

# on_host CALL: the command itself, in the caller's folder and with the caller's Slurm settings.
on_host() {
  local argv=() settings=() name
  mapfile -d '' -t argv <"$1/argv"
  mapfile -d '' -t settings <"$1/environment"
  for name in "${!SLURM_@}" "${!SBATCH_@}"; do unset "$name"; done
  cd -- "$(<"$1/folder")" || return
  exec env "${settings[@]}" "${argv[@]}"
}
