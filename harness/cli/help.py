"""The help page: flags by exercise, with the defaults of the active site and the example of the slides.

Flags that most students never need, and the commands' own, are on the whole page only: `--help --all`.
"""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap

from harness.cli.command_line import BEHAVIOUR
from harness.cli.commands import COMMANDS
from harness.experiment.exercises import EXERCISES, Experiment, Training, listing
from harness.experiment.model import model_names
from harness.experiment.options import VALUE, Option, options_of
from harness.site.detection import SiteChoice
from harness.site.site import Site

LEFT = 34  # characters of a flag with its value
WIDTH = 100


def help_text(choice: SiteChoice, whole: bool = False) -> str:
    """The page as one text, in lines of at most `WIDTH` characters. whole: with the rarely used flags."""
    sections = [
        _usage(choice),
        _section("Where and how much", _where(choice.site, whole)),
        _section(f"All training exercises ({_trainings()})", _lines(_common_training(), choice.site, whole)),
    ]
    for number, cls in EXERCISES.items():
        own = [o for o in options_of(cls) if o.flag.group != "where" and not _is_common(o)]
        if own:
            sections.append(_section(f"Exercise {number}: {cls.title}", _lines(own, choice.site, whole)))
    sections.append(_section("The command itself", (_line("/".join(d.names), d.help) for d in BEHAVIOUR)))
    sections.append(_section("Commands", (_line(name, entry.help) for name, entry in COMMANDS.items())))
    models = f"Models: {', '.join(model_names())}"
    sections.append("\n".join(wrap(models, WIDTH, subsequent_indent="  ", break_on_hyphens=False)))
    return "\n\n".join(sections)


def _usage(choice: SiteChoice) -> str:
    return (
        "Usage: slurm.sh -e EXERCISE [-n NODES] [-g GPUS] [OPTIONS] [-- TRAINING FLAGS]\n"
        "       slurm.sh COMMAND [RUN]\n\n"
        f"Site: {choice.site.name} ({choice.reason})\n"
        "Example, as on the slides:\n"
        "  slurm.sh -n 1 -g 4 -e 1 -a tra26_minwinsc -p boost_usr_prod -- \\\n"
        "    --mixed-precision --gradient-accumulation-steps 4"
    )


def _section(title: str, lines: Iterable[str]) -> str:
    return "\n".join([f"{title}:", *lines])


def _line(left: str, right: str) -> str:
    before = f"  {left:<{LEFT}} " if len(left) <= LEFT else f"  {left}\n  {'':<{LEFT}} "
    indent = " " * (LEFT + 3)
    return before + f"\n{indent}".join(wrap(right, WIDTH - len(indent), break_on_hyphens=False))


def _where(site: Site, whole: bool) -> Iterable[str]:
    for option in options_of(Experiment):
        if option.flag.rare and not whole:
            continue
        default = site.gpus.per_node if option.field == "gpus_per_node" else option.default
        shown = None if option.info.is_required() else default
        yield _option_line(option, shown, listing() if option.field == "exercise" else "")
    for option in options_of(Site):
        yield _option_line(option, getattr(site, option.field))


def _lines(options: Iterable[Option], site: Site, whole: bool) -> Iterable[str]:
    for option in options:
        if whole or not option.flag.rare:
            yield _option_line(option, site.defaults.get(option.field, option.default))


def _option_line(option: Option, default: object = ..., text: str = "") -> str:
    default = option.default if default is ... else default
    takes_value = VALUE in option.flag.names.values()
    left = option.spelling + (f" {option.flag.metavar}" if takes_value else "")
    shown = takes_value and default is not None and not isinstance(default, bool | tuple)
    return _line(left, (text or option.help) + (f" [{default}]" if shown else ""))


def _trainings() -> str:
    return ", ".join(str(number) for number, cls in EXERCISES.items() if issubclass(cls, Training))


def _common_training() -> list[Option]:
    return [o for o in options_of(Training) if o.flag.group != "where"]


def _is_common(option: Option) -> bool:
    return any(option.flag.names == o.flag.names and option.default == o.default for o in _common_training())
