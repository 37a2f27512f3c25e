"""Jobs as their users write them, each in two versions: as it is, and with one word before the command.

They start in a copy of tests/own/scripts. `{observe}` is the place of the word; `$TRUTH` is where a training writes
what it timed itself. `python` and the launchers are on PATH.
"""

from __future__ import annotations

from typing import NamedTuple

WORD = "training-traces observe --no-report -- "
INSIDE = "$(which training-traces) observe --no-report -- "
STEPS = 10
MORE = "--steps 10 --truth $TRUTH"


class UsersJob(NamedTuple):
    """text: the script without its first line. ranks: of each training, in the order in which they start. word: what
    stands for `{observe}`. code: the job's exit status."""

    name: str
    text: str
    ranks: tuple[int, ...] = (2,)
    word: str = WORD
    code: int = 0
    array: bool = False


MEET = """
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR=$head MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000)) GLOO_SOCKET_IFNAME=eth0
"""
BY_SLURM = "export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS"

JOBS = [
    UsersJob("torchrun", f"{{observe}}torchrun --standalone --nproc-per-node 2 plain_ddp.py {MORE}"),
    UsersJob(
        "torchrun on two nodes",
        f"""#SBATCH --nodes=2
{MEET}
srun --ntasks-per-node=1 bash -c '{{observe}}torchrun --nnodes 2 --nproc-per-node 1 --node-rank $SLURM_NODEID \\
    --master-addr $MASTER_ADDR --master-port $MASTER_PORT plain_ddp.py {MORE}'""",
    ),
    UsersJob(
        "a rank for each task",
        f"""#SBATCH --nodes=2 --ntasks-per-node=2
{MEET}
srun bash -c '{BY_SLURM}; exec {{observe}}python plain_ddp.py {MORE}'""",
        ranks=(4,),
    ),
    UsersJob(
        "the word for each task",
        f"""#SBATCH --nodes=2 --ntasks-per-node=1
{MEET}
cat > start.sh <<'END'
{BY_SLURM}
exec python plain_ddp.py {MORE}
END
srun {{observe}}bash start.sh""",
    ),
    UsersJob(
        "inside of torchrun", f"torchrun --standalone --nproc-per-node 2 {{observe}}plain_ddp.py {MORE}", word=INSIDE
    ),
    UsersJob(
        "accelerate",
        f"""export ACCELERATE_USE_CPU=true
{{observe}}accelerate launch --multi_gpu --num_processes 2 --main_process_port 29611 accelerate_loop.py {MORE}""",
    ),
    UsersJob(
        "deepspeed",
        f"""export DS_ACCELERATOR=cpu
{{observe}}deepspeed --num_accelerators 2 --master_port 29612 deepspeed_engine.py {MORE}""",
    ),
    UsersJob(
        "inside of deepspeed",
        f"""export DS_ACCELERATOR=cpu
deepspeed --num_accelerators 2 --master_port 29613 {{observe}}deepspeed_engine.py {MORE}""",
        word=INSIDE,
    ),
    UsersJob("a module", f"{{observe}}torchrun --standalone --nproc-per-node 2 -m plain_ddp {MORE}"),
    UsersJob("one process", f"{{observe}}python one_process.py {MORE}", ranks=(1,)),
    UsersJob("an array", f"#SBATCH --array=0-1\n{{observe}}python one_process.py {MORE}", ranks=(1,), array=True),
    UsersJob(
        "two trainings, one after the other",
        f"""{{observe}}python one_process.py {MORE}
{{observe}}torchrun --standalone --nproc-per-node 2 plain_ddp.py --steps 10 --truth $TRUTH.second""",
        ranks=(1, 2),
    ),
    UsersJob(
        "two trainings at once",
        f"""{{observe}}python one_process.py {MORE} &
{{observe}}python one_process.py --steps 10 --truth $TRUTH.second &
wait""",
        ranks=(1, 1),
    ),
    UsersJob(
        "srun inside of srun",
        f"""#SBATCH --nodes=2 --ntasks-per-node=1
{MEET}
cat > inner.sh <<'END'
srun --overlap --mem=60 --ntasks=2 --nodes=2 bash -c '
{BY_SLURM}; exec {{observe}}python plain_ddp.py {MORE}'
END
srun --nodes=1 --ntasks=1 --mem=20 bash inner.sh""",
    ),
    UsersJob(
        "an environment of its own",
        f"""set -euo pipefail
python -m venv --without-pip my-env
packages=$(echo my-env/lib/python3.*/site-packages)
python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$packages/more.pth"
set +u; source my-env/bin/activate
{{observe}}python one_process.py {MORE}""",
        ranks=(1,),
    ),
    UsersJob(
        "a heterogeneous job",
        f"""#SBATCH --nodes=1 --ntasks=1
#SBATCH hetjob
#SBATCH --nodes=1 --ntasks=1
export MASTER_ADDR=$(hostname) MASTER_PORT=29614 GLOO_SOCKET_IFNAME=eth0
srun --het-group=0,1 bash -c '
export RANK=$SLURM_PROCID LOCAL_RANK=0 WORLD_SIZE=2; exec {{observe}}python plain_ddp.py {MORE}'""",
    ),
    UsersJob(
        "a training that fails",
        f"{{observe}}python one_process.py {MORE} && {{observe}}python -c 'exit(3)'",
        (1,),
        code=3,
    ),
    UsersJob(
        "one that a signal ends",
        f"{{observe}}python one_process.py {MORE}; {{observe}}python -c 'import os; os.kill(os.getpid(), 11)'",
        (1,),
        code=139,
    ),
    UsersJob("with a limit", f"{{observe}}timeout 600 python one_process.py {MORE}", (1,)),
    UsersJob(
        "with a trap",
        f"""trap 'kill $!' USR1
srun --ntasks=1 {{observe}}python one_process.py {MORE} &
wait $!""",
        (1,),
    ),
    UsersJob(
        "tasks that train alone",
        f"""#SBATCH --nodes=2 --ntasks-per-node=1
srun {{observe}}python one_process.py {MORE}""",
        (1,),
    ),
    UsersJob("no Python at all", "{observe}hostname; srun {observe}true", ()),
    UsersJob(
        "a shell script with a pipe",
        f"""cat > train.sh <<'END'
python one_process.py "$@" 2>&1 | tee output.txt
exit "${{{{PIPESTATUS[0]}}}}"
END
{{observe}}bash train.sh {MORE}""",
        ranks=(1,),
    ),
    UsersJob(
        "a PYTHONPATH of its own",
        f"""mkdir mine && echo 'print("mine", flush=True)' > mine/sitecustomize.py
export PYTHONPATH=$PWD/mine
{{observe}}python one_process.py {MORE} > output.txt && grep -q mine output.txt""",
        ranks=(1,),
    ),
]
