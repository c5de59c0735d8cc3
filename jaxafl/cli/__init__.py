"""The command line: `jaxafl COMMAND`, with the names of the Python interface.

The first line of a command's docstring is its line in the help; its `Args` are the help of the options.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import os
import sys
import textwrap
import threading
from collections.abc import Sequence
from typing import Any

import tyro

from jaxafl.callbacks import Interrupted
from jaxafl.cli import methods
from jaxafl.cli.commands import compare, gather, list_names, plot_results
from jaxafl.cli.data import data
from jaxafl.cli.doctor import doctor
from jaxafl.cli.init import init
from jaxafl.cli.options import is_given
from jaxafl.cli.pipes import print_warnings, readable_output
from jaxafl.cli.report import report
from jaxafl.cli.resume import resume
from jaxafl.cli.simulate import run, sweep
from jaxafl.options import UserError
from jaxafl.references import version

COMMANDS: dict[str, Any] = dict(
    run=run,
    sweep=sweep,
    compare=methods.compare,
    tune=methods.tune,
    resume=resume,
    gather=gather,
    list=list_names,
    plot=plot_results,
    report=report,
    quickstart=compare,
    init=init,
    data=data,
    doctor=doctor,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        argv: the arguments; by default those of the process.

    Returns:
        The exit code: 0; 1 if parameters stopped being finite; 2 for a user's error, with a message on stderr; 128 plus
        the number of the signal for an interruption (130: Ctrl-C). Other exceptions are bugs, and are raised.
    """
    code = 0
    with readable_output():
        code = _command(argv)
    return code


def _command(argv: Sequence[str] | None) -> int:
    """Runs a command and returns the exit code of `main`."""
    if argv is None:  # this process runs one command: collecting garbage while it traces and exits would slow it down
        gc.set_threshold(50_000)
        print_warnings()
        atexit.register(gc.freeze)
    name, *arguments = map(_expand_home, (sys.argv[1:] if argv is None else argv) or [""])
    if name in ("", "-h", "--help"):
        print(_usage(), file=sys.stdout if name else sys.stderr)
        return 0 if name else 2
    if name == "--version":
        print(f"jaxafl {version()}")
        return 0
    try:
        if name not in COMMANDS:
            raise UserError(f"there is no command {name!r}; choose from {', '.join(COMMANDS)}")
        if name in ("run", "sweep", "compare", "tune"):
            # hides the time of this import behind that of tracing
            threading.Thread(target=importlib.import_module, args=("xarray",), daemon=True).start()
            return COMMANDS[name](arguments)
        return tyro.cli(COMMANDS[name], prog=f"jaxafl {name}", args=arguments)
    except SystemExit as ended:  # the option parser has printed the reason
        return int(ended.code or 0)
    except Interrupted as ended:
        lost = name in ("run", "sweep", "compare", "tune") and not is_given(arguments, "--checkpoint", "--folder")
        print(f"jaxafl: {ended}{'; nothing of it is kept, as --folder does' if lost else ''}", file=sys.stderr)
        return 128 + ended.signal
    except KeyboardInterrupt:
        print("jaxafl: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        raise
    except (UserError, OSError, MemoryError, ImportError) as error:
        print(f"jaxafl: error: {str(error).strip()}", file=sys.stderr)
        return 2


def _expand_home(argument: str) -> str:
    """Returns an argument with `~` replaced by the home directory; shells do not expand `--option=~/folder`."""
    option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    return option + equals + os.path.expanduser(value)


def _usage() -> str:
    wrap = functools.partial(textwrap.fill, width=80, break_on_hyphens=False)
    lines = [
        wrap(f"  {name:<11} {(command.__doc__ or '').splitlines()[0]}", subsequent_indent=" " * 14).replace("`", "")
        for name, command in COMMANDS.items()
    ]
    head = "usage: jaxafl COMMAND [options]\n       jaxafl --version\n\nSimulates asynchronous federated learning.\n"
    more = "jaxafl COMMAND --help shows the options of a command; those of run and sweep depend on the names, e.g."
    return "\n".join([head, *lines, "", wrap(more), "jaxafl run --server fadas --clock free_running --help"])
