"""The command line: one app of Typer's, whose commands are imported when they are called."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from harness.cli.command import SETTINGS, as_sentences, as_switch, command_of, name_of, page_of
from harness.cli.commands import ALL, LAUNCH, CommandEntry
from harness.cli.words import COMPLETE, another_dash
from harness.common.errors import RequestError, nearest_or_list
from harness.common.paths import COMMAND, PROGRAM


class LazyCommand(TyperCommand):
    """A command by its line in the table; a part of it is chosen by the word after its name."""

    def __init__(self, name: str, entry: CommandEntry) -> None:
        super().__init__(name, help=entry.help, rich_help_panel=entry.group)
        self.entry = entry

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if args and args[0] in self.entry.parts:
            part = LazyCommand(args[0], self.entry.parts[args[0]])
            return part.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        if self.entry.function:
            return command_of(str(self.name), self.entry).make_context(info_name, args, parent, **extra)
        group = Group(self.entry, name=self.name, help=self.entry.help, context_settings=SETTINGS)
        return group.make_context(info_name, args or ["--help"], parent, **extra)


class Group(TyperGroup):
    """Commands from a table. Words that begin with a flag are a launch."""

    def __init__(self, entry: CommandEntry = ALL, **settings: Any) -> None:
        super().__init__(**settings)
        self.entry, self.table = entry, entry.parts

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return LazyCommand(cmd_name, self.table[cmd_name]) if cmd_name in self.table else None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = [name for param in self.get_params(ctx) for name in param.opts]
        begins_launch = bool(args) and args[0].startswith("-") and args[0] not in own
        with as_sentences(ctx, args):
            return super().parse_args(ctx, [LAUNCH, *args] if begins_launch and LAUNCH in self.table else args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.table and not ctx.resilient_parsing:
            if why := another_dash(args[0]):
                raise RequestError(why)
            asked, where = f"{name_of(ctx)} {args[0]}".strip(), f"{COMMAND} help {name_of(ctx)}".strip()
            known = [*self.table, *(["help", "--version"] if self.entry is ALL else [])]
            raise RequestError(f"there is no command {asked!r}{nearest_or_list(args[0], known, f'{where} lists all')}")
        return super().resolve_command(ctx, args)

    def get_help_option(self, ctx: Any) -> Any:
        return as_switch(super().get_help_option(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with page_of(self.entry):
            super().format_help(ctx, formatter)


app = typer.Typer(cls=Group, add_completion=False, rich_markup_mode="rich", context_settings=SETTINGS)


def _install_completion(value: bool) -> None:
    if value:
        from harness.cli.complete import install

        print(install(COMPLETE))
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", metavar="", help="print the version, the commit and the folder")
    ] = False,
    install_completion: Annotated[
        bool,
        typer.Option(
            "--install-completion",
            metavar="",
            callback=_install_completion,
            is_eager=True,
            help="let your shell complete commands, flags, sites, lessons and runs",
        ),
    ] = False,
) -> None:
    """Train, profile, and read where the time went."""
    from harness.cli.help import first_screen, version_text

    if version:
        print(version_text())
    elif ctx.invoked_subcommand is None:
        print(first_screen())


def execute(argv: list[str]) -> int:
    """Run one command line; returns what the command returns. Raises RequestError: a word is wrong."""
    command = typer.main.get_command(app)
    try:
        with command.make_context(PROGRAM, list(argv)) as ctx:
            result = command.invoke(ctx)
    except typer.Exit as done:
        return int(done.exit_code)
    return result if isinstance(result, int) else 0


def complete() -> None:
    """Answer the shell that asks for words. Ends the process."""
    from typer import completion

    completion.completion_init()  # type: ignore[attr-defined]  # Typer calls it only with its own two options
    typer.main.get_command(app).main(prog_name=PROGRAM, complete_var=COMPLETE)
