#!/usr/bin/env bash
# A throw-away Slurm on this machine for the tests: a controller, and nodes that are as far apart as on a cluster,
# each with a host name, an /etc/hosts and a network of its own. A wrong rendezvous address fails here as it would there.
#
#   cluster.sh install [--accounting]    the packages (root; nothing to do where they are)
#   cluster.sh start DIR [options]       up and idle when it returns
#       --nodes N       (2)              node1 … nodeN
#       --gpus N        (4)              pretended, per node; CUDA_VISIBLE_DEVICES is set, no device is behind it
#       --cpus N        (16)             pretended, per node
#       --last C:G:M                     CPUs, GPUs and MiB of the last node, which differs from the others
#       --accounting                     mariadbd and slurmdbd: accounts, QOS and sacct work
#       --rate R                         link speed of every node, as tc writes it (200mbit); default: unlimited
#   cluster.sh rate DIR R|none           change the link speed while it runs
#   cluster.sh stop DIR                  end exactly what start began, by process id
#   cluster.sh logs DIR
# Exit codes: 3 when this machine does not allow it, 1 when it should have worked.
#
# Everything lives in DIR; `export SLURM_CONF=DIR/etc/slurm.conf` points sbatch & co. to it. Several clusters may
# run at once: each takes a free slot (bridge, subnet, ports). It starts the Slurm that is
# first on PATH: 22.05 of Debian 12, or one of scripts/fetch-slurm with PATH=FOLDER/bin:$PATH.
set -euo pipefail
export LC_ALL=C PATH=$PATH:/usr/sbin:/sbin

readonly SLOTS=40
readonly CLUSTER=testcluster
WHO=$(id -un)
HOST=$(hostname -s)
# shellcheck disable=SC2034 # cluster_files.sh reads them
NODES=2 GPUS=4 CPUS=16 MEMORY_MIB=8000 LAST='' ACCOUNTING=no RATE=none

say() { printf 'cluster: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 1
}
cannot() { # not a fault of the tests: this machine does not allow it
  say "$*"
  exit 3
}
usage() {
  sed -n '5,17s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

# A zombie is dead: where process 1 reaps late, `kill -0` still finds it.
alive() {
  local state
  state=$(awk '/^State:/ {print $2}' "/proc/$1/status" 2>/dev/null) || return 1
  [[ -n $state && $state != Z ]]
}

# tests/waiting.py says how slow this machine is; no limit of a wait is a claim about speed.
SLOWNESS=${HARNESS_TESTS_SLOWNESS:-1}
SLOWNESS=${SLOWNESS%.*}

wait_for() { # SECONDS COMMAND…
  local end=$((SECONDS + $1 * SLOWNESS))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS <= end)) || return 1
    sleep 0.05
  done
}

# A job's own SLURM_* (the tests may run inside an allocation) would steer these clients wrongly.
forget_outer_job() {
  local name
  for name in $(compgen -e); do
    case $name in SLURM_* | SLURMD_* | SBATCH_* | SRUN_* | SALLOC_* | SQUEUE_* | SINFO_* | SCANCEL_*) unset "$name" ;; esac
  done
}

# --- packages ---------------------------------------------------------------------------------------------------

install_packages() {
  local pair wanted=() needs=(munged:munge slurmctld:slurmctld slurmd:slurmd sbatch:slurm-client ip:iproute2)
  [[ $ACCOUNTING == no ]] || needs+=(slurmdbd:slurmdbd mariadbd:mariadb-server-core)
  for pair in "${needs[@]}"; do
    command -v "${pair%%:*}" >/dev/null || wanted+=("${pair##*:}")
  done
  ((${#wanted[@]})) || return 0
  [[ $(id -u) == 0 ]] || cannot "not root, and not installed: ${wanted[*]}"
  command -v apt-get >/dev/null || cannot "no apt-get, and not installed: ${wanted[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get -o DPkg::Lock::Timeout=300 update -qq >&2 || say "apt-get update failed; trying what is known"
  apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "${wanted[@]}" >&2 ||
    cannot "apt-get could not install ${wanted[*]}"
}

# --- configuration ----------------------------------------------------------------------------------------------

# shellcheck source=/dev/null
. "$(dirname -- "${BASH_SOURCE[0]}")/cluster_files.sh"

node_address() { echo "$SUBNET.$((10 + $1))"; }

# The bridge is the lock: of two that start at once, one gets the slot.
take_slot() {
  local slot port
  for ((slot = 0; slot < SLOTS; slot++)); do
    BRIDGE=slurmt$slot SUBNET=10.213.$((100 + slot)) PORT=$((16800 + 20 * slot))
    for port in "$PORT" "$((PORT + 1))"; do
      ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || continue 2
    done
    if ip link add "$BRIDGE" type bridge 2>/dev/null; then
      echo "$BRIDGE" >"$DIR/run/bridge"
      ip addr add "$SUBNET.1/24" dev "$BRIDGE"
      ip link set "$BRIDGE" up
      return 0
    fi
  done
  cannot "no free slot among $SLOTS, or no right to make a bridge"
}

# --- daemons ----------------------------------------------------------------------------------------------------

start_munged() {
  munged --force --num-threads=2 --key-file="$DIR/etc/munge.key" --socket="$DIR/run/munge.sock" \
    --pid-file="$DIR/run/munged.pid" --log-file="$DIR/log/munged.log" --seed-file="$DIR/run/munge.seed"
  wait_for 120 munge -S "$DIR/run/munge.sock" -n || die "munged does not answer: $(tail -n 3 "$DIR/log/munged.log")"
}

# No TCP and no passwords: a throw-away database behind a socket in a directory of our own. The system tables are
# made by hand because mariadb-install-db would need one more package. A server that starts removes all temporary tables
# of its tmpdir: in /tmp those of another cluster too.
start_database() {
  local socket=$DIR/run/mysql.sock log=$DIR/log/mariadbd.log
  local server=(mariadbd --no-defaults "--user=$WHO" "--datadir=$DIR/db" "--tmpdir=$DIR/db.tmp" --performance-schema=off
    --skip-networking --innodb-buffer-pool-size=64M --innodb-log-file-size=16M --innodb-flush-log-at-trx-commit=0
    --innodb-lock-wait-timeout=900)
  mkdir "$DIR/db" "$DIR/db.tmp"
  { printf 'create database mysql;\nuse mysql;\n' && cat /usr/share/mysql/mysql_system_tables.sql; } |
    "${server[@]}" --bootstrap >"$log" 2>&1 || die "mariadbd: $(tail -n 3 "$log")"
  setsid "${server[@]}" --skip-grant-tables --socket="$socket" --pid-file="$DIR/run/mariadbd.pid" \
    >>"$log" 2>&1 </dev/null &
  wait_for 120 test -S "$socket" || die "mariadbd did not come up: $(tail -n 3 "$log")"
}

start_slurmdbd() {
  (
    umask 077
    cat >"$DIR/etc/slurmdbd.conf" <<CONF
DbdHost=$HOST
DbdAddr=$SUBNET.1
DbdPort=$((PORT + 1))
SlurmUser=$WHO
AuthType=auth/munge
AuthInfo=socket=$DIR/run/munge.sock
PidFile=$DIR/run/slurmdbd.pid
LogFile=$DIR/log/slurmdbd.log
DebugLevel=verbose
$(plugins)
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct_db
CONF
  )
  MYSQL_UNIX_PORT=$DIR/run/mysql.sock slurmdbd
  # A refused sacctmgr waits for seconds: ask the port first.
  wait_for 120 bash -c "exec 3<>/dev/tcp/$SUBNET.1/$((PORT + 1))" || true
  wait_for 120 sacctmgr -n show cluster || die "slurmdbd does not answer: $(tail -n 3 "$DIR/log/slurmdbd.log")"
  accounts add cluster "$CLUSTER"
}

accounts() { # sacctmgr says on its standard output why it refuses
  local said
  said=$(sacctmgr -i -Q "$@" 2>&1) || die "sacctmgr $*: $said"
}

add_accounts() {
  local who=("user" "$WHO" "Cluster=$CLUSTER" "Account=demo" "DefaultAccount=demo" "QOS=normal,debug" "DefaultQOS=normal")
  accounts add qos debug MaxWall=30 MaxTRESPerUser=gres/gpu=4
  accounts add account demo "Cluster=$CLUSTER" Description=demo Organization=demo
  # root is there from the beginning and is changed, anybody else is added
  sacctmgr -i -Q add "${who[@]}" >/dev/null 2>&1 ||
    accounts modify user "$WHO" where "Cluster=$CLUSTER" Account=demo set QOS=normal,debug DefaultQOS=normal
}

# slurmd inside new UTS, mount and network namespaces; its end of the cable is put in from outside.
start_node() {
  local i=$1 name=node$1 pid
  # shellcheck disable=SC2016  # expanded by the inner shell
  unshare --uts --mount --net bash -c '
    set -e
    hostname "$1"
    mount --bind "$2" /etc/hosts
    ip link set lo up
    for _ in {1..6000}; do ! ip link show eth0 >/dev/null 2>&1 || break; sleep 0.02; done
    ip addr add "$3/24" dev eth0
    ip link set eth0 up
    exec slurmd -d "$(command -v slurmstepd)" -N "$1"' - "$name" "$DIR/etc/hosts" "$(node_address "$i")" </dev/null >>"$DIR/log/$name.out" 2>&1 &
  pid=$!
  wait_for 60 own_network "$pid" || die "$name: no network namespace: $(cat "$DIR/log/$name.out")"
  readlink "/proc/$pid/ns/net" >"$DIR/run/$BRIDGE-$i.network" # with its cable, slurmd starts, and this process ends
  ip link add "$BRIDGE-$i" type veth peer name eth0 netns "$pid"
  ip link set "$BRIDGE-$i" master "$BRIDGE" up
  wait "$pid" || die "$name: $(cat "$DIR/log/$name.out")"
}

own_network() { [[ $(readlink "/proc/$1/ns/net") != "$(readlink /proc/self/ns/net)" ]]; }

# On our end of each cable, so it slows what goes to a node: on both ends would count everything twice.
set_rate() {
  local cable bridge
  bridge=$(<"$DIR/run/bridge")
  for cable in "/sys/class/net/$bridge/brif/"*; do
    cable=${cable##*/}
    if [[ $1 == none ]]; then
      tc qdisc del dev "$cable" root 2>/dev/null || true
    else
      tc qdisc replace dev "$cable" root tbf rate "$1" burst 128kb latency 200ms || die "--rate $1: tc refused it"
    fi
  done
}

# sinfo -t idle would count nodes that are still completing.
all_idle() { [[ $(sinfo -h -N -p gpu -o '%N %T' 2>/dev/null | grep -c ' idle$') == "$NODES" ]]; }

wait_idle() {
  wait_for 120 all_idle && return 0
  sinfo -N -l >&2 || true
  tail -n 15 "$DIR"/log/slurm*.log >&2
  die "not all nodes are idle after $((120 * SLOWNESS)) s"
}

start() {
  local i began=${EPOCHREALTIME/./}
  [[ $(id -u) == 0 ]] || cannot "not root: namespaces and bridges need it"
  [[ $DIR != *[[:space:],\;\#]* ]] || die "$DIR: slurm.conf cannot hold such a path"
  unshare --uts --mount --net true 2>/dev/null || cannot "this machine allows no namespaces"
  [[ ! -e $DIR/etc ]] || die "$DIR: has a cluster in it already"
  mkdir -p "$DIR"/{etc,run,log,state,spool,dev,cgroup}
  chmod 755 "$DIR" "$DIR"/{etc,run,log,state,dev}
  trap 'code=$?; ((code == 0)) || stop' EXIT
  trap 'exit 143' TERM
  trap 'exit 130' INT
  take_slot
  write_configuration
  start_munged
  if [[ $ACCOUNTING == yes ]]; then
    start_database
    start_slurmdbd
  fi
  slurmctld
  for ((i = 1; i <= NODES; i++)); do start_node "$i"; done
  wait_idle
  [[ $ACCOUNTING == no ]] || add_accounts
  [[ $RATE == none ]] || set_rate "$RATE"
  srun -Q -N"$NODES" --ntasks-per-node=1 -t1 true || die "srun over $NODES nodes does not work"
  wait_idle
  say "up in $(((${EPOCHREALTIME/./} - began) / 1000)) ms: $(sinfo -h -p gpu -o '%N, %c CPUs, %G each')"
}

# --- the end ----------------------------------------------------------------------------------------------------

daemons() { # those named, where they still run
  local name pid
  for name in "$@"; do
    [[ -s $DIR/run/$name.pid ]] || continue
    pid=$(<"$DIR/run/$name.pid")
    # the number may be another's by now
    case $(readlink "/proc/$pid/exe" 2>/dev/null) in */slurm* | */munged* | */mariadbd*) echo "$pid" ;; esac
  done
}

# Whatever lives in a node's network: slurmd, steps that outlive it, tasks that outlive those. The cable goes with
# the network, so as long as it is there the number cannot be another's.
node_processes() {
  local file folder network
  for file in "$DIR"/run/*.network; do
    [[ -s $file && -e /sys/class/net/$(basename "$file" .network) ]] || continue
    network=$(<"$file")
    for folder in /proc/[0-9]*; do
      [[ $(readlink "$folder/ns/net" 2>/dev/null) != "$network" ]] || echo "${folder#/proc/}"
    done
  done
}

none_alive() {
  local pid
  for pid in "$@"; do ! alive "$pid" || return 1; done
}

end() { # SIGNAL PID…
  local signal=$1
  shift
  (($#)) || return 0
  kill "-$signal" "$@" 2>/dev/null || true
  wait_for 10 none_alive "$@" || kill -KILL "$@" 2>/dev/null || true
}

# The controller first, so that nothing new starts; the jobs need no time to end, their output is not read.
stop() {
  local name pids cable
  [[ -d $DIR/run ]] || return 0
  for name in slurmctld nodes slurmdbd mariadbd munged; do
    if [[ $name == nodes ]]; then
      mapfile -t pids < <(node_processes)
      end KILL "${pids[@]}"
    else
      mapfile -t pids < <(daemons "$name")
      end TERM "${pids[@]}"
    fi
  done
  # A connection that nobody answers keeps a node's network for minutes, and with it the cable, after all have ended.
  for cable in "$DIR"/run/*.network; do
    [[ ! -e $cable ]] || ip link del "$(basename "$cable" .network)" 2>/dev/null || true
  done
  if [[ -s $DIR/run/bridge ]]; then
    ip link del "$(<"$DIR/run/bridge")" 2>/dev/null || true
  fi
  rm -f "$DIR"/run/{*.pid,*.network,bridge}
  say stopped
}

# --- words ------------------------------------------------------------------------------------------------------

command=${1:-}
shift || usage
case $command in
install) DIR=. ;;
start | stop | rate | logs)
  [[ -n ${1:-} ]] || usage
  DIR=$(realpath -m -- "$1")
  shift
  ;;
*) usage ;;
esac
if [[ $command == rate ]]; then
  RATE=${1:?none, or a speed as tc writes it}
  shift
fi
while (($#)); do
  case $1 in
  --accounting) ACCOUNTING=yes ;;
  --nodes | --gpus | --cpus)
    [[ ${2:-} =~ ^[0-9]+$ ]] || die "$1: a number is needed"
    declare "$(tr -d - <<<"${1^^}")=$2"
    shift
    ;;
  --last)
    [[ ${2:-} =~ ^[0-9]+:[0-9]+:[0-9]+$ ]] || die "--last: CPUs, GPUs and MiB are needed, as 8:2:4000"
    # shellcheck disable=SC2034 # cluster_files.sh reads it
    LAST=$2
    shift
    ;;
  --rate)
    RATE=${2:?--rate: a speed is needed}
    shift
    ;;
  *) usage ;;
  esac
  shift
done
forget_outer_job
export SLURM_CONF=$DIR/etc/slurm.conf
case $command in
install) install_packages ;;
start) start ;;
stop) stop ;;
rate) set_rate "$RATE" ;;
logs) tail -n +1 "$DIR"/log/* ;;
esac
