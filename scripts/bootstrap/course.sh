#!/usr/bin/env bash
# Reads configs/course.env, the settings that all users of a shared checkout have in common. It is data, not a script:
# nothing in it is run, and only $NAME and ${NAME} are replaced. Sourced by slurm.sh where there is such a file.

readonly COURSE_KEYS=(HARNESS_VENV HARNESS_RUNS HARNESS_SITE HARNESS_COURSE_FOLDER HARNESS_REFERENCES HARNESS_PYTHON HARNESS_PIP_ARGS)

# read_course FILE ROOT: exports what the file sets and the environment does not, and which names that were in
# HARNESS_COURSE. A wrong line ends the start, also where the environment has a value: it is wrong for all others.
# Only a missing variable of this user is not an error then.
read_course() {
  local file=$1 root=$2 line key value number=0
  local -A seen=()
  HARNESS_COURSE=''
  if [ ! -f "$file" ]; then
    say "$file: is no file: write NAME=VALUE lines into one, as in configs/course.env.example"
    exit 2
  elif [ ! -r "$file" ]; then
    say "$file: cannot be read: its owner makes it readable with chmod a+r"
    exit 2
  fi
  while IFS= read -r line || [ -n "$line" ]; do
    number=$((number + 1))
    trim "${line%$'\r'}"
    line=$REPLY
    [[ -n $line && $line != '#'* ]] || continue
    [[ $line =~ ^(export[[:space:]]+)?([A-Za-z_][A-Za-z0-9_]*)[[:space:]]*=(.*)$ ]] ||
      wrong "$line" "is not a setting: write NAME=VALUE, as in HARNESS_RUNS=/scratch/\$USER/runs"
    key=${BASH_REMATCH[2]} value=${BASH_REMATCH[3]}
    [[ " ${COURSE_KEYS[*]} " == *" $key "* ]] ||
      wrong "$key" "is not known: there are ${COURSE_KEYS[*]}"
    [ -z "${seen[$key]-}" ] || wrong "$key" "is given twice, first in line ${seen[$key]}"
    seen[$key]=$number
    read_value "$key" "$value"
    if [[ -n $REPLY && -z ${!key+set} ]]; then
      export "$key=$REPLY"
      HARNESS_COURSE+=" $key"
    fi
  done <"$file"
  export HARNESS_COURSE
}

# wrong WHAT WHY: prints them with file and line, and exits.
wrong() {
  say "$file line $number: $1 $2"
  exit 2
}

# Like `read`, the next two functions set REPLY to their result: $(…) would start a process for every line.
trim() {
  REPLY=${1#"${1%%[![:space:]]*}"}
  REPLY=${REPLY%"${REPLY##*[![:space:]]}"}
}

# read_value KEY TEXT: without quotes and comment, variables replaced, a path made whole.
read_value() {
  local key=$1 text replaced='' name found before after
  trim "$2"
  text=$REPLY
  if [[ $text =~ ^\"([^\"]*)\"[[:space:]]*(#.*)?$ || $text =~ ^\'([^\']*)\'[[:space:]]*(#.*)?$ ]]; then
    text=${BASH_REMATCH[1]}
  else
    trim "${2%%[[:space:]]#*}" # of the untrimmed text: a comment may be all there is
    text=$REPLY
    [[ $text != [\"\']* ]] || wrong "$key" "has a quote that does not end, or text behind it"
  fi
  [[ ! $text =~ ^~(/|$) ]] || text="\$HOME${text:1}"
  while [[ $text =~ ^([^$]*)\$(\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))(.*)$ ]]; do
    name=${BASH_REMATCH[3]}${BASH_REMATCH[4]} before=${BASH_REMATCH[1]} after=${BASH_REMATCH[5]}
    found=''
    ! is_theirs "$name" || found=${!name-}
    [[ -n $found || -n ${!key+set} ]] || wrong "$key" "needs \$$name, which is not set here: set it, or set $key itself"
    replaced+=$before$found text=$after
  done
  [[ $text != *\$* && $text != *\`* ]] ||
    wrong "$key" "has '$text': only \$NAME and \${NAME} are replaced, and no command is run"
  text=$replaced$text
  case $key in
  HARNESS_VENV | HARNESS_RUNS | HARNESS_COURSE_FOLDER | HARNESS_REFERENCES) [[ -z $text || $text == /* ]] || text=$root/$text ;;
  HARNESS_SITE) [[ $text == /* || ($text != */* && $text != *.y*ml) ]] || text=$root/$text ;;
  HARNESS_PYTHON) [[ $text != */* || $text == /* ]] || text=$root/$text ;;
  esac
  REPLY=$text
}

# is_theirs NAME: is this variable of the user's environment, and not one that slurm.sh itself uses?
is_theirs() {
  local said
  case $1 in UID | EUID | HOSTNAME) return 0 ;; esac # bash knows these, exported or not
  said=$(declare -p "$1" 2>/dev/null) || return 1
  said=${said#declare -}
  [[ ${said%%[[:space:]]*} == *x* ]]
}
