"""`slurm.sh … --dry-run --explain`: what each line and option of a job's script is for, and where its value comes from.
The sentences are in configs/explain.yaml, those of a training's options with their fields; the job says where a value
comes from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from textwrap import wrap
from typing import Any, NamedTuple

from harness.cli.terminal import columns
from harness.common.display.printable import printable
from harness.common.paths import CONFIGS
from harness.experiment.exercises import CommTests, OwnTraining, ProfiledTraining
from harness.experiment.nsys_sets import load_options, trace_list
from harness.experiment.options import Option, options_of
from harness.experiment.yaml_file import read_yaml
from harness.launch.argv import Word, quote, quote_all, shown
from harness.launch.exercises.base import DEFAULT, MODULES, TORCHRUN_JSC, LaunchCommand
from harness.launch.job import Job
from harness.launch.sources import SETTINGS, TYPED, joined, setting_of
from harness.site.site import Container

SENTENCES = CONFIGS / "explain.yaml"
WIDTH = 120  # without a terminal
_LAUNCHERS = {name: name for name in ("accelerate", "torchrun", "deepspeed")}
_LAUNCHERS |= {module: name for name, module in MODULES.items()} | {TORCHRUN_JSC: "torchrun"}


class ScriptLine(NamedTuple):
    """One line or option of the script. slide: the words of the course's slide; empty: it has none."""

    part: str
    option: str
    sentence: str
    source: str
    slide: str = ""


class OptionText(NamedTuple):
    """What the file of sentences says of an option. of: the fields from which its value comes."""

    says: str
    of: tuple[str, ...] = ()
    slide: str = ""


class ScriptSection(NamedTuple):
    """A part of the script. other: of an option that the section does not have."""

    title: str
    other: OptionText
    options: dict[str, OptionText]


def sections() -> dict[str, ScriptSection]:
    read = read_yaml(SENTENCES, "sentences")
    return {
        name: ScriptSection(
            told["title"], OptionText(told["other"]), {key: _entry(each) for key, each in told["options"].items()}
        )
        for name, told in read.items()
    }


def _entry(told: Any) -> OptionText:
    if isinstance(told, str):
        return OptionText(told)
    of = told.get("of", ())
    return OptionText(told["says"], (of,) if isinstance(of, str) else tuple(of), told.get("slide", ""))


def explained(job: Job, script: str) -> list[ScriptLine]:
    return list(_Explainer(job, script).all())


def as_text(script_lines: Iterable[ScriptLine]) -> str:
    """The rows for people, in lines as wide as the terminal; only an option is never wrapped."""
    titles = {name: section.title for name, section in sections().items()}
    width, lines, part = columns(WIDTH), list[str](), ""
    for row in script_lines:
        if row.part != part:
            part = row.part
            lines += ["", titles[part], ""]
        lines.append(printable(row.option))
        said = [f"{row.sentence} From: {row.source}.", *([f"On the slide: {row.slide}"] if row.slide else [])]
        for text in said:
            lines += wrap(
                printable(text), width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
            )
    return "\n".join(lines[1:])


def groups(words: Sequence[Word]) -> list[list[Word]]:
    found: list[list[Word]] = []
    for word in words:
        if not found or shown(word).startswith("-"):
            found.append([])
        found[-1].append(word)
    return found


def name_of(text: str) -> str:
    return re.split("[= ]", text.lstrip("-"), maxsplit=1)[0]


class _Explainer:
    def __init__(self, job: Job, script: str) -> None:
        self.job, self.sections = job, sections()
        self.options = list(options_of(type(job.experiment)))
        self.lines = script.splitlines()

    def all(self) -> Iterator[ScriptLine]:
        yield from self._directives()
        yield from self._script_lines()
        yield from self._environment()
        for array in self.job.arrays:
            if array.name == "NSYS":
                yield from self._nsys(array.words)
            elif array.name == "CONTAINER":
                yield from self._container(array.words)
        for command in self.job.commands:
            yield from self._command(command)
        yield from self._nodes()
        for command in self.job.after:
            entry = self.sections["after"].options.get(command.title, self.sections["after"].other)
            yield self._row("after", quote_all(command.argv), entry)
        yield from self._settings()

    def _row(self, part: str, text: str, option_text: OptionText, source: str = "") -> ScriptLine:
        of_fields = joined(map(self._source, option_text.of)) if not source else ""
        return ScriptLine(part, text, option_text.says, source or of_fields or DEFAULT, option_text.slide)

    def _source(self, field: str) -> str:
        head, _, rest = field.partition(".")
        if head == "model" and rest and self.job.model is not None:
            return f"model {self.job.model.name} ({rest})"
        return self.job.sources.get(field, DEFAULT)

    def _of_nsys(self, name: str, text: str) -> str:
        """The source of an option of nsys: a flag of the run, else a set."""
        for option in self.options:
            if name in option.nsys_options(getattr(self.job.experiment, option.field)):
                return self._source(option.field)
        for chosen in (self.job.nsys_options, "cpu"):  # on a CPU, another event begins the recording
            wanted = load_options(chosen).get(name)
            wanted = ",".join(wanted) if isinstance(wanted, list) else wanted
            if wanted is not None and text in (wanted, str(trace_list(wanted))):
                return self._of_set(chosen)
        return DEFAULT

    def _of_set(self, name: str) -> str:
        text = f"option set {name}" if "/" in name else f"option set {name} (configs/nsys/{name}.json)"
        if isinstance(self.job.experiment, ProfiledTraining) and self.job.experiment.nsys_options == name:
            return f"{text}, of {self._source('nsys_options')}"
        return f"{text}, of {self._source('site.nsys')}" if self.job.site.nsys == name != "default" else text

    def _of_container_arguments(self) -> str:
        """The source of the words between the container's program and ours: a runtime has its usual ones."""
        given = self.job.site.container
        if given is None:
            return DEFAULT
        usual = Container.model_validate({"runtime": given.runtime, "image": given.image})
        return DEFAULT if given.arguments == usual.arguments else self._source("site.container.arguments")

    def _entry(self, part: str, name: str) -> OptionText:
        section = self.sections[part]
        return section.options.get(name, section.other)

    def _options(self, part: str, words: Sequence[Word]) -> Iterator[ScriptLine]:
        for group in groups(words):
            yield self._row(part, quote_all(group), self._entry(part, name_of(shown(group[0]))))

    def _directives(self) -> Iterator[ScriptLine]:
        job, written = self.job, [line for line in self.lines if line.startswith("#SBATCH ")]
        of_site = {"sbatch": job.site.sbatch, "nsys_sbatch": job.site.nsys_sbatch * (job.profiler == "nsys")}
        ours = len(written) - sum(map(len, of_site.values()))
        fields = [None] * ours + [field for field, lines in of_site.items() for _ in lines]
        for line, field in zip(written, fields, strict=False):
            text = line.removeprefix("#SBATCH ")
            name = name_of(text)
            source = self._source(f"site.{field}") if field else ""
            yield self._row("sbatch", text, self._entry("sbatch", name), source)

    def _script_lines(self) -> Iterator[ScriptLine]:
        """The lines before the arrays, without comments and the variables of the training."""
        options = self.sections["script"].options
        for line in self.lines:
            if re.match(r"[A-Z]+=\(", line):
                return
            known = max((key for key in options if line.startswith(key)), key=len, default="")
            if line in self.job.setup:
                yield self._row("script", line, self.sections["script"].other, self._source("site.setup"))
            elif known:
                yield self._row("script", re.sub(r" # .*", "", line), options[known])

    def _environment(self) -> Iterator[ScriptLine]:
        asked = self.job.experiment
        for name, word in self.job.env.items():
            option = next((o for o in self.options if name in o.environment(getattr(asked, o.field))), None)
            entry, source = self._entry("environment", name), ""
            if option is not None:
                entry, source = OptionText(_sentence(option.meaning)), self._source(option.field)
            elif name in self.job.site.env:
                source = self._source("site.env")
            yield self._row("environment", f"{name}={quote(word)}", entry, source)

    def _nsys(self, words: Sequence[Word]) -> Iterator[ScriptLine]:
        begin = len(words) - len(self.job.nsys)
        if begin:
            entry = self.sections["nsys"].options["program inside"]
            yield self._row("nsys", quote_all(words[:begin]), entry)
        for group in groups(self.job.nsys):
            text = shown(group[0])
            name = name_of(text) if text.startswith("-") else "program"
            source = self._of_nsys(name, text.partition("=")[2])
            yield self._row("nsys", quote_all(group), self._entry("nsys", name), source)

    def _container(self, words: Sequence[Word]) -> Iterator[ScriptLine]:
        container = self.job.site.container
        in_srun = container is not None and container.in_srun
        arguments = set(container.arguments) if container else set[str]()
        options = words if in_srun else words[:-1]
        for group in groups(options):
            text = shown(group[0])
            name = name_of(text) if text.startswith("-") else "program"
            entry, source = self._entry("container", name), ""
            if name == "program" and container and container.command:
                source = self._source("site.container.command")
            elif text in arguments:
                source = self._of_container_arguments()
            elif name == "bind":
                source = joined(self._source(f"bind {shown(word)}") for word in group[1:])
            elif name == "container-mounts":
                source = joined(self._source(f"bind {folder}") for folder in text.partition("=")[2].split(","))
            yield self._row("container", quote_all(group), entry, source)
        if not in_srun:
            yield self._row("container", quote(words[-1]), self.sections["container"].options["image"])

    def _command(self, command: LaunchCommand) -> Iterator[ScriptLine]:
        at = self._script_at(command.argv)
        yield from self._launcher(command.argv[:at])
        yield from self._arguments(command.argv[at:])

    def _script_at(self, argv: Sequence[Word]) -> int:
        """The index of the training's script, or of the user's own words."""
        if isinstance(self.job.experiment, OwnTraining):
            return len(argv) - len(self.job.experiment.command)
        scripts = [index for index, word in enumerate(argv) if shown(word).endswith(".py")]
        return next((at for at in scripts if not shown(argv[at]).endswith("/rank.py")), len(argv))

    def _launcher(self, words: Sequence[Word]) -> Iterator[ScriptLine]:
        """The words before the script: a launcher with its options, or only a Python."""
        ranks = next((at for at, word in enumerate(words) if shown(word).endswith("/rank.py")), len(words))
        head = next((at for at, word in enumerate(words[:ranks]) if shown(word).startswith("--")), ranks)
        names = [PurePosixPath(shown(word)).name for word in words[:head]]
        part = next((_LAUNCHERS[name] for name in names if name in _LAUNCHERS), "python")
        if part == "python":
            for word in words[:ranks]:
                name = name_of(shown(word))
                known = name in self.sections[part].options
                python = "python" if word == self.job.python else "training_python"
                source = "" if known else self._source(python)
                yield self._row(part, quote(word), self._entry(part, name if known else "interpreter"), source)
        else:
            chosen = [self._source("site.network.torchrun")] * (TORCHRUN_JSC in names)
            program = joined([self._source("training_python"), *chosen])
            yield self._row(part, quote_all(words[:head]), self._entry(part, "program"), program)
            yield from self._options(part, words[head:ranks])
        if words[ranks:]:
            entry = self._entry("training", "rank.py")
            yield self._row("training", quote_all(words[ranks:]), entry, self._source("nsys_per"))

    def _arguments(self, words: Sequence[Word]) -> Iterator[ScriptLine]:
        asked = self.job.experiment
        if isinstance(asked, OwnTraining):
            at = 2 if shown(words[0]) in ("-m", "--module") else 1
            yield self._row("own", quote_all(words[:at]), self._entry("own", "program"), TYPED)
            for group in groups(words[at:]):
                yield self._row("own", quote_all(group), self.sections["own"].other, TYPED)
            return
        is_megatron_lm = not isinstance(asked, CommTests) and shown(words[0]).endswith("/pretrain_gpt.py")
        part = "tests" if isinstance(asked, CommTests) else "megatron-lm" if is_megatron_lm else "training"
        program, *options = groups(words)
        yield self._row(part, quote_all(program), self._entry(part, "program"), self._source("script"))
        for group in options:
            option = None if is_megatron_lm else self._trained(shown(group[0]))
            if option is None:
                yield from self._options(part, group)
            else:
                entry = OptionText(_sentence(option.meaning), (option.field,))
                yield self._row(part, quote_all(group), entry)

    def _settings(self) -> Iterator[ScriptLine]:
        """The lines of the settings that the programs read from files of the run. Of the user's own, accelerate's."""
        users = getattr(self.job.experiment, "accelerate_config", None) or ""
        for name in (name for name in SETTINGS if name in self.job.files):
            for line in map(setting_of, self.job.files[name].splitlines()):
                key, colon, _ = line.partition(":")
                if colon:
                    entry = self._entry(name, key.strip('"'))
                    source = self.job.sources.get(f"{name} {line}") or ("" if entry.of else users)
                    yield self._row(name, line.rstrip(" {"), entry, source)

    def _trained(self, flag: str) -> Option | None:
        """The option of the experiment that has this argument of the training script."""
        return next((o for o in self.options if flag in (o.flag.train, o.flag.train_off)), None)

    def _nodes(self) -> Iterator[ScriptLine]:
        """srun, and the program of each node with the parts that it runs."""
        program, *options = re.split(" (?=--)", next((line for line in self.lines if line.startswith("srun ")), ""))
        for text in [program, *options] if program else ():
            name = name_of(text) if text.startswith("-") else "program"
            yield self._row("srun", text.removesuffix(" \\"), self._entry("srun", name))
        ours, *lines = groups(self.job.node_program)
        yield self._row("node", f'"$HARNESS_PYTHON" -E {quote_all(ours)}', self._entry("node", "program"))
        for line in lines:
            yield from self._options("node", line)
        yield self._row("node", self.job.node_words, self._entry("node", "words"))


def _sentence(meaning: str) -> str:
    """A field's meaning as a sentence, without its default, which the source has."""
    text = re.sub(r" \(default[^()]*\)", "", meaning)
    return f"{text[:1].upper()}{text[1:]}."
