"""Simulates asynchronous federated learning. jaxafl --version shows the version.

jaxafl COMMAND --help shows options; those of run depend on the names given.
"""

from __future__ import annotations

import gc
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import tyro

from jaxafl.cli import doctor, quickstart, show
from jaxafl.cli.simulate import SIMULATING, resume
from jaxafl.options import UserError
from jaxafl.references import version

# This docstring is the help of `jaxafl`. The first line of a command's docstring is its line in it; its `Args` are the
# help of its options.
COMMANDS: dict[str, Any] = SIMULATING | {
    "resume": resume,
    "gather": show.gather,
    "list": show.list_names,
    "plot": show.plot_results,
    "report": show.report,
    "quickstart": quickstart.quickstart,
    "init": quickstart.init,
    "data": doctor.data,
    "doctor": doctor.doctor,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        argv: the arguments; by default those of the process.

    Returns:
        The exit code: 0; 1 if parameters stopped being finite; 2 for a user's error, with a message on stderr; 128 plus
        the number of the signal for an interruption (130: Ctrl-C). Other exceptions are bugs, and are raised.
    """
    if argv is None:
        argv = sys.argv[1:]
        gc.set_threshold(50_000)  # collecting garbage while JAX traces would slow down the one command of this process
        warnings.filterwarnings("once", category=UserWarning, append=True)
        warnings.formatwarning = lambda message, *place, **how: f"jaxafl: warning: {message}\n"
        if {"list", "-h", "--help"} & {*argv}:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `jaxafl list | head` ends as other commands do
    name, *arguments = argv or [""]
    try:
        if name == "--version":
            print(f"jaxafl {version()}")
            return 0
        if name in SIMULATING:
            return SIMULATING[name](arguments) or 0
        return tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="jaxafl", description=__doc__, args=argv) or 0
    except SystemExit as ended:  # the option parser has printed the reason
        return int(ended.code or 0)
    except KeyboardInterrupt as ended:  # also `Interrupted`, which says by what, and where it saved
        print(f"jaxafl: {str(ended) or 'interrupted'}", file=sys.stderr)
        return 128 + getattr(ended, "signal", signal.SIGINT)
    except (UserError, OSError, MemoryError, ImportError) as error:
        print(f"jaxafl: error: {str(error).strip()}", file=sys.stderr)
        return 2
