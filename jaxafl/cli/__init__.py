"""The command line: `jaxafl COMMAND`, with the names of the Python interface.

The first line of a command's docstring is its line in the help, the `Args` are the help of its options.
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
from jaxafl.cli.commands import compare, gather, list_names, plot_results
from jaxafl.cli.doctor import doctor
from jaxafl.cli.init import init
from jaxafl.cli.options import is_given
from jaxafl.cli.report import report
from jaxafl.cli.simulate import resume, run, sweep
from jaxafl.options import UserError
from jaxafl.references import version

COMMANDS: dict[str, Any] = dict(
    run=run,
    sweep=sweep,
    resume=resume,
    gather=gather,
    list=list_names,
    plot=plot_results,
    report=report,
    quickstart=compare,
    init=init,
    doctor=doctor,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        argv: the arguments; by default those of the process.

    Returns:
        The exit code: 0, 1 for a run whose parameters stopped being finite, 2 for a mistake of the user's (stderr says
        which), 128 and the number of the signal for an interruption (130: Ctrl-C). Anything else is a bug, and raised.
    """
    if argv is None:
        # the process is ours: collecting garbage while it traces, and all of it at its end, takes 0.4 s of 2.2
        gc.set_threshold(50_000)
        atexit.register(gc.freeze)
    name, *arguments = [_at_home(one) for one in (sys.argv[1:] if argv is None else argv)] or [""]
    if name in ("", "-h", "--help"):
        print(_usage(), file=sys.stdout if name else sys.stderr)
        return 0 if name else 2
    if name == "--version":
        print(f"jaxafl {version()}")
        return 0
    try:
        if name not in COMMANDS:
            raise UserError(f"there is no command {name!r}; choose from {', '.join(COMMANDS)}")
        if name in ("run", "sweep"):
            # what results are made of takes a third of a second to import, meanwhile
            threading.Thread(target=importlib.import_module, args=("xarray",), daemon=True).start()
            return COMMANDS[name](arguments)
        return tyro.cli(COMMANDS[name], prog=f"jaxafl {name}", args=arguments)
    except SystemExit as ended:  # of the option parser, which has said why
        return int(ended.code or 0)
    except Interrupted as ended:
        lost = name in ("run", "sweep") and not is_given(arguments, "--checkpoint")
        print(f"jaxafl: {ended}{'; nothing of it is kept, as --checkpoint does' if lost else ''}", file=sys.stderr)
        return 128 + ended.signal
    except KeyboardInterrupt:
        print("jaxafl: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `jaxafl list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (UserError, OSError, MemoryError, ImportError) as error:
        print(f"jaxafl: error: {str(error).strip()}", file=sys.stderr)
        return 2


def _at_home(argument: str) -> str:
    """Returns an argument with `~` replaced by the home directory, which shells do not do in `--option=~/folder`."""
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
