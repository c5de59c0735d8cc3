"""What a table or figure is: its runs, what is measured on them, what was published, what the paper claims."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import jaxafl as afl
from jaxafl.options import UserError, shown

SCALES = ("smoke", "cpu", "paper")
Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class Cell:
    """One simulation of a table, run once for every seed.

    Attributes:
        make: the simulation; `FileNotFoundError` where its data cannot be had.
        server_steps: of `jaxafl.sweep`, or a function that returns it, where it takes a schedule to know it.
        eval_every: of `jaxafl.sweep`, or a function of the server steps that returns it.
        diagnostics, callbacks, observe: of `jaxafl.sweep`.
        client_steps: about how many local steps all clients make, by which the time of a table is estimated. 0: the
            clock alone is run, and measures get schedules.
        expected_steps: server steps after which a callback will have stopped it, for that estimate; 0: none does.
        axes: of `jaxafl.sweep`, beside the seeds.
        known: attributes that the runs get, for measures: `target` for `time_to`, for example.
    """

    make: Callable[[], afl.Simulation]
    server_steps: int | Callable[[], int]
    client_steps: int
    eval_every: int | Callable[[int], int] = 1
    diagnostics: tuple[str, ...] = ()
    callbacks: tuple[Any, ...] = ()
    expected_steps: int = 0
    axes: Mapping[Any, Sequence[Any]] = dataclasses.field(default_factory=dict)
    known: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    observe: Callable[[Any], Mapping[str, Any]] | None = None

    def lengths(self) -> tuple[int, int]:
        """The server steps of a run, and those between its evaluations."""
        steps = self.server_steps() if callable(self.server_steps) else self.server_steps
        return steps, self.eval_every(steps) if callable(self.eval_every) else self.eval_every


class Measure(NamedTuple):
    """What is read off the runs of a cell.

    Attributes:
        of: the result of a sweep over seeds, or the schedules where the clock alone was run -> a number per seed.
        unit: what follows the number, " %" for example.
        digits: after the decimal point.
    """

    of: Callable[[Any], Array]
    unit: str = ""
    digits: int = 2


class Values:
    """What was measured: `values("PSURDG", "d = 3")` is a number per seed, of the first measure or of the one named."""

    def __init__(self, found: Mapping[tuple[str, str, str], Array], measure: str) -> None:
        self.found, self.measure = found, measure
        self.read: list[tuple[str, str]] = []  # (method, column) of the numbers that were asked for

    def __call__(self, method: str, column: str, measure: str | None = None) -> Array:
        """A number per seed; `KeyError` where it was not measured."""
        self.read.append((method, column))
        return self.found[measure or self.measure, method, column]


class Claim(NamedTuple):
    """What the paper says of its results, as a number per seed that is above 0 where it is so.

    Attributes:
        text: the claim.
        of: the numbers.
        unit: unit of the numbers, " points" for example; "" without one.
    """

    text: str
    of: Callable[[Values], Array]
    unit: str = ""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A table or figure.

    Attributes:
        title: its line in lists: paper, number, what it shows.
        family: name of the folder of its runs; those of one family share runs where method, column and scale agree.
        cell: (method, column, scale) -> what is run; `None` where the table has nothing.
        methods, columns: their names.
        measures: by name; the first is that of claims and figures.
        scales: scale -> what it changes of the published setting.
        published: measure -> column -> method -> number, (number, its error bar) or `more_than(number)`; NaN where it
            cannot be read.
        contrasts: name -> (method, method): rows of differences, paired by seed.
        claims: of the paper, or of the issue that is studied.
        reasons: why a scale's numbers differ from the published ones.
        seeds: how many the paper has.
        few: how many are run at the scale of a CPU, so that it ends within half an hour; by default as many.
        curve: (variable, coordinate) that a figure shows, such as `("accuracy", "eval_time")`.
        against: (label, column -> (panel, number)): a figure shows measures against these numbers.
        shown: those measures; by default the first.
        predicted: measure -> the measure that predicts it, dashed in a figure `against` numbers, which is logarithmic.
        derived: what is made of a cell's runs, or schedules, before they are measured and drawn.
        base: column -> the method whose clock and clients a user's own one has; by default the first.
        left_out: scale -> columns that are not run there, unless they are asked for.
        no_data: columns whose data, or pretrained weights, cannot be had from where the others are.
        note: what is to be known of the numbers: what is unpublished and was fixed how.
    """

    title: str
    family: str
    cell: Callable[[str, str, str], Cell | None]
    methods: Sequence[str]
    columns: Sequence[str]
    measures: Mapping[str, Measure]
    scales: Mapping[str, str]
    published: Mapping[str, Mapping[str, Mapping[str, float | tuple[float, float]]]] = dataclasses.field(
        default_factory=dict
    )
    contrasts: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    claims: Sequence[Claim] = ()
    reasons: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seeds: int = 3
    few: int | None = None
    curve: tuple[str, str] | None = None
    against: tuple[str, Mapping[str, tuple[str, float]]] | None = None
    shown: Sequence[str] = ()
    predicted: Mapping[str, str] = dataclasses.field(default_factory=dict)
    derived: Callable[[Any], Any] = lambda runs: runs
    base: Callable[[str], str] | None = None
    left_out: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    no_data: Sequence[str] = ()
    note: str = ""

    def published_of(self, measure: str, method: str, column: str) -> tuple[float, float]:
        """(number, its error bar), NaN for what was not published."""
        found = self.published.get(measure, {}).get(column, {}).get(method, np.nan)
        return found if isinstance(found, tuple) else (found, np.nan)

    def columns_at(self, scale: str) -> list[str]:
        """The columns that are run at a scale unless others are asked for; the first of them to see whether it runs."""
        if scale == "smoke":
            return list(self.columns[:1])
        return [column for column in self.columns if column not in self.left_out.get(scale, ())]

    def base_of(self, column: str) -> str:
        """The method whose simulation a user's own one changes."""
        return self.base(column) if self.base else self.methods[0]

    def seeds_at(self, scale: str) -> int:
        """How many are run at a scale unless another number is asked for."""
        return {"smoke": 1, "cpu": self.few or self.seeds}.get(scale, self.seeds)

    def client_steps(self, scale: str) -> int:
        """Local steps of all clients in the cells that are run at a scale, for one seed."""
        columns = self.columns_at(scale)
        cells = (self.cell(method, column, scale) for column in columns for method in self.methods)
        return sum(cell.client_steps for cell in cells if cell)

    def data_of(self, scale: str) -> list[str]:
        """Names of the datasets of a scale, one per cell that differs, those that cannot be found in parentheses."""
        found: dict[str, None] = {}
        for column in self.columns_at(scale):
            for method in self.methods:
                cell = self.cell(method, column, scale)
                if cell is None:
                    continue
                try:
                    found.setdefault(cell.make().data.name)
                except FileNotFoundError as error:
                    found.setdefault(f"({str(error).split(' ', 1)[0]} is missing)")
                break
        return list(found)


def with_own(cell: Cell, own: Any) -> Cell:
    """A cell whose simulation is the user's: `own` is a server or its class, or a function without required arguments
    that makes one, or a function that takes the simulation of the base method and returns another, or a server."""
    return dataclasses.replace(cell, make=lambda: changed(cell.make(), own))


def changed(base: afl.Simulation, own: Any) -> afl.Simulation:
    """The simulation with the user's method, see `with_own`.

    Raises:
        UserError: it cannot be made of this.
    """
    made = own
    if callable(own):
        required = [
            name
            for name, one in inspect.signature(own).parameters.items()
            if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
        ]
        if len(required) > (0 if isinstance(own, type) else 1):
            raise UserError(
                f"{own.__name__} needs values of {', '.join(required)}; write a function without required arguments "
                f"that returns {own.__name__}(...), and name that"
            )
        made = own(*([base] if required else []))
    if isinstance(made, afl.server.Server):
        return dataclasses.replace(base, server=made)
    if not isinstance(made, afl.Simulation):
        raise UserError(f"a method is a server or a simulation, or a function that returns one, got {shown(made)}")
    return made
