"""Standard output into a pipe that is not read to its end."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Iterator


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


def _reader_has_ended() -> bool:
    """Returns True if nothing reads standard output; on Windows, where this is not known, always."""
    if not hasattr(select, "poll"):
        return True
    errors = select.poll()
    errors.register(sys.stdout.fileno(), 0)  # errors are reported unasked
    return bool(errors.poll(0))
