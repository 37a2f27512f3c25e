"""The page of all flags of a launch, by exercise, with the defaults of the active site; rare ones only with --all."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap

from harness.cli.help import MOST_LEFT, HelpPage, as_text, flag_rows, page_width, section
from harness.cli.parser import BEHAVIOUR
from harness.common.paths import COMMAND, PROGRAM
from harness.experiment.exercises import EXERCISES, Experiment, OwnTraining, Training, listing
from harness.experiment.model import model_names
from harness.experiment.options import VALUE, Option, options_of
from harness.site.detection import SiteChoice
from harness.site.site import Site

RUN_PAGE = HelpPage(
    usage=[
        "run [-n NODES] [-g GPUS] [FLAGS] -- SCRIPT|-m MODULE|COMMAND …",
        "run RUN [--dry-run|--plan|--wait|--follow|--yes|--json]",
    ],
    about="Launch your own training, no line changed, with as many ranks as GPUs, and record some of its steps. "
    "run RUN: the same request as that run, as a new run.",
    examples=[
        ("run -g 2 -- train.py --lr 1e-4", "your script, as two ranks"),
        ("run -g 2 --dry-run -- train.py", "print the job's script, start nothing"),
        ("run last", "the newest run again"),
    ],
    docs="docs/own.md",
)


def run_text(choice: SiteChoice, whole: bool = False) -> str:
    """The page of `run`: the flags that a training of the user's own takes. whole: with the rarely used ones."""
    own = [option for option in options_of(OwnTraining) if option.flag.group != "where"]
    titled = {
        "Where and how much": [row for row in _where(choice.site, whole) if not row[0].startswith("-e/")],
        "What starts the ranks, and what is recorded": _lines(own, choice.site, whole),
        "The launch itself": flag_rows(BEHAVIOUR),
    }
    site = f"Site: {choice.site.name} ({choice.reason})"
    return "\n\n".join([as_text(RUN_PAGE), site, *(_section(title, rows) for title, rows in titled.items())])


def help_text(choice: SiteChoice, whole: bool = False) -> str:
    """The page as one text, as wide as the terminal, at most 100 characters. whole: with the rarely used flags."""
    trainings = ", ".join(str(number) for number, cls in EXERCISES.items() if issubclass(cls, Training))
    titled = {f"All training exercises ({trainings})": _common_training()}
    titled |= {f"Exercise {number}: {cls.title}": _of_alone(cls) for number, cls in EXERCISES.items()}
    titled["A training of your own (run [FLAGS] -- SCRIPT …)"] = _of_alone(OwnTraining)
    models = f"Models: {', '.join(model_names())}"
    sections = [
        _usage(choice),
        _section("Where and how much", _where(choice.site, whole)),
        *(_section(title, _lines(options, choice.site, whole)) for title, options in titled.items() if options),
        _section("The launch itself", flag_rows(BEHAVIOUR)),
        "\n".join(wrap(models, page_width(), subsequent_indent="  ", break_on_hyphens=False)),
        f"All commands: {COMMAND} help",
    ]
    return "\n\n".join(sections)


def _usage(choice: SiteChoice) -> str:
    return (
        f"Usage: {PROGRAM} -e EXERCISE [-n NODES] [-g GPUS] [OPTIONS] [-- TRAINING FLAGS]\n"
        f"       {PROGRAM} run [-n NODES] [-g GPUS] [OPTIONS] -- SCRIPT|-m MODULE|COMMAND …\n"
        f"       {PROGRAM} run RUN [--dry-run|--plan|--wait|--follow|--yes|--json]\n\n"
        f"Site: {choice.site.name} ({choice.reason})\n"
        "Example, as on the slides:\n"
        f"  {COMMAND} -n 1 -g 4 -e 1 -a tra26_minwinsc -p boost_usr_prod -- \\\n"
        "    --mixed-precision --gradient-accumulation-steps 4"
    )


def _section(title: str, flags: Iterable[tuple[str, str]]) -> str:
    return "\n".join(section(title, list(flags), MOST_LEFT))


def _where(site: Site, whole: bool) -> Iterable[tuple[str, str]]:
    for option in options_of(Experiment):
        if option.flag.rare and not whole:
            continue
        default = site.gpus.per_node if option.field == "gpus_per_node" else option.default
        shown = None if option.info.is_required() else default
        yield _option_row(option, shown, listing() if option.field == "exercise" else "")
    for option in options_of(Site):
        yield _option_row(option, getattr(site, option.field))


def _lines(options: Iterable[Option], site: Site, whole: bool) -> Iterable[tuple[str, str]]:
    for option in options:
        if whole or not option.flag.rare:
            yield _option_row(option, site.defaults.get(option.field, option.default))


def _option_row(option: Option, default: object = ..., text: str = "") -> tuple[str, str]:
    default = option.default if default is ... else default
    takes_value = VALUE in option.flag.names.values()
    left = option.spelling + (f" {option.flag.metavar}" if takes_value else "")
    shown = takes_value and default is not None and not isinstance(default, bool | tuple)
    return left, (text or option.help) + (f" [{default}]" if shown else "")


def _common_training() -> list[Option]:
    return [o for o in options_of(Training) if o.flag.group != "where"]


def _of_alone(cls: type[Experiment]) -> list[Option]:
    """The flags of a training that differ from those of all, in name or default."""
    common = [(o.flag.names, o.default) for o in _common_training()]
    return [o for o in options_of(cls) if o.flag.group != "where" and (o.flag.names, o.default) not in common]
