#!/usr/bin/env bash
# Starts the harness: finds a Python, makes .venv beside this file, and passes every argument on.
#
#   bash slurm.sh -e 1                   launch an exercise (a first argument with a dash launches)
#   bash slurm.sh report last            any other first argument is a command
#   bash slurm.sh --install train test   only bring .venv up to date, with these extras of pyproject.toml
#
# HARNESS_PYTHON    the Python to make .venv with       HARNESS_PIP_ARGS  options for pip (mirrors, other wheels)
# HARNESS_VENV      another place for .venv             HARNESS_SITE      the site, as --site
# HARNESS_RUNS      another place for the runs          HARNESS_REFERENCES  another place for recorded references
# Where many share this checkout, configs/course.env sets them.
#
# When .venv is complete, a start compares two texts and executes Python: students call this a hundred times a day on
# login nodes. Everything slower is in scripts/bootstrap. docs/development/decisions/002-bootstrap.md gives the reasons.

[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # some users type `sh slurm.sh`
# What a shell may have exported to this one would spoil the scripts that start from here, also a Python that is a shim of
# pyenv. harness/common/system/scrub_environment.py says in a sentence that the job does not get it.
unset HARNESS_NOT_PASSED
not_passed=''
! shopt -qo posix || { set +o posix && not_passed+=' POSIXLY_CORRECT'; } # bash itself forgets it
exported=$(export -p)
for name in SHELLOPTS BASHOPTS CDPATH; do
  [[ $exported != *"x $name="* ]] || not_passed+=" $name"
done
export -n SHELLOPTS BASHOPTS # they are read-only
unset CDPATH exported
for name in python3.11 python3.12 python3.13 python3.10 python3 python cd command dirname env mkdir printf read readlink sed tr; do
  ! declare -F "$name" >/dev/null || { unset -f "$name" && not_passed+=" $name()"; }
done
[ -z "$not_passed" ] || export HARNESS_NOT_PASSED=$not_passed
set -euo pipefail +fCk
shopt -u failglob nullglob nocasematch

# A Python must be new enough (else status 3) and able to make environments (else 4).
readonly PROBE='import sys
sys.exit(3 if sys.version_info < (3, 10) else 0)'
readonly PROBE_VENV='import sys, importlib.util as u
sys.exit(0 if u.find_spec("venv") and u.find_spec("ensurepip") or u.find_spec("virtualenv") else 4)'
# 3.11 first: the pins of the train extra are tested with it; the newest Pythons lack wheels for some.
readonly NAMES=(python3.11 python3.12 python3.13 python3.10 python3 python)

# Python's exit status where it needs the train extra: install it and start Python again (harness/common/errors.py).
# PyTorch is a gigabyte, and only Python knows whether this machine itself is about to train.
readonly NEEDS_TRAINING=88

say() { printf 'slurm.sh: %s\n' "$*" >&2; }

# place_of FILE: sets `folder` and `name` to its real path, so that two paths into a shared folder give one .venv;
# fails where we cannot enter that folder.
place_of() {
  local file=$1 target
  while [ -L "$file" ]; do
    target=$(readlink -- "$file")
    [[ $target == /* ]] || target=$(dirname -- "$file")/$target
    file=$target
  done
  [[ $file == */* ]] || file=./$file
  name=${file##*/}
  # The dot keeps a newline at the end of the folder's name from being cut off by $( ).
  folder=$(CDPATH='' cd -P -- "${file%/*}/" 2>/dev/null && printf '%s.' "$PWD")
  folder=${folder%.}
  [ -n "$folder" ]
}

# current PART: is .venv what pyproject.toml asks for? Starts no process.
current() {
  local stamp='' text=''
  [[ -x $venv/harness-python && -r $venv/harness-$1.stamp && ! -e $venv/harness-building ]] || return 1
  [[ -x $venv/bin/python || -e $venv/harness-container ]] || return 1 # in an image it has another target
  IFS= read -r -d '' stamp <"$venv/harness-$1.stamp" || : # `read` says 1 at the end of a file
  IFS= read -r -d '' text <"$root/pyproject.toml" || :
  [[ $stamp == "$venv"$'\n'"$root"$'\n'"$text" ]]
}

# --- finding a Python: only when .venv has to be made or changed -----------------------------------------------------

python=()         # how to start it
container=('' '') # command and image, if it lives in one
library_path=''   # what a module's Python needs to find its own libpython

# -I: a PYTHONHOME of the user's shell is another Python's.
runs() { "$@" -I -c "$PROBE" >/dev/null 2>&1; }
makes_venvs() { "$@" -I -c "$PROBE_VENV" >/dev/null 2>&1; }

# asked_python: a wrong HARNESS_PYTHON is an error: no other Python is tried.
asked_python() {
  if ! command -v -- "$HARNESS_PYTHON" >/dev/null; then
    say "HARNESS_PYTHON=$HARNESS_PYTHON: there is no such program."
    exit 2
  elif ! runs "$HARNESS_PYTHON"; then
    say "HARNESS_PYTHON=$HARNESS_PYTHON is $("$HARNESS_PYTHON" --version 2>&1 || :); the harness needs Python 3.10 or newer."
    exit 2
  fi
  python=("$HARNESS_PYTHON")
}

# python_on_path TEST...: the first name that is new enough and passes.
python_on_path() {
  local name
  for name in "${NAMES[@]}"; do
    if command -v "$name" >/dev/null && runs "$name" && "$@" "$name"; then
      python=("$name")
      return 0
    fi
  done
  return 1
}

# site_files WORD...: first the files that a word or HARNESS_SITE may name, then all others: a module or an image exists
# only on its own site.
site_files() {
  local word
  for word in "$@" "${HARNESS_SITE-}"; do
    [[ $word != --*=* ]] || word=${word#*=}
    [[ $word == *.y*ml || $word == */* ]] || word=$root/configs/sites/$word.yaml
    [[ $word != *.y*ml || ! -f $word ]] || printf '%s\0' "$word"
  done
  printf '%s\0' "$root"/configs/sites/*.yaml
}

# field FILE NAME: a field of a site file without a YAML parser; `container.image` is one level down.
field() {
  local name=${2#*.} lines='/^[a-z]/'
  [[ $2 != *.* ]] || lines="/^${2%%.*}:/,/^[a-z]/ s/^  /@/; /^@/"
  sed -n -E "$lines s/^@?$name: *([^#]*[^# ]) *(#.*)?\$/\\1/p" "$1" | tr -d "\"'"
}

# expanded TEXT: $NAME and ${NAME} from the environment, nothing else: a site file is not a program.
expanded() {
  local text=$1 name
  while [[ $text =~ \$\{?([A-Za-z_][A-Za-z0-9_]*)\}? ]]; do
    name=${BASH_REMATCH[1]}
    text=${text/"${BASH_REMATCH[0]}"/"${!name-}"}
  done
  printf '%s' "$text"
}

python_of_a_module() {
  local file name found
  # The module command is a shell function, often missing in scripts, and rarely written for `set -u`.
  set +eu
  # shellcheck disable=SC1091  # the machine's own files
  command -v module >/dev/null || . /etc/profile.d/modules.sh 2>/dev/null || . /etc/profile.d/lmod.sh 2>/dev/null
  while IFS= read -r -d '' file; do
    name=$(field "$file" python_module)
    if [ -z "$name" ] || ! command -v module >/dev/null; then continue; fi
    found=$(module load "$name" >/dev/null 2>&1 && command -v python3 && printf '%s' "${LD_LIBRARY_PATH-}") || continue
    if LD_LIBRARY_PATH=${found#*$'\n'} runs "${found%%$'\n'*}"; then
      python=("${found%%$'\n'*}")
      library_path=${found#*$'\n'}
      [ "$library_path" != "$found" ] || library_path=''
      say "using Python of the module $name."
      break
    fi
  done < <(site_files "$@")
  set -eu
  [ ${#python[@]} -gt 0 ]
}

python_in_a_container() {
  local file tool image runtime
  while IFS= read -r -d '' file; do
    image=$(expanded "$(field "$file" container.image)")
    tool=$(field "$file" container.command)
    runtime=$(field "$file" container.runtime)
    [[ $runtime != pyxis && $runtime != none ]] || continue # these start nothing here
    if [ -f "$image" ] && command -v "${tool:=${runtime:-singularity}}" >/dev/null; then
      container=("$tool" "$image")
      python=("$tool" exec --bind "$root" --bind "${venv%/*}" "$image" python3)
      runs "${python[@]}" || continue
      say "using Python inside $image."
      return 0
    fi
  done < <(site_files "$@")
  container=('' '')
  return 1
}

# python_of_debian: a bare Debian has python3 without venv and pip, or no Python; root can install them.
python_of_debian() {
  [ "${EUID:-1}" = 0 ] && command -v apt-get >/dev/null || return 1
  say "installing Debian's python3 and python3-venv with apt-get, because no Python here can make virtual environments …"
  local said install=(apt-get -o DPkg::Lock::Timeout=300 -y -qq --no-install-recommends install python3 python3-venv)
  export DEBIAN_FRONTEND=noninteractive
  if said=$({ "${install[@]}" || { apt-get -qq update && "${install[@]}"; }; } 2>&1 </dev/null); then
    python_on_path makes_venvs
  else
    say "apt-get failed: ${said##*$'\n'}"
    return 1
  fi
}

find_python() {
  if [ -n "${HARNESS_PYTHON-}" ]; then
    asked_python
  elif ! python_on_path makes_venvs && ! python_of_a_module "$@" && ! python_of_debian &&
    ! python_on_path true && ! python_in_a_container "$@"; then
    say "no Python 3.10 or newer is here: load a module that has one, or set HARNESS_PYTHON to its path."
    exit 1
  fi
}

# barrier_to FILE: sets `file` to the target of its links, and `barrier` to the folder that we may not enter, or to the
# file that we may not run; fails where there is no barrier, also where the file does not exist.
barrier_to() {
  local folder='' part rest
  file=$1
  while [ -L "$file" ]; do
    rest=$(readlink -- "$file")
    [[ $rest == /* ]] || rest=${file%/*}/$rest
    file=$rest
  done
  rest=${file#/}
  while [[ $rest == */* ]]; do
    part=${rest%%/*} rest=${rest#*/}
    folder+=/$part
    [ ! -d "$folder" ] || [ -x "$folder" ] || { barrier=$folder && return 0; }
  done
  barrier=$file
  [ -e "$file" ] && [[ ! -r $file || ! -x $file ]]
}

# reachable: refuses another user's .venv that we may not use. To make it again would fail with an unclear message.
reachable() {
  local file barrier place again own=''
  printf -v place %q "$venv" # the commands shown must work also with blanks in a path
  printf -v again 'HARNESS_PYTHON=/usr/bin/python3 bash %q --install train' "$root/slurm.sh"
  [ -z "${HARNESS_VENV-}" ] || printf -v own 'HARNESS_VENV=%q ' "$HARNESS_VENV"
  if barrier_to "$venv/harness-python"; then
    say "$venv belongs to another user, and you may not use $barrier: its owner can open it with chmod -R a+rX $place"
  elif [ ! -e "$venv/harness-container" ] && [ -L "$venv/bin/python" ] && barrier_to "$venv/bin/python"; then
    say "$venv was made with the Python $file, which you may not run ($barrier is closed to you): its owner makes it" \
      "again with one that all users may run: rm -r $place, then for example $own$again"
  else
    return 0
  fi
  say "Until then, set HARNESS_VENV=~/harness-venv to use your own."
  exit 1
}

# ensure PART...: .venv has these parts when this returns.
ensure() {
  local part stale='' BASH_ENV='' ENV='' # a Python or an apt-get that is a script must not run the user's file first
  for part in launcher "$@"; do current "$part" || stale=yes; done
  [ -n "$stale" ] || return 0
  reachable
  find_python "${arguments[@]+"${arguments[@]}"}"
  [ -z "$library_path" ] || python=(env "LD_LIBRARY_PATH=$library_path" "${python[@]}")
  "${python[@]}" -I "$root/scripts/bootstrap" "$root" "$venv" "$library_path" "${container[@]}" "$@" </dev/null || exit $?
}

# place_venv: sets `venv`: beside this file, or the place that HARNESS_VENV names.
place_venv() {
  venv=$root/.venv
  [ -n "${HARNESS_VENV-}" ] || return 0
  local asked=${HARNESS_VENV%/}
  [[ $asked != */* ]] || mkdir -p -- "${asked%/*}/" 2>/dev/null || :
  if ! place_of "$asked"; then
    say "HARNESS_VENV=$HARNESS_VENV: its folder is closed to you, or does not exist and cannot be made."
    exit 1
  fi
  venv=$folder/$name
}

main() {
  arguments=("$@")
  place_of "${BASH_SOURCE[0]}"
  root=$folder
  unset HARNESS_COURSE # it is set only where there is such a file
  if [ -e "$root/configs/course.env" ]; then
    # shellcheck disable=SC1091  # checked on its own
    . "$root/scripts/bootstrap/course.sh"
    read_course "$root/configs/course.env" "$root"
  fi
  place_venv
  if [ "${1-}" = --install ]; then
    shift
    ensure "$@"
    exit 0
  fi
  ensure
  if ! current train; then
    local code=0
    set +e # as a condition, the command would not stop at an error
    (set -e; start "$@")
    code=$?
    set -e
    [ "$code" -eq "$NEEDS_TRAINING" ] || exit "$code"
    ensure train
  fi
  start "$@"
}

# start ARG...: hands over to Python, and does not return where Python lives outside of a container.
start() {
  # -I: neither the current folder nor a module's PYTHONPATH may put another package before ours.
  local command=("$venv/harness-python" -I)
  # In another user's checkout Python cannot store compiled files, and would compile at every start.
  [ -w "$root/harness" ] || [ ! -w "$venv" ] || command+=(-X "pycache_prefix=$venv/pycache")
  command+=(-m harness "$@")
  if [ -e "$venv/harness-container" ]; then
    # shellcheck disable=SC1091  # checked on its own
    . "$root/scripts/bootstrap/relay.sh"
    with_host_slurm "$root/scripts/bootstrap" "${command[@]}"
  else
    exec "${command[@]}"
  fi
}

main "$@"
