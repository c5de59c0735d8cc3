"""Detection of dropout and batch statistics that ignore the mode, by tracing a network once in each mode."""

from __future__ import annotations

import fnmatch
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.models.leaves import path_of
from jaxafl.models.modes import Modes, by_convention
from jaxafl.options import UserError


@dataclass
class Part:
    """Module of a network, as observed in one mode.

    Attributes:
        name: name of its class.
        flags: name -> value of its flags.
        rate: name and value of its dropout rate if it is > 0.
        draws: number of random draws of the module and its submodules.
        own_draws: number of random draws of the module without submodules, for dropout or under a training flag.
    """

    name: str
    flags: dict[str, Any] = field(default_factory=dict)
    rate: tuple[str, float] | None = None
    draws: int = 0
    own_draws: int = 0


Parts: TypeAlias = dict[str, Part]
"""The modules of a network by their paths."""
MASK = (
    "the network takes `mask`, and is given Batch.mask, bool [B]: which samples are no padding. If its mask is another "
    "one (of attention), give training={'mask': None} and evaluation={'mask': None}"
)
PROBE = 13
"""Batch size of the trace, a number that is rarely the size of another axis."""


def check_reached(
    modes: Modes,
    train: bool,
    parts: Parts,
    statistics: dict[str, bool],
    advice: Callable[[str, str, bool], str],
    withheld: tuple[str, ...] = (),
) -> None:
    """Raises `ValueError` for dropout and batch statistics that ignore the mode.

    Training applies dropout with a rate > 0 and updates batch statistics; evaluation does neither. A module whose flag
    the user has set against its name is not checked.

    Args:
        modes: the user's values.
        train: True for training, False for evaluation.
        parts: the modules, as observed in this mode.
        statistics: path -> True if the mode changes this leaf of the batch statistics.
        advice: (path of a module, its flag, the flag's value in training) -> advice for the error.
        withheld: paths of modules that would draw random numbers in training if their flags selected training.
    """
    if any(
        by_convention(name, train) not in (None, modes.given(train)[name])
        for name in modes.reserved & {*modes.given(train)}
    ):
        return
    with_rate = [path for path, part in parts.items() if part.rate]
    for path, part in parts.items():
        above = any(_below(other, path) for other in with_rate if other != path)
        unreached = path in withheld or (part.rate is not None and part.draws == 0 and not above)
        if (unreached if train else part.own_draws > 0) and not _declared(modes, train, path, part):
            rate = f" ({part.rate[0]}={part.rate[1]:g})" if part.rate else ""
            does = "never applied in training" if train else "applied in evaluation too"
            _refuse(modes, train, parts, path, f"dropout of {_called(path, part)}{rate} is {does}", advice)
    for leaf, changes in statistics.items():
        path = max((one for one in parts if _below(leaf, one)), key=len, default="")
        part = parts.get(path, Part(modes.network))
        if "use_running_average" in part.flags:
            changes = changes and not part.flags["use_running_average"]
        if changes is not train and not _declared(modes, train, path, part):
            does = "never move in training" if train else "are those of the batch in evaluation too"
            _refuse(modes, train, parts, path, f"batch statistics {leaf} of {_called(path, part)} {does}", advice)


def _refuse(
    modes: Modes, train: bool, parts: Parts, path: str, found: str, advice: Callable[[str, str, bool], str]
) -> None:
    """Raises the error, which names the outermost flag with the value of the other mode."""
    opposite = [
        (other, name)
        for other, part in sorted(parts.items())
        for name, value in part.flags.items()
        if _below(path, other) and value is not None and value == by_convention(name, not train)
    ]
    if not opposite and not (path in parts and parts[path].flags):
        raise UserError(
            f"{modes.owner}: the {found}. No flag of a known name reaches it: let the call of {modes.network} take "
            "train (true in training) and make it depend on that, or give training={NAME: ...} and "
            "evaluation={NAME: ...} for the argument or attribute that it depends on"
            + ("" if "statistics" in found else "; where none is wanted, give it a rate of 0")
        )
    where, flag = (
        opposite[0] if opposite else (path, "use_running_average" if "statistics" in found else "deterministic")
    )
    why = f": {flag} is {parts[where].flags[flag]} in {_called(where, parts[where])}" if opposite else ""
    raise UserError(f"{modes.owner}: the {found}{why}. {advice(where, flag, bool(by_convention(flag, True)))}")


def opposed(parts: Parts, train: bool) -> dict[str, bool]:
    """Returns flags with the other mode's value in modules without draws: `path/name` -> the value in this mode."""
    return {
        f"{path}/{name}": bool(by_convention(name, train))
        for path, part in parts.items()
        for name, value in part.flags.items()
        if path and part.draws == 0 and isinstance(value, bool) and value == by_convention(name, not train)
    }


def changed(function: Callable[..., Any], tree: Any, *others: Any) -> dict[str, bool]:
    """Returns, for every leaf of a tree by path, True if the function changes it.

    The function returns a tree of equal structure. A leaf is unchanged if the trace returns its input variable.
    """
    given = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), (tree, *others))
    traced = jax.make_jaxpr(function)(*given).jaxpr
    paths = [path_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    if len(traced.outvars) != len(paths):
        return dict.fromkeys(paths, True)  # another structure, for which the call itself raises an error
    same = [_origin(traced, one) is other for one, other in zip(traced.outvars, traced.invars, strict=False)]
    return {path: not unchanged for path, unchanged in zip(paths, same, strict=True)}


def dropout_rate(owner: str, attributes: Mapping[str, Any]) -> tuple[str, float] | None:
    """Returns name and value of the dropout rate among the attributes of a module, or None without a rate > 0."""
    for name, value in attributes.items():
        drops = "drop" in owner.lower() or "stochastic" in owner.lower()
        of_dropout = "drop" in name.lower() or (name in ("rate", "prob", "p") and drops)
        number = isinstance(value, numbers.Real | jax.Array | np.ndarray) and not isinstance(value, bool)
        if of_dropout and number and np.shape(value) == () and 0 < float(value) <= 1:
            return name, float(value)
    return None


def probed(batch: Any) -> Any:
    """Returns the shapes of a batch, with batch size `PROBE`."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((PROBE, *leaf.shape[1:]), leaf.dtype), batch)


def _origin(jaxpr: Any, variable: Any) -> Any:
    """Returns the variable that `variable` is a copy of, through calls that pass it on unchanged."""
    for equation in jaxpr.eqns:
        if variable in equation.outvars and hasattr(equation.params.get("jaxpr"), "jaxpr"):
            inner = equation.params["jaxpr"].jaxpr
            found = _origin(inner, inner.outvars[equation.outvars.index(variable)])
            if len(inner.invars) == len(equation.invars) and found in inner.invars:
                return _origin(jaxpr, equation.invars[inner.invars.index(found)])
    return variable


def _declared(modes: Modes, train: bool, path: str, part: Part) -> bool:
    given = [key for key in modes.given(train) if key not in modes.reserved]
    flags = part.flags or ("use_running_average",)
    return any(key == name or fnmatch.fnmatchcase(f"{path}/{name}", key) for key in given for name in flags)


def _below(path: str, other: str) -> bool:
    """Returns True if `path` equals `other` or lies below it."""
    return not other or f"{path}/".startswith(f"{other}/")


def _called(path: str, part: Part) -> str:
    return f"{path} ({part.name})" if path else part.name
