"""The typed arguments of `jaxafl list`, `plot` and `quickstart`."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from jaxafl import plot
from jaxafl.quickstart import BUDGET

Kind: Any = Literal[tuple(plot.__all__)]
Files = Annotated[
    tuple[pathlib.Path, ...],
    arg(help="result files (NetCDF)", metavar="RESULT.nc [RESULT.nc ...]", help_behavior_hint="(one or more)"),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class List:
    """Arguments of `jaxafl list`."""

    json: Annotated[bool, arg(help="as JSON, with the type, default and help of every option")] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plot:
    """Arguments of `jaxafl plot`."""

    files: Positional[Files]
    output: Annotated[pathlib.Path, arg(help="image to write; its ending sets the format", metavar="IMAGE")]
    kind: Annotated[Kind, arg(help="what is drawn")] = "accuracy_vs_time"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quickstart:
    """Arguments of `jaxafl quickstart`."""

    output_dir: Annotated[pathlib.Path, arg(help="folder for quickstart.nc and quickstart.png")] = pathlib.Path(".")
    budget: Annotated[int, arg(help="local steps of every method, all clients together")] = BUDGET
    seed: Annotated[int, arg(help="seed of the initial model, the schedules and the mini-batches")] = 0
    progress: Annotated[bool, arg(help="show progress bars")] = True
