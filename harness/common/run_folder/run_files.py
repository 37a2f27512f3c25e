"""The table of a run's files: of each its name, what it is for, who writes and who reads it. A name of a run's file is
written here and nowhere else; a type is given by the room that has it. Standard library only, as what it describes is
written by a training's processes too."""

from __future__ import annotations

from harness.common.run_folder.run_store import RunFile

Entry = RunFile[str]  # until a room gives it the type of its content

# -- what was requested ------------------------------------------------------------------------------------------------

RECORD = Entry(
    "run.json",
    "JSON",
    "the request with all its options, the site, versions and git state: enough to run it again",
    "the launch; `observe`",
    "every command that takes a run",
)
SCRIPT = Entry(
    "job.sbatch", "bash", "the script that Slurm or this machine runs", "the launch", "Slurm, people, `sbatch` by hand"
)
GROUP_SCRIPT = Entry(
    "*.sbatch", "bash", "of runs that are one submission, the script that starts each", "the launch", "Slurm"
)
PLAN = Entry(
    "plan.json",
    "JSON",
    "the numbers that were expected before it started: memory, step time, duration",
    "the launch",
    "`report`",
)
ACCELERATE_SETTINGS = Entry(
    "accelerate.yaml", "YAML", "the settings of accelerate (DDP, FSDP)", "the launch", "`accelerate launch`"
)
DS_CONFIG = Entry("ds_config.json", "JSON", "the settings of DeepSpeed", "the launch", "the training")
MODEL = Entry("model.yaml", "YAML", "the model, if no file of configs/models has it", "the launch", "the training")
OBSERVE = Entry(
    "observe.json", "JSON", "what the observer of your own training records", "the launch; `observe`", "the observer"
)
HOSTS = Entry("hostfile", "text", "the nodes, as DeepSpeed's launcher reads them", "the launch", "`deepspeed`")
NSYS_COMMANDS = Entry(
    "nsys_node*.json", "JSON", "of each node, its nsys with `--nsys-per`", "the node's program", "its ranks"
)

# -- how it runs and how it ended --------------------------------------------------------------------------------------

STATUS = Entry(
    "status.json", "JSON", "its state, when it began and ended, and how", "the job; `status`", "`ls`, `status`, `watch`"
)
NODE_STATUS = Entry(
    "node-status/*.json",
    "JSON",
    "of each node, the commands as they were started, its exit status and times",
    "the node's program",
    "`status`, `report`",
)
OUT = Entry(
    "log.out", "text", "what it printed to stdout", "the job", "`logs`, `watch`; why a run failed", kept_in="log"
)
ERR = Entry("log.err", "text", "what it printed to stderr", "the job", "as log.out", kept_in="log")
AFTER = Entry(
    "after-*.out",
    "text",
    "what a job printed that was to begin after this one",
    "Slurm",
    "`export --submit`",
    kept_in="log",
)
SCHEDULER_LOG = Entry(
    "slurm-*.out",
    "text",
    "what Slurm itself said: a cancellation, a time limit; why a script did not begin",
    "Slurm",
    "`status`",
    kept_in="logs",
)
HEARTBEATS = Entry(
    "live/*.jsonl",
    "JSON lines",
    "of each node, every two seconds: where its ranks are, and which have ended",
    "the node's monitor",
    "`watch`, `status`, `report`; why a run failed",
)
EVIDENCE = Entry(
    "live/*.stuck.json", "JSON", "of a node without progress: the stacks of its ranks", "the node's monitor", "`watch`"
)
HANG = Entry(
    "live/stuck.json",
    "JSON",
    "of a run that is or was stuck: which rank causes it, where, and what to try",
    "the first node's monitor",
    "`watch`, `status`, `logs`, `report`",
)

# -- what was recorded -------------------------------------------------------------------------------------------------

METRICS = Entry(
    "metrics/rank*.jsonl",
    "JSON lines",
    "of each rank, a line for each step: time, phases, tokens, loss, memory",
    "the training",
    "`report`, `watch`, `ls`",
)
SAME_RANK = Entry(
    "metrics/same-rank-*.txt",
    "text",
    "of each process that is a rank which another one is already, a sentence on both",
    "the training",
    "`report`, `status`",
)
ENVIRONMENT = Entry(
    "environment/*.json",
    "JSON",
    "of each node, its Python, packages, variables, modules, kernel and image, and which packages were used",
    "the training",
    "`report`, `compare`",
    most_bytes=1 << 20,  # 500 packages have some 25 kB
)
LINES = Entry(
    "lines/rank*.jsonl",
    "JSON lines",
    "of each rank, in which line of the program its main thread is",
    "the training",
    "`report`",
)
JOB_TIME = Entry(
    "job-time/rank*.jsonl",
    "JSON lines",
    "of each rank, where its time goes from the process's start to its end",
    "the training",
    "`report`",
)
INJECTED = Entry(
    "faults/rank*.jsonl",
    "JSON lines",
    "of each rank, what each `--fault` took from it",
    "the training",
    "`report`, `lesson`",
)
MEMORY_SNAPSHOTS = Entry(
    "memory/rank*.json",
    "JSON",
    "of each rank, what held its memory, with `--memory-snapshot` or `--memory`",
    "the training",
    "`report`; why a run failed",
    most_bytes=8 << 20,  # a file has some 50 kB, and with the most steps 600 kB
)
KEPT_VALUES = Entry(
    "kept/*.json",
    "JSON",
    "with `--memory`, of each rank and each process that loads its data: what keeps memory, and at which line",
    "the training",
    "`report`",
    most_bytes=1 << 20,  # a few kB
)
KINETO = Entry(
    "torch/rank*.json.gz", "trace", "of each rank, the trace of torch.profiler", "the training", "`report`, `export`"
)
NSYS_REPORTS = Entry(
    "nsys/*.nsys-rep", "trace", "of each rank or node, the report of nsys", "nsys", "`report`, `export`, Nsight Systems"
)
NSYS_EXPORTS = Entry(
    "nsys/*.sqlite", "SQLite", "the export of a report of nsys; enough without it", "nsys", "`report`, `export`"
)
CAPTURES = Entry(
    "captures/*", "JSON, traces", "what `capture` requested, and a folder for each recording", "`capture`", "`report`"
)
NCCL_LOGS = Entry("nccl/*.log", "text", "of each process, the log of NCCL, with `--nccl-debug`", "NCCL", "`report`")
MONITORS = Entry("gpus-monitor/*", "folder", "of each node, what its monitor sampled", "the monitor", "`report`")
MONITOR_META = Entry(
    "gpus-monitor/*/meta.json",
    "JSON",
    "of each node, its devices and ports, and when the monitor ran",
    "the monitor",
    "`report`",
)
MONITOR_SAMPLES = Entry(
    "gpus-monitor/*/samples.csv",
    "CSV",
    "of each node, use, memory, clock and power of its devices over time",
    "the monitor",
    "`report`, any spreadsheet",
)
MONITOR_NETWORK = Entry(
    "gpus-monitor/*/network.csv", "CSV", "of each node, the bytes of its network ports", "the monitor", "`report`"
)
MONITOR_SUMMARY = Entry(
    "gpus-monitor/*/summary.json",
    "JSON",
    "of each node, means and largest values of its samples",
    "the job's end",
    "people",
)
MONITOR_PLOTS = Entry("gpus-monitor/*/*.png", "PNG", "of each node, plots of its samples", "the job's end", "people")

CHECKPOINTS = Entry(
    "checkpoints/step_*", "PyTorch", "the newest checkpoint, with `--checkpoint-every`", "the training", "people"
)
WEIGHTS = Entry(
    "checkpoint/*",
    "Hugging Face",
    "exercise 2: a tiny model's random weights, the same for all stages of ZeRO",
    "the training",
    "the training",
)
TOKENS = Entry(
    "data/*", "Megatron", "exercise 3: the tokens of `--data`, if `--data-path` names none", "the training", "Megatron"
)

# -- results -----------------------------------------------------------------------------------------------------------

SUMMARY = Entry(
    "summary.json",
    "JSON",
    "all numbers of the report",
    "`report`; the job's end",
    "`compare`, `ls`, `whatif`, `reference`, the plan of a later launch",
)
PAGE = Entry("report.html", "HTML", "the report as a page", "`report`; the job's end", "a browser")
COLLECTIVES = Entry(
    "comm/collectives.json",
    "JSON",
    "exercise 0: the measured times of collectives",
    "the training",
    "`report` of its run, `reference`",
)
VERDICT = Entry("comm/verdict.json", "JSON", "exercise 0: the conclusion", "the training", "`report`")
COMM = Entry(
    "comm/*", "JSON, PNG", "exercise 0: other measurements, the nodes' records, plots", "the training", "its verdict"
)
EXPORTS = Entry(
    "trace*", "Paraver, Perfetto", "the run's events for another program", "`export`", "wxparaver, ui.perfetto.dev"
)
GUESS = Entry("guess.json", "JSON", "what you expected before a lesson's runs", "`lesson`", "`lesson --answer`")
ANSWER = Entry("mystery-answer.json", "JSON", "the answer to a mystery", "`lesson mystery`", "`lesson mystery`")
REVEALED = Entry(
    "mystery-revealed.json", "JSON", "the faults of a mystery after its end", "`lesson mystery`", "every command"
)
HIDDEN_FAULTS = Entry(
    ".mystery/please-do-not-look.txt",
    "text",
    "the faults of a mystery before its end",
    "`lesson mystery`",
    "the training, `lesson mystery`",
)

FILES: tuple[Entry, ...] = (
    *(RECORD, SCRIPT, GROUP_SCRIPT, PLAN, ACCELERATE_SETTINGS, DS_CONFIG, MODEL, OBSERVE, HOSTS, NSYS_COMMANDS),
    *(STATUS, NODE_STATUS, OUT, ERR, AFTER, SCHEDULER_LOG, HEARTBEATS, EVIDENCE, HANG),
    *(
        METRICS,
        SAME_RANK,
        ENVIRONMENT,
        LINES,
        JOB_TIME,
        INJECTED,
        MEMORY_SNAPSHOTS,
        KEPT_VALUES,
        KINETO,
        NSYS_REPORTS,
        NSYS_EXPORTS,
        CAPTURES,
        NCCL_LOGS,
    ),
    *(MONITORS, MONITOR_META, MONITOR_SAMPLES, MONITOR_NETWORK, MONITOR_SUMMARY, MONITOR_PLOTS),
    *(CHECKPOINTS, WEIGHTS, TOKENS),
    *(SUMMARY, PAGE, COLLECTIVES, VERDICT, COMM, EXPORTS, GUESS, ANSWER, REVEALED, HIDDEN_FAULTS),
)
"""All of them, in the order in which people look for them."""
