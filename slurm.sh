#!/usr/bin/env bash
# Starts the harness: makes .venv beside this file where it is missing or old, and passes every argument on.
#   bash slurm.sh -e 1                   launch an exercise (a first argument with a dash launches)
#   bash slurm.sh report last            any other first argument is a command
#   bash slurm.sh --install train test   only bring .venv up to date, with these extras of pyproject.toml
# Places, Python and options of the installation: configs/course.env.example. Reasons: docs/development/decisions/002*.
# shellcheck disable=SC1091,SC2016  # the machine's own files; sed's expressions
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # some users type `sh slurm.sh`
# What a shell has exported would spoil all scripts that start from here; scrub_environment.py says that jobs lack it.
unset HARNESS_NOT_PASSED HARNESS_COURSE dropped
! shopt -qo posix || { set +o posix && dropped+=' POSIXLY_CORRECT'; } # bash itself forgets it
for name in SHELLOPTS BASHOPTS CDPATH; do [[ ${!name@a} != *x* ]] || dropped+=" $name"; done
export -n SHELLOPTS BASHOPTS # they are read-only
unset CDPATH
for name in python3.{11,12,13,10} python3 python cd command env grep install ls mkdir printf read readlink rm sed; do
  ! declare -F "$name" >/dev/null || { unset -f "$name" && dropped+=" $name()"; }
done
[ -z "${dropped-}" ] || export HARNESS_NOT_PASSED=$dropped
set -euo pipefail +fCk
shopt -u failglob nocasematch
say() { printf '%bslurm.sh: %s\n' "${erase-}" "$*" >&2; }
fail() { say "$2" && exit "$1"; }

# read_course FILE: exports what the settings of all who share this checkout say and the environment does not, and their
# names as HARNESS_COURSE. The file is data: variables of the user are replaced, and nothing is run.
read_course() {
  local number=0 at line key value whole name
  local setting='^[[:space:]]*(export +)?(HARNESS_(VENV|RUNS|SITE|COURSE_FOLDER|REFERENCES|PYTHON|PIP_ARGS)) *=(.*)$'
  export HARNESS_COURSE=''
  [[ -f $1 && -r $1 ]] || fail 2 "$1: must be a file of lines NAME=VALUE that all may read."
  while IFS= read -r line || [ -n "$line" ]; do
    number=$((number + 1)) at="$1 line $number:" line=${line%$'\r'}
    [[ ! $line =~ ^[[:space:]]*(#|$) ]] || continue
    [[ $line =~ $setting ]] || fail 2 "$at $line is not NAME=VALUE with a name of configs/course.env.example."
    key=${BASH_REMATCH[2]} whole=''
    read -r value <<<"${BASH_REMATCH[4]%%[[:space:]]#*}" # without the blanks around it
    [[ ! $value =~ ^(\"([^\"]*)\"|\'([^\']*)\')$ ]] || value=${BASH_REMATCH[2]}${BASH_REMATCH[3]}
    [[ ! $value =~ ^~(/|$) ]] || value="\$HOME${value:1}"
    while [[ $value =~ ^([^$]*)\$([A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})(.*)$ ]]; do
      name=${BASH_REMATCH[2]//[\{\}]/} whole+=${BASH_REMATCH[1]} value=${BASH_REMATCH[3]}
      [[ -v $key || $name == UID || -v $name && ${!name@a} == *x* ]] || fail 2 "$at $key needs \$$name: it is not set."
      whole+=${!name-}
    done
    [[ $value != *[\$\`]* && $value != [\"\']* ]] || fail 2 "$at only \$NAME is replaced; a quote must end."
    whole+=$value
    [[ $whole != [!/]* || $key == HARNESS_PIP_ARGS || $key == HARNESS_@(SITE|PYTHON) && $whole != *@(/|.y*ml)* ]] ||
      whole=$root/$whole
    [[ -z $whole || -v $key ]] || { export "$key=$whole" && HARNESS_COURSE+=" $key"; }
  done <"$1"
}

# current PART...: is .venv what pyproject.toml asks for? Starts no process: students call this a hundred times a day.
current() {
  local part
  IFS= read -r -d '' stamp 2>/dev/null <"$venv/harness-stamp" || : # `read` says 1 at the end of a file
  [[ $stamp == "$text"$'\n'* && -x $venv/harness-python && -x $venv/bin/python ]] || return 1
  for part in "$@"; do [[ " ${stamp##*$'\n'} " == *" $part "* ]] || return 1; done
}

# serves PYTHON: is it new enough, and can it install? -I: a PYTHONHOME of the user's shell is another Python's.
serves() { "$1" -I -c "$PROBE" ${uv:+uv} &>>"$log"; }
readonly PROBE='import sys, importlib.util
sys.exit(sys.version_info < (3, 10) or not (sys.argv[1:] or importlib.util.find_spec("ensurepip")))'

# of_a_module WORD...: the python_module of a site's file, first of one that a word names, and its LD_LIBRARY_PATH.
of_a_module() {
  { read -r python && read -r library; } < <(
    exec 2>>"$log"
    set +eu # the command is a shell function, and rarely written for these
    command -v module >/dev/null || . /etc/profile.d/modules.sh || . /etc/profile.d/lmod.sh
    sed -n 's/^python_module: *"*\([^"# ]*\).*/\1/p' -- "${@#--site=}" "$HARNESS_SITE" "$root"/configs/sites/*.yaml |
      while read -r name; do
        ! (module load "$name" >&2 && serves python3 && command -v python3 && echo "$LD_LIBRARY_PATH") || break
      done
  ) && say "using $python of a module."
}

# find_python WORD...: sets `python`. 3.11 first: the pins of the train extra are tested with it.
find_python() {
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -y -qq -o DPkg::Lock::Timeout=300 install python3 python3-venv)
  local names=(python3.{11,12,13,10} python python3)
  [ -z "${HARNESS_PYTHON-}" ] || names=("$HARNESS_PYTHON")
  for python in "${names[@]}"; do ! serves "$python" || return 0; done
  [ -z "${HARNESS_PYTHON-}" ] || fail 2 "HARNESS_PYTHON=$python is no Python 3.10 or newer with venv (python3-venv)."
  ! of_a_module "$@" || return 0
  if [ "$EUID" = 0 ] && command -v apt-get >/dev/null; then
    say "installing Debian's python3-venv with apt-get, because no Python here can install packages …"
    { "${apt[@]}" || { apt-get -qq update && "${apt[@]}"; }; } &>>"$log" </dev/null || say "apt-get: $(tail -n1 "$log")"
  fi
  python=python3; serves "$python" || fail 1 "no Python 3.10 or newer with venv is here: load a module with one, or set HARNESS_PYTHON."
}

# fill: with uv. pip only fetches uv where it is not on PATH, and stands in where uv cannot be had or fails.
fill() {
  local settings key value values options=() pip=("$python" -I -m pip --python "$venv/bin/python")
  [ ! -e "$root/configs/course.env" ] || options+=(--compile-bytecode) # others cannot store compiled files
  unset "${!PYTHON@}" PIP_TARGET PIP_PREFIX PIP_ROOT PIP_PYTHON # of another Python, and of another place
  export PIP_USER=0 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_PROGRESS_BAR=off PIP_RETRIES=2
  # relocatable: uv's scripts then start the Python beside them, also in a copy.
  [ -e "$venv/bin" ] || { "$python" -I -m venv --without-pip "$venv" && echo 'relocatable=true' >>"$venv/pyvenv.cfg"; }
  settings=$("${pip[@]}" config list) || { pip=("$venv/bin/python" -I -m pip) && "$venv/bin/python" -I -m ensurepip &&
    settings=$("${pip[@]}" config list); } || [ -n "$uv" ]
  while IFS='=' read -r key value; do # pip's files and PIP_ variables: a mirror is often named only there
    read -r -a values <<<"${value//\'/}"
    [[ $key != *.index-url ]] || export UV_INDEX_URL=${values[0]}
    [[ $key != *.cert ]] || export SSL_CERT_FILE=${values[0]}
    [[ $key != *.@(extra-index-url|find-links|constraint) ]] || options+=("${values[@]/#/--${key##*.}=}")
    [[ $key != *.no-index ]] || options+=(--no-index)
  done < <(sort -r <<<"${settings//\\n/ }") # variables last: they count
  if [ -n "$uv" ] || [ -x "$venv/bin/uv" ] || xargs "${pip[@]}" install uv <<<"${HARNESS_PIP_ARGS-}"; then
    options+=(--index-strategy unsafe-best-match --python "$venv/bin/python" -r "$lock/wanted")
    ! xargs "${uv:-$venv/bin/uv}" pip install "${options[@]}" <<<"${HARNESS_PIP_ARGS-}" || return 0
  fi
  say "uv cannot install here ($(tail -n 1 "$log")): pip does." 2>&3
  xargs "${pip[@]}" install -r "$lock/wanted" <<<"${HARNESS_PIP_ARGS-}"
}

# ensure PART...: .venv has these parts when this returns, and those that the last line of its stamp lists.
ensure() {
  local what="packages for the launcher${*:+, $*}" log=$venv/harness-install.log BASH_ENV='' ENV=''
  local python='' library uv said host pid told='' part parts='' quote="'\\''" every=10 width=150 end='\n' shown=0
  ! current "$@" || return 0
  [[ -w $venv && $venv$root != *[:$'\n']* && (-e $venv/pyvenv.cfg || $(ls -A -- "$venv") == ?(harness-*)) ]] ||
    fail 1 "$venv is incomplete, and not ours to change: ask its owner, or set HARNESS_VENV=~/harness-venv."
  lock=$venv/harness-lock installer='' # a folder: many parallel file systems have no flock
  until said=$(LC_ALL=C mkdir -- "$lock" 2>&1); do
    [[ $said == *exists* ]] || fail 1 "$said; HARNESS_VENV=~/harness-venv names another place for .venv."
    read -r host pid 2>/dev/null <"$lock/owner" || host=''
    [[ -z $host || $pid == "$told" ]] || { told=$pid &&
      say "waiting for process $pid on $host, which installs into $venv (if it is dead: rm -r $lock)"; }
    [[ $host != "$(uname -n)" || -d /proc/$pid ]] || rm -rf -- "$lock"
    sleep 0.5
  done
  trap '{ kill -- "-$installer" && wait "$installer"; } 2>/dev/null || :; rm -rf -- "$lock"' EXIT
  trap 'fail 130 "Interrupted; the next start installs what is missing."' INT TERM HUP
  echo "$(uname -n) $$" >"$lock/owner"
  current || : # reads the stamp again
  for part in launcher "$@" ${stamp##*$'\n'}; do
    [[ " $parts " == *" $part "* ]] || parts+=" $part"
    sed -n -E "/^${part/#launcher/dependencies} = \[/,/^\]/ s/^ +\"([^\"]*)\".*/\1/p" "$root/pyproject.toml" |
      grep . >>"$lock/wanted" || [[ " ${stamp##*$'\n'} " == *" $part "* ]] || fail 1 "pyproject.toml has no list $part."
  done
  uv=$(command -v uv) || :
  library=$(sed -n "s/^export LD_LIBRARY_PATH='\(.*\)'/\1/p" "$venv/harness-python" 2>/dev/null) || :
  find_python "${words[@]}"
  [ -z "$library" ] || export LD_LIBRARY_PATH=$library
  # A copied environment stays if it works: if no script in it starts another one's Python.
  { "$venv/bin/python" -I -c '' 2>/dev/null && ! grep -shI '^#!/.*/python' "$venv"/bin/* | grep -qvF "#!$venv/"; } ||
    rm -rf -- "${venv:?}"/{bin,include,lib,lib64}
  printf 'building\n%s' "$parts" >"$venv/harness-stamp"
  [ ! -t 2 ] || every=1 width=79 end='' erase='\r\033[K'
  SECONDS=0
  set -m # the installer is a process group, which ends as one
  fill 3>&2 &>"$log" </dev/null &
  installer=$!
  set +m
  while kill -0 "$installer" 2>/dev/null; do
    sleep 0.2
    ((SECONDS < shown + every)) || printf '%b%.*s%b' "${erase-}" "$width" \
      "slurm.sh: $what: $((shown = SECONDS)) s ($(tail -n 1 "$log"))" "$end" >&2
  done
  wait "$installer" ||
    fail 1 "$what: $(sed -n -E -e '/^error|^ERROR|^ +×/!H' -e '//h' -e '${x;s/[[:space:]]+/ /g;p}' "$log") (all: $log)"
  for part in "$venv"/lib/python3*/site-packages; do echo "$root" >"$part/harness-checkout.pth"; done
  library=${library:+export LD_LIBRARY_PATH="'$library'"}
  printf "#!/bin/sh\n%s\nexec '%s/bin/python' \"\$@\"\n" "$library" "${venv//\'/$quote}" |
    install -m 755 /dev/stdin "$venv/harness-python"
  printf '%s\n%s' "$text" "$parts" >"$venv/harness-stamp"
  say "$what: done in $SECONDS s"
  rm -rf -- "$lock"
  trap - EXIT INT TERM HUP
}

{ # read as a whole: the file may change while a command runs
  words=("$@") file=${BASH_SOURCE[0]} status=0 parts=() stamp=''
  [ ! -L "$file" ] || file=$(readlink -f -- "$file")
  root=$(cd -P -- "${file%"${file##*/}"}." && printf '%s' "$PWD")
  [ ! -e "$root/configs/course.env" ] || read_course "$root/configs/course.env"
  venv=${HARNESS_VENV:-$root/.venv}
  venv=$({ [ -d "$venv" ] || mkdir -p -- "$venv"; } 2>/dev/null && cd -P -- "$venv" 2>/dev/null && printf %s "$PWD") ||
    fail 1 "${HARNESS_VENV:-$root/.venv} is closed to you, or cannot be made: set HARNESS_VENV=~/harness-venv."
  IFS= read -r -d '' text <"$root/pyproject.toml" || :
  text=$venv$'\n'$root$'\n'$text
  # A training on this machine, as far as its words say so; what they do not say, Python does, with status 88.
  [[ -n ${HARNESS_SITE-} || " $* " =~ \ -(h|-(help|version|dry-run|plan|explain|python|site)(=[^ ]*)?)\  ]] ||
    [[ ! " $* " =~ ^\ (-(.*\ -)?(e|-exercise)[=\ ]?[0-3]|run\ .*--)\  ]] || type -P sbatch >/dev/null || parts=(train)
  [ "${1-}" != --install ] || { ensure "${@:2}"; exit; }
  ensure "${parts[@]}"
  # -I: neither the current folder nor a module's PYTHONPATH may put another package before ours.
  command=("$venv/harness-python" -I)
  # In another user's checkout Python cannot store compiled files, and would compile at every start.
  [ -w "$root/harness" ] || [ ! -w "$venv" ] || command+=(-X "pycache_prefix=$venv/pycache")
  command+=(-m harness "$@")
  # Where torch is, Python does not say 88, and no bash waits for it: nsys would record the secrets of that bash, too.
  current train || compgen -G "$venv/lib/python3*/site-packages/torch" >/dev/null && exec "${command[@]}"
  "${command[@]}" || status=$?
  [ "$status" = 88 ] || exit "$status"
  ensure train
  exec "${command[@]}"
}
