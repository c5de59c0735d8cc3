"""Members of a figure or a table: each is one configuration, with one run per seed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import xarray as xr

from jaxafl.options import UserError, did_you_mean, shown
from jaxafl.results.curves import failed_steps

At: TypeAlias = str | Mapping[str, Any]
"""A point at which runs are compared, see `jaxafl.Comparison`."""
Results = xr.Dataset | Mapping[str, xr.Dataset]
OF_A_RUN = {"step", "arrival", "evaluation", "version", "population", "label", "predicted", "test_set"}
"""Dimensions of the result of one run."""
_SEED = "seed"


class Member(NamedTuple):
    """Runs that a figure, or a report, shows as one line."""

    name: str  # "" for a single result that needs no name
    runs: list[xr.Dataset]  # without sweep dimensions; one per seed
    place: dict[str, str]  # axis of the sweep -> its value, as text
    at: At = "last"  # the point at which a report compares the runs


def members(results: Results, *variables: str) -> list[Member]:
    """Splits results into the members that a figure compares.

    Args:
        results: a result of a run or a sweep, or such results by name. The runs along `seed` belong to one member;
            every combination of the other sweep dimensions is a separate member.
        variables: the variables that the figure needs.

    Raises:
        TypeError: these are not results.
        ValueError: a result lacks a variable, or has no run.
    """
    named = by_name(results, "", "a figure")
    for name, dataset in named.items():
        if missing := [variable for variable in variables if variable not in dataset.variables]:
            known = [str(one) for one in dataset.data_vars]
            close = did_you_mean(missing[0], known)
            raise UserError(
                f"{f'the result {name}'.strip()} has no {', '.join(missing)}; it has {', '.join(known)}{close}"
            )
    found = [member for name, dataset in named.items() for member in _split(name, dataset, variables)]
    if not all(member.runs for member in found) or not found:
        sizes = {str(dim): size for dataset in named.values() for dim, size in dataset.sizes.items() if not size}
        raise UserError(f"there is no run to plot: the results are empty along {', '.join(sizes) or 'all dimensions'}")
    return found


def finished_members(results: Results, *variables: str) -> list[Member]:
    """Returns the members of a figure with their runs that are finished, without members that have none.

    Args:
        results, variables: arguments of `members`.

    Raises:
        TypeError, ValueError: see `members`, or no run is finished.
    """
    kept = []
    for one in members(results, *variables):
        if runs := [run for run in one.runs if _are_finished(run).all()]:
            kept.append(one._replace(runs=runs))
    if not kept:
        raise UserError("there is no run to plot: none is finished")
    return kept


def unfinished(results: Results | Any) -> str:
    """Returns a note of the runs that are not finished; "" if all are."""
    done = np.concatenate([_are_finished(one).ravel() for one in by_name(results, "", "a figure").values()])
    return "" if done.all() else f"{(~done).sum()} of {done.size} runs are not finished"


def _are_finished(result: xr.Dataset) -> np.ndarray:
    """Returns True for runs with evaluations; those of an unfinished sweep without any have missing values."""
    if "eval_time" not in result.variables:
        return np.ones(1, bool)
    known = result["eval_time"].notnull()
    return np.asarray(known.any([dim for dim in known.dims if dim == "evaluation"]).values)


def by_name(results: Any, single: str, owner: str) -> Mapping[str, xr.Dataset]:
    """Returns results by name.

    Args:
        results: a result, results by name, or a comparison.
        single: name of a single result.
        owner: the reader of the results, for the message.

    Raises:
        TypeError: these are not results.
        ValueError: there is no result.
    """
    given: Any = getattr(results, "results", results)  # of a comparison
    named = {single: given} if isinstance(given, xr.Dataset) else given
    if not isinstance(named, Mapping) or not all(isinstance(one, xr.Dataset) for one in named.values()):
        file = isinstance(given, str | os.PathLike)
        raise TypeError(
            f"{owner} takes a result (xarray.Dataset) of a run or a sweep, a Comparison, or a dict of results by name; "
            f"got {shown(results)}" + (f". Read the file first: jaxafl.load({os.fspath(given)!r})" if file else "")
        )
    if not named:
        raise UserError("there is no result to show: the dict is empty; give {'a name': result}")
    return named


def heading(results: Results, *notes: str) -> str:
    """Returns the title of a single result, and notes of failed and unfinished runs; other notes follow."""
    title = titled(str(results.attrs.get("title", "")), results) if isinstance(results, xr.Dataset) else ""
    return "\n".join(filter(None, [title, unfinished(results), *notes]))


def titled(name: str, result: xr.Dataset) -> str:
    """Returns a name, with a note if runs of the result failed."""
    steps = np.atleast_1d(failed_steps(result))
    failed = int((steps >= 0).sum())
    if not failed:
        return name
    note = f"{failed} of {steps.size} runs failed" if steps.size > 1 else f"failed at server step {steps.max():g}"
    return f"{name} ({note})" if name else note


def _split(name: str, dataset: xr.Dataset, variables: tuple[str, ...]) -> list[Member]:
    swept = {dim for variable in variables for dim in dataset[variable].dims} - OF_A_RUN
    axes = [dim for dim in dataset.dims if dim in swept and dim != _SEED]
    found = []
    for indices in np.ndindex(*(dataset.sizes[axis] for axis in axes)):
        place = dict(zip(axes, indices, strict=True))
        chosen = dataset.isel(place)
        labels = {str(axis): _label(dataset, str(axis), index) for axis, index in place.items()}
        runs = [chosen.isel({_SEED: seed}) for seed in range(chosen.sizes[_SEED])] if _SEED in swept else [chosen]
        found.append(Member(", ".join([name, *labels.values()] if name else labels.values()), runs, labels))
    return found


def _label(dataset: xr.Dataset, axis: str, index: int) -> str:
    """Returns the label of a place of an axis, such as `server.alpha=0.2`; of a part (axis `server`) only its name."""
    value = dataset[axis].values[index] if axis in dataset.coords else index
    if isinstance(value, str):
        return f"{axis}={value}" if "." in axis else str(value)
    return f"{axis}={value:g}"
