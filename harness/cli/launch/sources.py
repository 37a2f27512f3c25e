"""Where the value of an option in a job's script comes from: a flag, the site, a set of nsys's options, a default."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from string import Template
from typing import Any

from harness.cli.parser import declared, read_line, split_line
from harness.common.run_files import ACCELERATE_SETTINGS
from harness.experiment.deepspeed import DeepSpeed
from harness.experiment.exercises import Experiment, Megatron, OwnTraining, ProfiledTraining, Training
from harness.experiment.nsys_sets import load_options, trace_list
from harness.experiment.options import Option, for_nsys, options_of
from harness.launch.argv import Word, from_site, parent, shown
from harness.launch.backends.allocation import NAME as ALLOCATION
from harness.launch.backends.registry import backend_of
from harness.launch.exercises.accelerate_settings import ACCELERATE, accelerate_files
from harness.launch.exercises.base import launch_of
from harness.launch.exercises.deepspeed import deepspeed_config
from harness.launch.job import Job
from harness.site.detection import COURSE, choose_site
from harness.site.site import Container, Site

DEFAULT = "default of the kit"
CHECKOUT = "the checkout"
TYPED = "the words after --"
SHELL = "the allocation of this shell"


def joined(texts: Iterable[str]) -> str:
    """The sources as one text, each once, and those of one site together."""
    found: dict[str, list[str]] = {}
    for source in texts:
        head, opened, field = source.partition(" (")
        found.setdefault(head, []).extend([field.removesuffix(")")] * bool(opened))
    return "; ".join(
        f"{head} ({', '.join(dict.fromkeys(fields))})" if fields else head for head, fields in found.items()
    )


class ValueSources:
    """The sources of one job's values. command: as it was typed, the program first."""

    def __init__(self, job: Job, command: Sequence[str]) -> None:
        words = split_line(command[1:]).launcher
        self.job, self.experiment = job, job.experiment
        line = read_line(words, declared())
        self._typed = set(line.typed)
        self._file: Site = choose_site(line.given.get("--site")).site  # before the flags changed it

    @cached_property
    def options(self) -> dict[str, Option]:
        return {option.field: option for option in options_of(type(self.experiment))}

    def _flag(self, option: Option, value: object) -> str:
        names = [name for name in option.flag.names if name in self._typed]
        written = option.written(value)
        return f"flag {written if written in names else names[-1]}" if names else ""

    def field(self, name: str) -> str:
        option, value = self.options.get(name), getattr(self.experiment, name)
        asked, usual = getattr(self.job.requested, name), type(self.experiment).model_fields[name].default
        if option is not None and (flag := self._flag(option, value)):
            return flag
        if name in self._file.defaults and str(self._file.defaults[name]) == str(asked):
            return f"site {self._file.name} (defaults.{name})"
        if asked is not None and asked != usual:
            return TYPED if isinstance(self.experiment, OwnTraining) else "the request"
        if asked is None and value is not None:
            return self._resolved(name, value)
        return DEFAULT

    def _resolved(self, name: str, value: object) -> str:
        """The source of a field that the launch filled in."""
        if name == "gpus_per_node":
            return self._gpus()
        usual = vars(self.job.model.defaults) if self.job.model else {}
        kinds = ["pretrain_"] * isinstance(self.experiment, Megatron) + ["fp32_"] * (not self.experiment.in_bf16) + [""]
        if fields := [f"{kind}{name}" for kind in kinds if usual.get(f"{kind}{name}") == value]:
            return self.of_model(f"defaults.{fields[0]}")
        rule = re.search(r"\(default: (.+)\)$", self.options[name].meaning)
        return f"{DEFAULT}: {rule[1]}" if rule else DEFAULT

    def _gpus(self) -> str:
        site = self.job.site
        if site.gpus.per_node == self.experiment.gpus_per_node and not backend_of(site).RUNS_HERE:
            return self.site("gpus.per_node")
        if not backend_of(site).RUNS_HERE or launch_of(self.experiment).usual_cpu_ranks is not None:
            return DEFAULT
        return f"the {'GPUs' if self.job.device == 'cuda' else 'cores'} of this machine"

    def changed(self, base: str, make: Callable[[Experiment], object]) -> str:
        """The source of what `make` writes of the experiment: `base`, and the flags that change it."""
        names, now = [], make(self.experiment)
        for option in self.options.values():
            flag = self._flag(option, getattr(self.experiment, option.field))
            if flag and make(self.experiment.model_copy(update={option.field: option.default})) != now:
                names.append(flag.removeprefix("flag "))
        *most, last = names or [""]
        flags = f"flags {', '.join(most)} and {last}" if most else f"flag {last}"
        return f"{base}, changed by {flags}" if names else base

    def of_model(self, name: str) -> str:
        return f"model {self.job.model.name} ({name})" if self.job.model else DEFAULT

    def site(self, path: str) -> str:
        """The source of a field of the site, with dots between the names of its parts."""
        for option in options_of(Site):
            if option.field == path and (flag := self._flag(option, getattr(self.job.site, path))):
                return flag
        was: Any = self._file
        now: Any = self.job.site
        is_set = True
        for name in path.split("."):
            is_set = is_set and was is not None and name in was.model_fields_set
            was, now = getattr(was, name, None), getattr(now, name, None)
        if self.job.site.scheduler == ALLOCATION and was != now:
            return SHELL
        return f"site {self._file.name} ({path})" if is_set else DEFAULT

    def _course(self, part: str, path: str) -> str:
        """The source of a file of the course's folder; empty: it is none of that folder."""
        folder = os.environ.get(COURSE) or self._file.course.folder
        if folder is None or self.job.site.scheduler == "local":
            return ""
        whole = Path(Template(folder).safe_substitute(os.environ)).expanduser()
        if path != str(whole / getattr(self._file.course, part) if part else whole):
            return ""
        return COURSE if os.environ.get(COURSE) else self.site("course.folder")

    def cpus(self) -> str:
        if self.job.site.cpus_per_node:
            return self.site("cpus_per_node")
        return joined([self.site("cpus_per_gpu"), self.field("gpus_per_node")])

    def runs(self) -> str:
        return "HARNESS_RUNS" if os.environ.get("HARNESS_RUNS") else DEFAULT

    def run_name(self) -> str:
        hub = self.job.model.hub_name if self.job.model else None
        return self.changed(DEFAULT, lambda asked: asked.name(hub))

    def python(self) -> str:
        return self.site("job_python") if self.job.site.job_python else "this installation"

    def training_python(self) -> str:
        if isinstance(self.experiment, OwnTraining) and self.experiment.python is not None:
            flag = self.field("python")
            return "the active environment" if flag == TYPED else flag
        return self.python() if self.job.site.container is None else self.site("container.python")

    def interpreter(self, word: Word) -> str:
        return self.python() if word == self.job.python else self.training_python()

    def nsys(self, name: str, text: str) -> str:
        for option in self.options.values():
            if name in option.nsys_options(getattr(self.experiment, option.field)):
                return self.field(option.field)
        for chosen in (self.job.nsys_options, "cpu"):  # on a CPU, another event begins the recording
            wanted = load_options(chosen).get(name)
            if text == (",".join(wanted) if isinstance(wanted, list) else wanted):
                return self._option_set(chosen)
            if isinstance(wanted, str) and text == str(trace_list(wanted)):
                return self._option_set(chosen)
        return DEFAULT

    def _option_set(self, name: str) -> str:
        text = f"option set {name}" if "/" in name else f"option set {name} (configs/nsys/{name}.json)"
        if isinstance(self.experiment, ProfiledTraining) and self.experiment.nsys_options == name:
            return f"{text}, of {self.field('nsys_options')}"
        return f"{text}, of {self.site('nsys')}" if self.job.site.nsys == name != "default" else text

    def container_arguments(self) -> str:
        """The source of the words between the container's program and ours: a runtime has its usual ones."""
        given = self.job.site.container
        if given is None:
            return DEFAULT
        usual = Container.model_validate({"runtime": given.runtime, "image": given.image})
        return DEFAULT if given.arguments == usual.arguments else self.site("container.arguments")

    def image(self) -> str:
        container, image = self.job.site.container, shown(self.job.image or "")
        nemo = container.nemo_image if container else None
        is_nemo = nemo is not None and image == shown(from_site(nemo))
        return self._course("image", image) or self.site(f"container.{'nemo_image' if is_nemo else 'image'}")

    def bind(self, folder: str) -> str:
        return self._binds.get(folder, DEFAULT)

    @cached_property
    def _binds(self) -> Mapping[str, str]:
        job, container = self.job, self.job.site.container
        found = {folder: source for word, source in self._folders() if (folder := shown(word))}
        for bind in container.binds if container else ():
            found[shown(from_site(bind))] = self._course("", bind) or self.site("container.binds")
        return found | {
            job.output_dir.rpartition("/")[0]: f"the folder of the runs, {self.runs()}",
            job.checkout: CHECKOUT,
        }

    def _folders(self) -> Iterator[tuple[Word, str]]:
        """Folders of the command that the container sees, and what names them."""
        asked, job = self.experiment, self.job
        if isinstance(asked, OwnTraining):
            yield str((Path(asked.start_in) / asked.program).parent), "the folder of your program"
            yield asked.start_in, "the folder where you typed the command"
        if script := getattr(asked, "script", None):
            yield str(Path(script).parent), self.field("script")
        for path, source in ((job.checkpoint, self.checkpoint), (job.data, self.data)):
            if path is not None:
                yield path, source()
        if job.megatron_data is not None and (prefix := parent(job.megatron_data)) is not None:
            yield prefix, self.megatron_data()
        for name in ("python_trace", "nsys_options"):
            if path := getattr(asked, name, None):
                yield path, self.field(name)

    def model(self) -> str:
        asked, model = self.experiment, self.job.model
        if not isinstance(asked, Training) or asked.model is not None or model is None:
            return self.field("model")
        if model.name == asked.default_model:
            return f"{DEFAULT}: the model of exercise {asked.exercise}"
        return f"{DEFAULT}: the small model in place of {asked.default_model}, because there is no GPU"

    def checkpoint(self) -> str:
        folder, models = shown(self.job.checkpoint or ""), self.job.site.models_dir
        if models is None or folder.rpartition("/")[0] != shown(from_site(models)):
            return self.field("model")
        return self._course("models_dir", models) or self.site("models_dir")

    def data(self) -> str:
        if getattr(self.experiment, "data", None) is not None or self.job.site.data is None:
            return self.field("data")
        return self._course("data", self.job.site.data) or self.site("data")

    def megatron_data(self) -> str:
        is_own = getattr(self.experiment, "data_path", None) is not None
        return self.field("data_path") if is_own else self.site("megatron_data")

    def profiler(self) -> str:
        """The source of the profiler: `auto` leaves it to others."""
        asked, job = self.experiment, self.job
        if not isinstance(asked, ProfiledTraining) or asked.profiler != "auto":
            return self.field("profiler")
        flags = [self.field(name) for name in for_nsys(asked)] if job.profiler == "nsys" else []
        if flags or job.site.profiler != job.profiler:
            return joined(flags) or f"{DEFAULT}: nsys if it is there and the GPUs are NVIDIA's, else torch.profiler"
        return self.site("profiler")

    def accelerate_config(self) -> str:
        """The source of accelerate's settings: the base whose settings the run has, and its flags."""
        if isinstance(self.experiment, OwnTraining) and (users := self.experiment.accelerate_config) is not None:
            return self.changed(users, partial(accelerate_files, base="ddp", users=users))
        for base in sorted(path.stem for path in ACCELERATE.glob("*.yaml")):
            make = partial(accelerate_files, base=base)
            if make(self.experiment)[ACCELERATE_SETTINGS.name] == self.job.files.get(ACCELERATE_SETTINGS.name):
                return self.changed(f"configs/accelerate/{base}.yaml", make)
        return DEFAULT

    def deepspeed_config(self) -> str:
        if not isinstance(self.experiment, DeepSpeed):
            return DEFAULT
        return self.changed(DEFAULT, deepspeed_config)  # type: ignore[arg-type]  # a copy of ours

    def variable(self, name: str) -> str:
        for option in self.options.values():
            if name in option.environment(getattr(self.experiment, option.field)):
                return self.field(option.field)
        return self.site("env") if name in self.job.site.env else ""
