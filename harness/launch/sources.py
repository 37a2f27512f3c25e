"""Where the words of a job's commands come from: each from fields of the request or of the site, whose sources are
known. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.common.run_folder.run_files import ACCELERATE_SETTINGS, DS_CONFIG
from harness.experiment.exercises import Experiment, OwnTraining, ProfiledTraining
from harness.experiment.options import for_nsys, options_of
from harness.launch.argv import from_site, shown
from harness.launch.exercises.base import DEFAULT, CommandPlace, ExercisePlan, TrainedModel, launch_of

SETTINGS = (DS_CONFIG.name, ACCELERATE_SETTINGS.name)
TYPED = "the words after --"
AUTO = f"{DEFAULT}: nsys if it is there and the GPUs are NVIDIA's, else torch.profiler"


def sources_of_words(
    sources: Mapping[str, str],
    experiment: Experiment,
    place: CommandPlace,
    trained_model: TrainedModel,
    plan: ExercisePlan,
) -> dict[str, str]:
    """The sources of what the words of a command say beside the fields of the request; `bind …`: of a folder that the
    container sees."""
    site, profiler = place.site, place.profiler
    found = {"model": sources.get("model", trained_model.source)}
    is_by_name = trained_model.checkpoint is None and site.models_dir is not None
    found["checkpoint"] = sources.get("site.models_dir", DEFAULT) if is_by_name else found["model"]
    found |= {
        "data": sources.get("data", sources.get("site.data", DEFAULT)),
        "megatron_data": sources.get("data_path", sources.get("site.megatron_data", DEFAULT)),
        "image": sources.get(f"site.container.{'nemo_image' if plan.image else 'image'}", DEFAULT),
        "python": sources.get("site.job_python", "this installation"),
        "cpus_per_task": sources.get("site.cpus_per_node", "")
        or joined([sources.get("site.cpus_per_gpu", DEFAULT), sources.get("gpus_per_node", DEFAULT)]),
    }
    of_container = found["python"] if site.container is None else sources.get("site.container.python", DEFAULT)
    named = experiment.python if isinstance(experiment, OwnTraining) else None
    found["training_python"] = sources.get("python", DEFAULT) if named else of_container
    if isinstance(experiment, ProfiledTraining) and experiment.profiler == "auto":
        flags = [sources.get(name, DEFAULT) for name in for_nsys(experiment)] if profiler == "nsys" else []
        of_site = sources.get("site.profiler", DEFAULT) if site.profiler == profiler else AUTO
        found["profiler"] = joined(flags) or of_site
    known = {**sources, **found}
    found |= {f"bind {shown(folder)}": known.get(field, DEFAULT) for folder, field in plan.folders.items()}
    for bind in site.container.binds if site.container else ():
        usual = sources.get("site.container.binds", DEFAULT)
        found[f"bind {shown(from_site(bind))}"] = sources.get(f"site.container.binds {bind}", usual)
    return found


def sources_of_settings(
    sources: Mapping[str, str], experiment: Experiment, place: CommandPlace, plan: ExercisePlan
) -> dict[str, str]:
    """The flags that set a line of the settings which the programs read, by the file's name and the line: without the
    flag the line is another."""
    found = dict[str, list[str]]()
    files = {name: plan.files[name] for name in SETTINGS if name in plan.files}
    for option in options_of(type(experiment)):
        flag = sources.get(option.field, "")
        if files and flag.startswith("flag "):
            usual = launch_of(experiment).plan(experiment.model_copy(update={option.field: option.default}), place)
            for name in files.keys() & usual.files.keys():
                lines, others = ({*map(setting_of, of.splitlines())} for of in (files[name], usual.files[name]))
                for line in lines - others:
                    found.setdefault(f"{name} {line}", []).append(flag)
    return {line: joined(flags) for line, flags in found.items()}


def setting_of(line: str) -> str:
    """A line of a file in JSON or YAML, without what depends on the lines around it."""
    return line.strip().rstrip(",")


def joined(texts: Iterable[str]) -> str:
    """The sources as one text, each once, and those of one site together."""
    found: dict[str, list[str]] = {}
    for source in texts:
        head, opened, field = source.partition(" (")
        found.setdefault(head, []).extend([field.removesuffix(")")] * bool(opened))
    return "; ".join(
        f"{head} ({', '.join(dict.fromkeys(fields))})" if fields else head for head, fields in found.items()
    )
