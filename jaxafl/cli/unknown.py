"""What to do instead where a command line has an option that there is not."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from typing import Any, NoReturn

from jaxafl.cli.names import Chosen


def refuse(unknown: Sequence[str], names: Chosen, options: Any) -> NoReturn:
    """Raises `ValueError` for arguments that no option takes.

    Args:
        unknown: the arguments.
        names: the constructors, which decide what options there are.
        options: what the rest of the command line says.
    """
    flag = next((argument for argument in unknown if argument.startswith("--")), unknown[0]).partition("=")[0]
    part, dot, _ = flag.removeprefix("--").partition(".")
    if dot and part in ("data", "partition", "model", "client", "server", "clock"):
        raise ValueError(f"there is no option {flag}: {_alternatives(part, names, options)}")
    if flag == "--axis":
        raise ValueError("--axis is for `jaxafl sweep`; `jaxafl run` simulates one configuration")
    flags = [_flag(field.name.removesuffix("_name")) for field in dataclasses.fields(options)]
    close = difflib.get_close_matches(flag, flags, n=1)
    if flag.startswith("--"):
        raise ValueError(f"there is no option {flag}; {f'did you mean {close[0]}?' if close else '--help lists all'}")
    raise ValueError(f"{flag!r} is not an option, nor the value of one; --help lists all")


def _alternatives(part: str, names: Chosen, options: Any) -> str:
    made = names.optimizer if part == "client" else getattr(names, part)
    if made is None:
        return f"no {part} is chosen; --{part} names one"
    known = [_flag(f"{part}.{field.name}") for field in dataclasses.fields(getattr(options, part))]
    choose = "--client.optimizer" if part == "client" else f"--{part}"
    what = "the optimiser" if part == "client" else f"the {part}"
    return f"{what} is {made.name} ({choose} chooses another), which has {', '.join(known) or 'none'}"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
