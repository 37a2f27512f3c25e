"""The table of the commands. Knows their modules by name only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Rows = Sequence[tuple[str, str]]  # of a page of help: what to type, and what it is for

# The titles of `help`, with the folders of harness/cli whose commands are below each.
GROUPS = {"Launch": ("launch", "doctor"), "Watch": ("watch", "live"), "Read": ("read", "export"), "Study": ("study",)}
LAUNCH = "launch"


class CommandEntry(NamedTuple):
    """A command. help: its line among all commands. Its page is made of its function's parameters.

    function: module:name, imported when it runs; empty: only its parts do something.
    exits, examples, docs: of its page.
    launches: it starts trainings. shows_launch: its page has the flags of a launch, too.
    parts: commands whose name is the word after this one's. words: module:name of what changes its words first.
    """

    function: str
    help: str
    launches: bool = False
    shows_launch: bool = False
    exits: Rows = ()
    examples: Rows = ()
    docs: str = ""
    parts: Mapping[str, CommandEntry] = {}
    words: str = ""

    @property
    def group(self) -> str:
        """The title below which `help` lists it."""
        module = self.function or next(iter(self.parts.values())).function
        folder = module.split(".")[2]
        return next(title for title, folders in GROUPS.items() if folder in folders)


COMMANDS: dict[str, CommandEntry] = {
    LAUNCH: CommandEntry(
        "harness.cli.launch.launch:launch",
        "an exercise; its name may be left out: -e 1 -n 2",
        launches=True,
        shows_launch=True,
        examples=[
            ("-n 1 -g 4 -e 1 -a tra26_minwinsc -p boost_usr_prod -- --mixed-precision", "as on the slides"),
            ("-e 1 --help", "the flags of exercise 1; --all: also the rarely used ones"),
        ],
        docs="docs/experiments.md",
    ),
    "run": CommandEntry(
        "harness.cli.launch.run:run",
        "launch your own training, run -- train.py; run RUN: a run again",
        launches=True,
        shows_launch=True,
        examples=[
            ("run -g 2 -- train.py --lr 1e-4", "your script, as two ranks"),
            ("run -g 2 --dry-run -- train.py", "print the job's script, start nothing"),
            ("run last", "the newest run again"),
        ],
        docs="docs/own.md",
    ),
    "observe": CommandEntry(
        "harness.cli.launch.observe:observe",
        "one word before your own command, in the job that you have",
        exits=[("the command's", "or 128 and the signal that ended it"), ("2", "wrong request; nothing was started")],
        examples=[
            ("observe -- torchrun --nproc-per-node 4 train.py", "in your own script"),
            ("observe --profiler torch -- python train.py", "also record ten steps"),
        ],
        docs="docs/own.md",
    ),
    "doctor": CommandEntry(
        "harness.cli.doctor.doctor:doctor",
        "check this machine and the site before a course",
        launches=True,
        exits=[("0", "ok, also with warnings"), ("1", "a problem"), ("2", "wrong request")],
        examples=[("doctor", "check this machine"), ("doctor --site leonardo", "check it for this site")],
        docs="docs/course.md",
    ),
    "sites": CommandEntry(
        "harness.cli.launch.sites:sites",
        "the known sites; sites NAME: one in full",
        examples=[("sites", "all sites"), ("sites leonardo", "one site, with the defaults of each field")],
    ),
    "ls": CommandEntry(
        "harness.cli.watch.ls:ls",
        "your runs: flags, step, largest loss",
        examples=[("ls", "the newest runs"), ("ls -n 100 --json", "the newest 100, for a script")],
    ),
    "watch": CommandEntry(
        "harness.cli.live.watch:watch",
        "one live screen: progress, slow ranks, what is stuck",
        exits=[("0", "done, or quit"), ("1", "the run did not complete"), ("2", "wrong request")],
        examples=[
            ("watch", "the newest run that has not ended"),
            ("watch 4711 --once", "look once, print the screen, and end"),
            ("watch last --json", "everything, one JSON object a line, for a script"),
        ],
        docs="docs/watch.md",
    ),
    "status": CommandEntry(
        "harness.cli.watch.status:status",
        "state, why it is so, missing files",
        examples=[("status last", "the newest run"), ("status 1234567", "a run by its job id")],
    ),
    "logs": CommandEntry(
        "harness.cli.watch.status:logs",
        "the output of a run (-f: as it is printed)",
        examples=[("logs last -f", "the output of the newest run, until it ends")],
    ),
    "capture": CommandEntry(
        "harness.cli.watch.capture:capture",
        "record some steps of a running training",
        examples=[("capture start last --steps 5", "record five steps"), ("capture stop last", "end early")],
    ),
    "cancel": CommandEntry(
        "harness.cli.watch.status:cancel",
        "stop a run and keep its traces",
        examples=[("cancel last", "stop the newest run")],
    ),
    "report": CommandEntry(
        "harness.cli.read.report:report",
        "where the time went, from a run or from any traces",
        examples=[
            ("report last", "the answer, and a page to send"),
            ("report last --full", "every table in the terminal"),
            ("report path/to/traces", "the same for nsys, Kineto or rocprofv3 traces"),
            ("report snapshot.pickle", "who held the GPU's memory, of torch.cuda.memory._dump_snapshot"),
        ],
        docs="docs/metrics.md",
    ),
    "whatif": CommandEntry(
        "harness.cli.read.whatif:whatif",
        "predicted step time with one thing changed",
        exits=[("0", "answered"), ("1", "no answer"), ("2", "wrong request")],
        examples=[("whatif last", "the changes, the largest gain first")],
        docs="docs/investigate.md",
    ),
    "compare": CommandEntry(
        "harness.cli.read.compare:compare",
        "differences between runs, in configuration and in result",
        exits=[("0", "compared"), ("1", "an expression of --fail-if is true"), ("2", "wrong request")],
        examples=[
            ("compare local-1 local-2", "two runs"),
            ("compare local-1 local-2 --fail-if 'step_time > 1.05'", "exit 1 if B takes 5 % more time"),
        ],
    ),
    "export": CommandEntry(
        "",
        "a Paraver or Perfetto trace, or tables",
        examples=[
            ("export perfetto last", "one trace of all ranks, for ui.perfetto.dev"),
            ("export paraver last", "a Paraver trace: .prv, .pcf, .row"),
            ("export csv last -o tables", "every table of the report"),
        ],
        parts={
            "paraver": CommandEntry("harness.cli.export.export:paraver", "for Paraver", docs="docs/timelines.md"),
            "perfetto": CommandEntry(
                "harness.cli.export.export:perfetto",
                "for ui.perfetto.dev",
                examples=[
                    ("export perfetto last", "write it beside the run's traces"),
                    ("export perfetto last --open", "and open it in the browser; nothing is uploaded"),
                ],
            ),
            "csv": CommandEntry("harness.cli.export.export:numbers", "every table as CSV", docs="configs/report.ipynb"),
        },
    ),
    "lesson": CommandEntry(
        "harness.cli.study.lesson:lesson",
        "a question and its two runs; also: mystery, race",
        launches=True,
        examples=[
            ("lesson", "all lessons"),
            ("lesson 1a", "the question of lesson 1a; makes its two runs"),
            ("lesson 1a --hint", "the question and its hints"),
            ("lesson 1a --answer", "the answer, from your two runs"),
            ("lesson mystery -e 1", "a training with a hidden cause (help lesson mystery)"),
            ("lesson race", "a slow script to repair, to a target (help lesson race)"),
        ],
        parts={
            "mystery": CommandEntry(
                "harness.cli.study.mystery:mystery",
                "start a training that is slow for a hidden reason",
                launches=True,
                examples=[
                    ("lesson mystery -e 1", "start one"),
                    ("lesson mystery answer last --cause pause --rank 1", "answer with the cause and its rank"),
                    ("lesson mystery reveal last", "the cause, and the diagnosis of the harness"),
                ],
                docs="docs/faults.md",
                parts={
                    "answer": CommandEntry(
                        "harness.cli.study.mystery_reveal:answer_command", "name the cause, once", docs="docs/faults.md"
                    ),
                    "reveal": CommandEntry(
                        "harness.cli.study.mystery_reveal:reveal_command",
                        "end it; show the cause, and the diagnosis",
                        docs="docs/faults.md",
                    ),
                },
            ),
            "race": CommandEntry(
                "harness.cli.study.race:race",
                "repair a slow script until it reaches a target",
                launches=True,
                exits=[
                    ("0", "measured"),
                    ("1", "the file is another training"),
                    ("2", "wrong request"),
                    ("3", "cannot tell whether the target is reached, or the runs failed"),
                ],
                examples=[
                    ("lesson race", "the step of race.py, the target on this machine, the ladder"),
                    ("lesson race my_race.py", "your copy of it: its time, and what still costs"),
                    ("lesson race my_race.py --runs 5", "five runs of it and of the target"),
                ],
            ),
        },
    ),
    "check": CommandEntry(
        "harness.cli.study.check:check",
        "whether B is slower than A, from several runs of each",
        exits=[
            ("0", "B is the same or better"),
            ("1", "B is worse"),
            ("2", "wrong request"),
            ("3", "cannot tell, not comparable, or its runs failed"),
        ],
        examples=[
            ("check '-e 1' '-e 1 -- --micro-batch-size 4'", "four runs of each, alternating"),
            ("check local-3,local-5 local-4,local-6", "existing runs"),
            ("check --rev main HEAD 'run -g 2 -- train.py'", "two revisions of your repository"),
            ("check --set NCCL_ALGO=Ring 'run -g 2 -- train.py'", "with a variable, and without"),
            ("check --python OLD NEW 'run -g 2 -- train.py' --which", "which package of two Pythons makes it slow"),
        ],
        docs="docs/studies.md",
        words="harness.cli.study.check:launches_named",
    ),
    "sweep": CommandEntry(
        "harness.cli.study.sweep:sweep",
        "all combinations of some settings; nodes: scaling",
        launches=True,
        examples=[
            ("sweep", "the sweeps of the harness, and the series that you started"),
            ("sweep micro-batch --dry-run", "the runs that would be made"),
            ("sweep micro-batch", "make them, or continue"),
        ],
        docs="docs/studies.md",
    ),
    "reference": CommandEntry(
        "",
        "the stored runs of a workshop: record, check, show",
        launches=True,
        examples=[
            ("reference record --dry-run", "the runs that would be made"),
            ("reference check last", "compare a run with the stored runs of the same request"),
            ("lesson 2a --reference NAME", "the answer of a lesson from the runs of a reference"),
        ],
        docs="docs/studies.md",
        parts={
            "record": CommandEntry(
                "harness.cli.study.reference:record",
                "run a whole list of variants, and store it",
                launches=True,
                examples=[("reference record --dry-run", "the runs that would be made")],
                docs="docs/studies.md",
            ),
            "check": CommandEntry(
                "harness.cli.study.reference_show:check_command",
                "what changed since a reference was recorded, and the likely reason",
                exits=[("0", "the same"), ("1", "moved or damaged"), ("2", "wrong request"), ("3", "cannot tell")],
                docs="docs/studies.md",
            ),
            "show": CommandEntry(
                "harness.cli.study.reference_show:show_command",
                "all references, or the variants of one",
                docs="docs/studies.md",
            ),
        },
    ),
}
ALL = CommandEntry(
    "",
    "train, profile, and read where the time went",
    examples=[
        ("help launch", "the flags of a launch, with your site's defaults"),
        ("help faults", "the faults that --fault can inject"),
        ("help numbers", "the tables of a report's numbers, field by field"),
        ("help agents", "which command answers which question"),
    ],
    parts=COMMANDS,
)
