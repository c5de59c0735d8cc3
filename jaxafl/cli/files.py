"""Arrays of one number per client from files: `--client.learning-rate @rates.npy`."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxafl.cli.catalogue import offered
from jaxafl.cli.options import Names
from jaxafl.options import UserError

Arrays = dict[tuple[str, str], np.ndarray]


def read_numbers(file: str, owner: str) -> np.ndarray:
    """Returns the numbers of a file, [N]: an array in NumPy's format (.npy), or numbers separated by commas or spaces.

    Args:
        file: path of the file.
        owner: the option, for messages.

    Raises:
        UserError: the file cannot be read, or has something else in it.
    """
    expected = "expected an array of numbers (.npy), or numbers separated by commas, spaces or lines"
    try:
        if pathlib.Path(file).suffix == ".npy":
            found = np.load(file, allow_pickle=False)
        else:
            words = pathlib.Path(file).read_text(encoding="utf-8").replace(",", " ").split()
            found = np.asarray([float(word) if set(word) & set(".eEnN") else int(word) for word in words])
    except OSError as error:
        raise UserError(f"{owner}: @{file} cannot be read: {error.strerror or error}; {expected}") from error
    except ValueError as error:
        raise UserError(f"{owner}: @{file} is something else: {error}; {expected}") from error
    if found.dtype.kind not in "iuf" or found.ndim != 1:
        raise UserError(f"{owner}: @{file} has shape {found.shape} and type {found.dtype}; {expected}, one per client")
    return found


def without_files(arguments: Sequence[str], names: Names) -> tuple[list[str], Arrays]:
    """Returns a command line with 1 in the place of every `@FILE`, and the numbers of these files.

    Args:
        arguments: the command line.
        names: the constructors; their numbers, and those of local training, may be one per client.
    """
    flags: dict[str, tuple[str, str]] = {}
    for part, constructor in names.items():
        local = offered("local training")["Client"].options if part == "client" else ()
        for option in (*constructor.options, *local):
            if "one per client" in option.allowed or (part == "client" and option.type.startswith(("int", "float"))):
                flags[f"--{part}.{option.name}".replace("_", "-")] = part, option.name
    plain, found = list(arguments), Arrays()
    for place, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if not equals and place + 1 < len(arguments):
            value = arguments[place + 1]
        if value.startswith("@") and (option_of := flags.get(flag.replace("_", "-"))):
            found[option_of] = read_numbers(value[1:], flag)
            plain[place if equals else place + 1] = f"{flag}=1" if equals else "1"
    return plain, found


def with_arrays(options: Any, arrays: Mapping[tuple[str, str], np.ndarray]) -> Any:
    """Returns parsed options with the numbers of files; `arrays`: of `without_files`."""
    for (part, name), numbers in arrays.items():
        group = dataclasses.replace(getattr(options, part), **{name: numbers})
        options = dataclasses.replace(options, **{part: group})
    return options
