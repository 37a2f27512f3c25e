"""A command as Typer has it, made of its function, with hooks for what Typer lacks: all wrong flags at once, the words
of a launch, the sentences of a mistake, a page's examples and exit codes."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import is_dataclass
from functools import cached_property
from importlib import import_module
from pkgutil import resolve_name
from typing import Any, get_args

import typer
from typer.core import TyperCommand

from harness.cli.commands import COMMANDS, LAUNCH, CommandEntry
from harness.cli.words import HELP, RUN, CheckedWords, CommandLine, TypedFlag, check_words, mistakes, split_launch
from harness.common.display.format import cut
from harness.common.display.printable import printable, unguarded
from harness.common.errors import RequestError, nearest
from harness.common.paths import COMMAND, PROGRAM

# Click's, which is a package of its own or a part of Typer, by Typer's version.
UsageError: type[Any] = import_module(typer.BadParameter.__module__).UsageError
SETTINGS = {"help_option_names": sorted(HELP, key=len)}
LINE = "line"  # the parameter of a function that takes the words of a launch
_MARKUP = re.compile(r"(?=\[[a-z#/@])")
_MOST_SHOWN = 40  # characters of a word in a sentence


class Command(TyperCommand):
    """One command of ours. Its words are checked before Typer parses them."""

    details: CommandDetails

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        checked = self.checked(ctx, args)
        if not (HELP & {*checked.typed} or ctx.resilient_parsing):
            name = name_of(ctx)
            if wrong := [f"{name}: {each}" for each in mistakes(checked, self.flags(ctx), f"{COMMAND} help {name}")]:
                raise RequestError("\n".join(wrong))
        with as_sentences(ctx, checked.words):
            return super().parse_args(ctx, [*checked.words])

    def get_help_option(self, ctx: Any) -> Any:
        return as_switch(super().get_help_option(ctx))

    def checked(self, ctx: Any, args: list[str]) -> CheckedWords:
        return check_words(self.details.before(args), self.flags(ctx))

    def flags(self, ctx: Any) -> dict[str, TypedFlag]:
        """Each spelling of its flags."""
        found: dict[str, TypedFlag] = {}
        options: list[Any] = [each for each in self.get_params(ctx) if each.param_type_name == "option"]
        for param in options:
            names = [*param.opts, *param.secondary_opts]
            alone = self.details.alone.get(param.name)
            flag = TypedFlag("/".join(names), not param.is_flag, param.multiple, alone)
            found |= dict.fromkeys(names, flag)
        return found

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with page_of(self.details.entry):
            super().format_help(ctx, formatter)


class LaunchCommand(Command):
    """A command whose words are those of a launch: its function gets them as a `CommandLine`, with all mistakes in it,
    since Pydantic finds the others."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = split_launch(args, is_run=self.name == RUN)
        checked = self.checked(ctx, [word for word in words.launcher if word != "--"])
        with as_sentences(ctx, checked.words):
            return self._read(ctx, checked, args, words.script)

    def _read(self, ctx: Any, checked: CheckedWords, args: list[str], script: tuple[str, ...] | None) -> list[str]:
        opts, rest, _ = self.make_parser(ctx).parse_args([*checked.words])
        names = {param.name: param.opts[-1] for param in self.params if param.name in self.details.launch}
        given = {names[name]: value for name, value in opts.items() if name in names and value not in (None, [])}
        own = [param for param in self.get_params(ctx) if param.name not in names]
        ctx.meta[LINE] = line = CommandLine(
            given, checked.unknown, rest, checked.complaints, checked.typed, script, [*self.flags(ctx)], args
        )
        for param in sorted(own, key=lambda each: not each.is_eager):  # help comes before a missing argument
            _, rest = param.handle_parse_result(ctx, opts, rest)
        ctx.meta[LINE] = line._replace(words=rest)
        return []

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from harness.cli.launch.parameters import SITE, WHERE, exercise_of, launch_flags, on_page
        from harness.experiment.exercises import OwnTraining
        from harness.site.detection import choose_site, site_to_show

        line: CommandLine = ctx.meta[LINE]
        site = line.given.get(SITE)
        choice, complaint = (choose_site(site), None) if isinstance(site, str) else site_to_show()
        if complaint:
            print(f"{PROGRAM}: {complaint}", file=sys.stderr)
        asked = OwnTraining if self.name == RUN else exercise_of(str(line.given.get("--exercise")))
        flags = {flag.identifier: flag for flag in launch_flags()}
        panels = [WHERE]
        launch: list[Any] = [each for each in self.params if each.name in flags]
        for param in launch:
            shown = on_page(flags[param.name], choice, asked, whole="--all" in line.typed)
            param.rich_help_panel, param.hidden = shown.panel, shown.is_hidden or not self.details.entry.shows_launch
            param.help, param.default = _escaped(shown.text or param.help or ""), printable(shown.default) or None
            panels.append(shown.panel)
        order = {panel: number for number, panel in enumerate(dict.fromkeys(panels))}
        self.params.sort(key=lambda each: order.get(getattr(each, "rich_help_panel", None) or "", len(order)))
        self.help = f"{self.help}\n\nSite: {_escaped(printable(f'{choice.site.name} ({choice.reason})'))}"
        super().format_help(ctx, formatter)


class CommandDetails:
    """What our hooks know of a command besides its parameters."""

    def __init__(
        self, entry: CommandEntry, parameters: Mapping[str, inspect.Parameter], launch: frozenset[str]
    ) -> None:
        self.entry, self.parameters, self.launch = entry, parameters, launch
        self.before: Callable[[list[str]], list[str]] = resolve_name(entry.words) if entry.words else list

    @cached_property
    def alone(self) -> dict[str, str]:
        """The flags of a launch whose value may be left out: the word that stands for it."""
        if not self.launch:
            return {}
        from harness.cli.launch.parameters import launch_flags

        return {f.identifier: word for f in launch_flags() if f.homes and (word := f.option.flag.alone)}

    def takes(self, name: str) -> tuple[str, Sequence[str]]:
        """What the values of an option are, in words, and all of them if it takes no others."""
        hint, info, *_ = get_args(self.parameters[name].annotation)
        kinds = get_args(hint) or (hint,)
        choices = [each for kind in kinds for each in (kind, *get_args(kind)) if isinstance(each, str)]
        number = "a whole number" if int in kinds else "a number" if float in kinds else ""
        limits = [f"{sign} {limit}" for sign, limit in (("≥", info.min), ("≤", info.max)) if limit is not None]
        return f"one of {', '.join(choices)}" if choices else f"{number} {' and '.join(limits)}".strip(), choices


def command_of(name: str, entry: CommandEntry) -> Command:
    """The command, of its function. One with the parameter `line` takes the words of a launch, too, and a dataclass
    there stands for the options that are its fields."""
    function = resolve_name(entry.function)
    signature = inspect.signature(function, eval_str=True)
    if LINE not in signature.parameters:
        command = _built(name, entry, function, Command)
        command.details = CommandDetails(entry, signature.parameters, frozenset())
        return command
    from harness.cli.launch.parameters import launch_flags

    taken = [each for each in signature.parameters.values() if each.name != LINE]
    own = {option.name: option for each in taken for option in _fields(each.annotation) or [each]}
    launch = [flag.parameter() for flag in launch_flags()]

    def called(ctx: typer.Context, **values: Any) -> Any:
        for each in taken:
            if fields := _fields(each.annotation):
                values[each.name] = each.annotation(**{field.name: values[field.name] for field in fields})
        return function(ctx.meta[LINE], **{each.name: values[each.name] for each in taken})

    first = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = [first, *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*own.values(), *launch))]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    called.__doc__ = function.__doc__
    command = _built(name, entry, called, LaunchCommand)
    spelled = {word for param in command.params if param.name in own for word in param.opts}
    command.params = [  # a mystery's --seed is not the training's
        param for param in command.params if param.name in own or not spelled & {*param.opts}
    ]
    command.details = CommandDetails(entry, own, frozenset(each.name for each in launch))
    return command


def _fields(annotation: Any) -> list[inspect.Parameter]:
    """Those of a dataclass; empty: it is none."""
    is_group = isinstance(annotation, type) and is_dataclass(annotation)
    return [*inspect.signature(annotation, eval_str=True).parameters.values()] if is_group else []


def read_launch(words: list[str], is_run: bool = False) -> CommandLine:
    """The words of a launch that is a word of another command. is_run: `run` was before them."""
    command = command_of(RUN if is_run else LAUNCH, CommandEntry(f"{__name__}:_nothing", ""))
    line: CommandLine = command.make_context(LAUNCH, list(words)).meta[LINE]
    return line


def _nothing(line: CommandLine) -> None:
    """A launch that starts nothing."""


def _built(name: str, entry: CommandEntry, function: Callable[..., Any], cls: type[Command]) -> Command:
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    text = _escaped(inspect.getdoc(function) or "")
    app.command(name, cls=cls, help=text, context_settings=SETTINGS)(function)
    command = typer.main.get_command(app)
    assert isinstance(command, cls)
    for param in command.params:
        param.help = _escaped(getattr(param, "help", None) or "")  # type: ignore[attr-defined]
        if getattr(param, "is_flag", False):
            param.metavar = ""  # not `<bool>`
    return command


def as_switch(help_option: Any) -> Any:
    """Typer would build a validator of Pydantic for the value that is not there, which takes as long as a dry run's
    script, and would show `<bool>`."""
    help_option.default, help_option.metavar = False, ""
    return help_option


def _escaped(text: str) -> str:
    """Brackets are brackets: Typer gives texts to rich, which takes `[red]` for markup."""
    return _MARKUP.sub(r"\\", text)


def values_of(name: str, words: list[str]) -> dict[str, Any]:
    """The values of a command's parameters. Raises RequestError: a word is wrong."""
    values: dict[str, Any] = command_of(name, COMMANDS[name]).make_context(name, list(words)).params
    return values


@contextmanager
def page_of(entry: CommandEntry) -> Iterator[None]:
    """Around Typer's page, which has colours and no text of others. The lines to paste come after it, not wrapped."""
    from harness.cli.help import page_end

    with redirect_stdout(unguarded(sys.stdout)), suppress(SystemExit):  # `help | head`: rich ends the process
        yield
        print(page_end(entry))


def name_of(ctx: Any) -> str:
    return str(ctx.command_path).removeprefix(PROGRAM).strip()


@contextmanager
def as_sentences(ctx: Any, words: list[str]) -> Iterator[None]:
    """Raises RequestError for what Typer refuses: a sentence with the command's name and where its flags are listed."""
    try:
        yield
    except UsageError as error:
        name, param = name_of(ctx), getattr(error, "param", None)
        said = printable(error.format_message()).rstrip(".")
        if type(error).__name__ == "MissingParameter" and param is not None:
            said = f"{param.metavar} is missing"
        elif param is not None:
            said = _wrong_value(param, ctx.command, words, said) or said
        elif found := re.search(r"unexpected extra arguments?(?:\(s\))? \((.*)\)", said):
            said = f"unexpected word {found[1]!r}"
        raise RequestError(f"{name}: {said} ({COMMAND} help {name})" if name else f"{said} ({COMMAND} help)") from None


def _wrong_value(param: Any, command: Any, words: list[str], said: str) -> str:
    """What a parameter got, and what it takes; empty: Typer's own words, `said`, are as clear."""
    takes, choices = command.details.takes(param.name)
    parted = [(*word.partition("="), following) for word, following in zip(words, [*words[1:], ""], strict=True)]
    got = [value or following for name, _, value, following in parted if name in param.opts]
    got = got or re.findall(r"'([^']*)' is not", said)  # of an argument
    if not takes or not got:
        return ""
    near = nearest(got[-1], choices)
    hint = f": did you mean {near}?" if near else ""
    name = "/".join(param.opts) if param.param_type_name == "option" else param.metavar
    return f"{name}: got {cut(printable(got[-1]), _MOST_SHOWN)!r}, takes {takes}{hint}"
