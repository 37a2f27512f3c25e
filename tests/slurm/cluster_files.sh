#!/usr/bin/env bash
# The files from which the daemons of cluster.sh start: it sources this one and calls write_configuration.
# shellcheck disable=SC2153,SC2154 # DIR, NODES and their like are cluster.sh's

# The line that names Slurm's folder of plugins, beside the programs that PATH has: an unpacked Slurm is not where it was
# built for.
plugins() {
  local folder
  folder=$(realpath -m "$(realpath "$(command -v slurmctld)")/../../lib/$(uname -m)-linux-gnu/slurm-wlm")
  [[ ! -d $folder ]] || echo "PluginDir=$folder"
}

# CPUs, GPUs and MiB of node number $1.
resources() {
  if [[ $1 == "$NODES" && -n $LAST ]]; then echo "${LAST//:/ }"; else echo "$CPUS $GPUS $MEMORY_MIB"; fi
}

# One device node per GPU: Slurm 22.05 leaves a node INVAL with a bare Count, leaves CUDA_VISIBLE_DEVICES empty with
# a plain file, and dies of the same file twice. Nothing opens them.
make_gpus() {
  local i gpus most files
  read -r _ most _ < <(resources "$NODES")
  ((most > GPUS)) || most=$GPUS
  for ((i = 0; i < most; i++)); do
    mknod "$DIR/dev/gpu$i" c 1 3 || cannot "no right to make device nodes, so no pretended GPUs"
  done
  echo AutoDetect=off
  for ((i = 1; i <= NODES; i++)); do
    read -r _ gpus _ < <(resources "$i")
    ((gpus > 0)) || continue
    files=$(seq -s , -f "$DIR/dev/gpu%g" 0 "$((gpus - 1))")
    echo "NodeName=node$i Name=gpu Type=test File=$files"
  done
}

write_hosts() {
  local i
  printf '127.0.0.1 localhost\n%s %s\n' "$SUBNET.1" "$HOST"
  # The second form is what PyTorch's sockets look up when they ask who is at the other end.
  for ((i = 1; i <= NODES; i++)); do printf '%s node%s\n' "$(node_address "$i")" "$i" "::ffff:$(node_address "$i")" "$i"; done
}

write_slurm_conf() {
  local i cpus gpus mib gres
  cat <<CONF
ClusterName=$CLUSTER
SlurmctldHost=$HOST($SUBNET.1)
SlurmctldPort=$PORT
SlurmUser=$WHO
SlurmdUser=$WHO
AuthType=auth/munge
AuthInfo=socket=$DIR/run/munge.sock
CredType=cred/munge
StateSaveLocation=$DIR/state
SlurmdSpoolDir=$DIR/spool/%n
SlurmctldPidFile=$DIR/run/slurmctld.pid
SlurmdPidFile=$DIR/run/slurmd-%n.pid
SlurmctldLogFile=$DIR/log/slurmctld.log
SlurmdLogFile=$DIR/log/slurmd-%n.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
MailProg=/bin/true
$(plugins)
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=0
SlurmdParameters=config_overrides
EnforcePartLimits=ALL
ReturnToService=2
KillWait=90
MinJobAge=3600
InactiveLimit=0
SlurmctldTimeout=30
SlurmdTimeout=30
MessageTimeout=30
TCPTimeout=10
BatchStartTimeout=120
UnkillableStepTimeout=600
GresTypes=gpu
TopologyPlugin=topology/tree
CONF
  if [[ $ACCOUNTING == yes ]]; then
    cat <<CONF
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=$SUBNET.1
AccountingStoragePort=$((PORT + 1))
AccountingStoragePass=$DIR/run/munge.sock
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu
CONF
  else
    printf '%s\n' JobAcctGatherType=jobacct_gather/none AccountingStorageType=accounting_storage/none
  fi
  for ((i = 1; i <= NODES; i++)); do
    read -r cpus gpus mib < <(resources "$i")
    gres=
    ((gpus == 0)) || gres=Gres=gpu:test:$gpus
    printf 'NodeName=node%s NodeHostname=node%s NodeAddr=%s Port=%s CPUs=%s RealMemory=%s %s\n' \
      "$i" "$i" "$(node_address "$i")" "$((PORT + 1 + i))" "$cpus" "$mib" "$gres"
  done
  echo "PartitionName=gpu Nodes=ALL Default=YES MaxTime=1-0 State=UP"
  echo "PartitionName=short Nodes=node1 MaxTime=10 State=UP"
}

# A switch above each node, and one above all.
write_topology() {
  local i
  for ((i = 1; i <= NODES; i++)); do printf 'SwitchName=leaf%s Nodes=node%s\n' "$i" "$i"; done
  printf 'SwitchName=root Switches=leaf[1-%s]\n' "$NODES"
}

write_configuration() {
  write_hosts >"$DIR/etc/hosts"
  make_gpus >"$DIR/etc/gres.conf"
  write_slurm_conf >"$SLURM_CONF"
  write_topology >"$DIR/etc/topology.conf"
  # 22.05 dies of cgroup v2 without systemd and has no option to ignore cgroups; v1 with a mount point of our
  # own loads everywhere and does nothing, as nothing above asks for cgroups.
  printf 'CgroupPlugin=cgroup/v1\nCgroupMountpoint=%s\n' "$DIR/cgroup" >"$DIR/etc/cgroup.conf"
  (
    umask 077
    head -c 128 /dev/urandom >"$DIR/etc/munge.key"
  )
}
