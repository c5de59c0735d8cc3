"""Standard output into a pipe that is not read to its end, and warnings on standard error."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import warnings
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def readable_output() -> Iterator[None]:
    """Ends its block without an error if the reader of standard output has ended, as in `jaxafl list | head`.

    Raises:
        BrokenPipeError: another pipe broke, such as that of a tracker.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_has_ended():
            raise
        # without it, Python fails again when it flushes stdout at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_warnings() -> None:
    """Prints each warning to users once, and without the line of code that raised it, from now on."""
    usual, printed = warnings.showwarning, set[str]()

    def show(message: Warning | str, category: type[Warning], *place: Any, **how: Any) -> None:
        if not issubclass(category, UserWarning | FutureWarning):
            usual(message, category, *place, **how)
        elif str(message) not in printed:
            printed.add(str(message))
            print(f"jaxafl: warning: {message}", file=sys.stderr)

    warnings.showwarning = show


def _reader_has_ended() -> bool:
    """Returns True if nothing reads standard output; on Windows, where this is not known, always."""
    if not hasattr(select, "poll"):
        return True
    errors = select.poll()
    errors.register(sys.stdout.fileno(), 0)  # errors are reported unasked
    return bool(errors.poll(0))
