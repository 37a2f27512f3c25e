"""The start of every command, where errors become one sentence; imports only the module of the command that runs."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TextIO, cast

from harness.cli.commands import COMMANDS
from harness.cli.rooms import lacking_room, lacking_sentence
from harness.cli.words import COMPLETE, HELP, is_prefix
from harness.common.display.printable import NOT_UNICODE, GuardedStream, is_unicode, printable, unguarded
from harness.common.errors import HarnessError, RequestError
from harness.common.paths import PROGRAM
from harness.common.system.scrub_environment import scrub_environment
from harness.common.system.users import whose

# Refusals of a file system that a person can mend, with the exit code: 2 for a wrong name, 1 for a bad disk.
REFUSALS = {
    **dict.fromkeys((errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ELOOP), 2),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE), 1),
}


# Commands that read and write nothing in the current folder.
ANYWHERE = ("sites", "help", "--version")


def program() -> NoReturn:
    """The whole process: `python -m harness`, which slurm.sh starts, and the command that the wheel installs."""
    if is_prefix(sys.argv[1:]):  # the command gets this process's environment as it is
        from harness.cli.launch.observe import become_command

        try:
            become_command(sys.argv[1:])
        except HarnessError as error:
            print(f"{PROGRAM}: {printable(str(error))}", file=sys.stderr)
            sys.exit(error.exit_code)
    # Pydantic would look for plugins in every installed package: with PyTorch, that is a tenth of a dry run.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Nearly all objects live until the end: to look for garbage among them takes a fifth of a short command.
    gc.set_threshold(100_000, 50, 100)
    if COMPLETE in os.environ:
        from harness.cli.app import complete

        complete()
    code = main(sys.argv[1:])
    gc.freeze()  # Python looks once more when it ends
    sys.exit(code)


def main(argv: list[str]) -> int:
    """Run one command line; returns the exit code: 0 done, 1 the work failed, 2 the request was wrong."""
    with _guarded_output():
        return _main(argv)


@contextmanager
def _guarded_output() -> Iterator[None]:
    """Whatever a command prints, a name that others chose steers no terminal, and no character stops the command."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, GuardedStream(unguarded(each))) if each else each for each in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def _main(argv: list[str]) -> int:
    code = 0
    for sentence in scrub_environment(os.environ):
        if _launches(argv):
            print(f"warning: {sentence}", file=sys.stderr)
    try:
        code = _with_errors_printed(argv)
        if sys.stdout is not None:  # `slurm.sh ls >&-`
            sys.stdout.flush()  # at exit, Python would print a failure as an ignored exception
    except BrokenPipeError:  # `slurm.sh ls | head`
        _write_no_more()
    except OSError as error:
        if error.errno not in REFUSALS or (error.filename is None and REFUSALS[error.errno] != 1):
            raise
        if error.filename is None:  # files are written under their names
            _write_no_more()
        name = "standard output" if error.filename is None else os.fspath(error.filename)
        asked = whose(Path(name)) if error.filename is not None and isinstance(error, PermissionError) else ""
        print(f"{PROGRAM}: {name}: {os.strerror(error.errno)}{asked}", file=sys.stderr)
        return REFUSALS[error.errno]
    return code


def _with_errors_printed(argv: list[str]) -> int:
    try:
        return _dispatch(argv)
    except HarnessError as error:
        for line in map(printable, str(error).splitlines()):
            if line.strip():  # an indented line is a command to paste
                print(line if line.startswith("  ") else f"{PROGRAM}: {line}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        if (room := lacking_room(error)) is None:
            raise
        print(f"{PROGRAM}: {printable(argv[0])}: {lacking_sentence(room)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return 130


def _write_no_more() -> None:
    """Discard the rest of the output: at exit, Python would try to write it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(argv: list[str]) -> int:
    # No file of a run could hold such a path.
    for what, text in [("HARNESS_RUNS", os.environ.get("HARNESS_RUNS", "")), *((word, word) for word in argv)]:
        if not is_unicode(text):
            raise RequestError(f"{printable(what)}: is a {NOT_UNICODE}")
    from harness.cli.app import execute

    if argv[:1] == ["help"]:
        from harness.cli.help import asked_text

        if (page := asked_text(argv)) is not None:
            print(page)
            return 0
        argv = [*argv[1:], "--help"]
    elif argv and argv[0] not in ANYWHERE and not HELP & {*argv}:
        _require_folder()
    return execute(argv)


def _require_folder() -> None:
    """Runs and files are looked for where the user is. Raises RequestError: that folder was removed or is lost."""
    try:
        os.getcwd()  # noqa: PTH109 - Path.cwd() is the same call
    except OSError as error:
        raise RequestError(f"the current folder is gone ({error.strerror}): cd to one that exists") from None


def _launches(argv: list[str]) -> bool:
    """Whether these arguments launch: by their flags, as on the slides, or by a command."""
    return bool(argv) and (argv[0].startswith("-") or (argv[0] in COMMANDS and COMMANDS[argv[0]].launches))
