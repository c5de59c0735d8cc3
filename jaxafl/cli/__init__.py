"""The command line: `jaxafl run | sweep | list | plot | quickstart`, with the names of the Python interface."""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from jaxafl.version import __version__

_USER_ERRORS = (ValueError, TypeError, MemoryError, ImportError)  # where this package raises them itself


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        argv: the arguments; by default those of the process.

    Returns:
        The exit code: 0, 1 for a run whose parameters stopped being finite, 2 for a mistake of the user's (stderr says
        which), 130 for an interruption.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    commands = _commands()
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"jaxafl {__version__}")
        return 0
    if arguments[0] not in commands:
        return _mistake(f"there is no command {arguments[0]!r}; choose from {', '.join(commands)}")
    try:
        return commands[arguments[0]](arguments[1:])
    except SystemExit as ended:  # of the option parser, which has said why
        return int(ended.code or 0)
    except KeyboardInterrupt:
        print("jaxafl: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `jaxafl list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _mistake(str(error))
    except _USER_ERRORS as error:
        if not _raised_here(error):
            raise
        return _mistake(str(error))


def _commands() -> dict[str, Callable[[list[str]], int]]:
    """Each imports what it needs when it is called, so that help is quick."""
    from jaxafl.cli import commands

    return {
        "run": commands.run,
        "sweep": commands.sweep,
        "list": commands.list_names,
        "plot": commands.plot,
        "quickstart": commands.quickstart,
    }


def _usage() -> str:
    described = {name: (command.__doc__ or "").splitlines()[0] for name, command in _commands().items()}
    lines = [f"  {name:<11} {text}" for name, text in described.items()]
    return "\n".join(
        [
            "usage: jaxafl COMMAND [options]",
            "       jaxafl --version",
            "",
            "Simulates asynchronous federated learning.",
            "",
            *lines,
            "",
            "`jaxafl COMMAND --help` shows the options of a command; those of `run` and `sweep` depend on the names,",
            "e.g. `jaxafl run --server fadas --clock free_running --help`.",
        ]
    )


def _mistake(message: str) -> int:
    print(f"jaxafl: error: {message.strip()}", file=sys.stderr)
    return 2


def _raised_here(error: BaseException) -> bool:
    """Whether a `raise` of this package made the error, rather than something that it called (which would be a bug)."""
    frame, line = list(traceback.walk_tb(error.__traceback__))[-1]
    ours = frame.f_globals.get("__name__", "").split(".")[0] == __name__.split(".")[0]
    source = linecache.getline(frame.f_code.co_filename, line).strip()
    return ours and (source.startswith("raise") or not source)
