"""Code common to all statements: the constants by name, their checks, the dataset of a bound, and steps to a target."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from jaxafl.options import UserError, as_numbers, check_choice, check_number

Number = float | np.ndarray
"""A number, or an array [T] with a value for each number of server steps at which a bound is evaluated."""
Terms = dict[str, tuple[str, Number]]
"""Formula and value of each term of a bound, by name."""


class Constant(NamedTuple):
    """An argument of a statement; `dimension` (a, b) is its unit, (length)^a (objective)^b."""

    symbol: str
    meaning: str
    dimension: tuple[int, int] = (0, 0)
    least: float | None = None
    above: float | None = None


CONSTANTS: dict[str, Constant] = {
    "server_steps": Constant("T", "server steps", least=1),
    "local_steps": Constant("K", "local steps of a run", least=1),
    "clients": Constant("N", "clients", least=1),
    "arrivals": Constant("M, n, J", "updates that a server step takes", least=1),
    "mean_arrivals": Constant("I", "expected updates of a server step", least=0),
    "gap": Constant("F(x_0) - F*", "difference of the first objective and the optimum", (0, 1), least=0),
    "distance": Constant("R", "bounds ‖w - w*‖ along the run", (1, 0), least=0),
    "smoothness": Constant("L", "Lipschitz constant of every client's gradient", (-2, 1), above=0),
    "strong_convexity": Constant("μ", "strong convexity of every client's objective", (-2, 1), above=0),
    "optimum_spread": Constant("h²", "bounds ‖w_i* - w*‖²", (2, 0), least=0),
    "gradient_bound": Constant("G", "bounds the norm of every (stochastic) gradient of a client", (-1, 1), least=0),
    "local_variance": Constant("σ²", "variance of a client's mini-batch gradient, E‖g - ∇f_i‖²", (-2, 2), least=0),
    "global_variance": Constant("σ_g², ν²", "variance between clients, Σλ_i‖∇f_i - ∇F‖²", (-2, 2), least=0),
    "gradient_norm_squared": Constant("E‖∇F‖²", "squared norm of the full gradient", (-2, 2), least=0),
    "dissimilarity": Constant("β²", "(1/C) Σ‖∇L_i‖² <= ν² + β²‖∇L‖²", least=0),
    "euclidean_staleness": Constant("Γ", "bounds γ = ‖x_t - x_s‖ / ‖Δ‖", least=0),
    "mean_staleness": Constant("A", "Σλ_i E[τ_i]", least=0),
    "cubic_staleness": Constant("B", "Σλ_i E[τ_i³/3 + 3τ_i²/2 + 13τ_i/6]", least=0),
    "staleness_max": Constant("τ_max, λ", "largest staleness", least=0),
    "staleness_mean_of_max": Constant("τ_avg", "mean over server steps of the largest staleness", least=0),
    "staleness_threshold": Constant("τ_c", "staleness from which the rate is reduced", least=0),
    "server_rate": Constant("η, η_g", "rate of x += η Δ", above=0),
    "local_rate": Constant("η_l, γ", "rate of a local gradient step", (2, -1), above=0),
    "learning_rate": Constant("η", "rate of a server step along gradients", (2, -1), above=0),
    "adaptive_rate": Constant("η", "rate of a normalised step, x += η m / (√v + ε)", (1, 0), above=0),
    "mean_rate": Constant("H / T", "mean over server steps of FADAS's η_t", (1, 0), above=0),
    "epsilon": Constant("ε", "added to √v, with the length of an update", (1, 0), above=0),
    "unit_of_length": Constant("1", "the numerator of min(η, 1/τ_max), a length", (1, 0), above=0),
    "unit_of_objective": Constant("1", "the 1 in DeFedAvg's local rate, an objective", (0, 1), above=0),
    "start": Constant("d_0", "first value of the recursion", (0, 1), least=0),
    "initial_rate": Constant("ζ_0", "rate before any decay", (2, -1), above=0),
    "delay_penalty": Constant("α", "weight of the staleness in the rate", least=0),
    "descent": Constant("b", "factor of ζΨ in the recursion", above=0),
    "quadratic": Constant("a_1", "factor of ζ² in the recursion", (-4, 3), least=0),
    "cubic": Constant("a_2", "factor of ζ³ in the recursion", (-6, 4), least=0),
}  # fmt: skip
"""The constants of all statements by name. With their dimensions every bound scales with the units of parameters and
objective; server steps, local steps and staleness are counts."""

MEAN_GRADIENT = "mean_gradient_norm_squared"
AVERAGE_GAP = "gap_of_average"
_MEANINGS = {
    MEAN_GRADIENT: "(1/T) Σ_{t<T} E‖∇F(x_t)‖²",
    AVERAGE_GAP: "E f(ŵ(T)) - f(w*), ŵ(T) the mean of x_1 .. x_T",
    "gap_difference": "a difference of two bounds on E f(ŵ(T)) - f(w*)",
    "local_drift": "E‖x_k - x_s‖², the squared distance of a run from its start after k local steps",
    "update_norm_squared": "E‖Δ‖²",
    "lemma": "Ψ of a recursion d_{t+1} <= d_t - bζ_tΨ_t + a_1ζ_t² + a_2ζ_t³",
}
_IMPLIED: dict[str, Callable[[SimpleNamespace], Number]] = {  # by smoothness alone
    MEAN_GRADIENT: lambda v: 2 * v.smoothness * v.gap,
    AVERAGE_GAP: lambda v: v.smoothness * v.distance**2 / 2,
}


class Statement(NamedTuple):
    """A theorem or corollary, in one form."""

    paper: str  # key of jaxafl.references.BIBTEX
    name: str  # "Theorem 2, eq. (11)"
    quantity: str  # the bounded quantity, a key of _MEANINGS
    form: str  # "corrected", "printed", or "order" if constants are left out
    guaranteed: bool  # True if its conditions are known to imply it
    servers: tuple[str, ...] = ()  # names of the servers that it bounds; () if it is about a recursion
    note: str = ""


class Condition(NamedTuple):
    """The condition left <= right, or left < right if `strict`."""

    says: str
    left: Number
    right: Number
    strict: bool = False

    @property
    def met(self) -> np.ndarray:
        """True where the condition holds. Equality up to rounding counts, so a rate at the limit is allowed."""
        return np.asarray(self.left < self.right) if self.strict else np.asarray(self.left <= self.right * (1 + 1e-12))


def described(name: str) -> dict[str, str]:
    """Returns symbol and meaning of a constant, the attributes of its variable; none for other names."""
    return {"symbol": CONSTANTS[name].symbol, "long_name": CONSTANTS[name].meaning} if name in CONSTANTS else {}


_MOST = 1e18  # server steps, up to which a target is sought
_ORDERS = (("strong_convexity", "smoothness"), ("arrivals", "clients"), ("mean_arrivals", "clients"))
"""Pairs of constants of which the first is not larger."""


def numbers(owner: str, given: Mapping[str, Any]) -> SimpleNamespace:
    """Returns the checked constants in float64.

    Args:
        owner: the statement, for messages.
        given: values by the names of `CONSTANTS`, and perhaps the `form`; `None` and other names are ignored.

    Raises:
        ValueError, TypeError: a constant is not a number, not finite or out of its bounds, or the form is unknown.
    """
    check_choice(owner, "form", given.get("form", "printed"), ("corrected", "printed"))
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in CONSTANTS or value is None:
            continue
        limits = CONSTANTS[name]
        array = as_numbers(owner, name, value)
        for extreme in (array.min(), array.max()):  # NaN is both
            check_number(owner, f"{name} ({limits.symbol})", extreme, least=limits.least, above=limits.above)
        found[name] = array[()]
    for smaller, larger in _ORDERS:
        if {smaller, larger} <= found.keys() and np.any(found[smaller] > found[larger] * (1 + 1e-12)):
            raise UserError(f"{owner}: {smaller} must be <= {larger}, got {found[smaller]} > {found[larger]}")
    return SimpleNamespace(**found)


def check_counts(owner: str, name: str, value: Number) -> None:
    """Raises `ValueError` if the upper limit of a sum is not a whole number; 4.0 is one."""
    if np.any(value != np.floor(value)):
        raise UserError(f"{owner}: {name} must be whole, got {value}")


def quotient(numerator: Number, denominator: Number) -> Number:
    """Returns numerator / denominator, the limit that a condition sets; infinity where the denominator is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.equal(denominator, 0), np.inf, np.divide(numerator, denominator))[()]


def left_out(clients: Number, arrivals: Number) -> Number:
    """Returns (N - M)/(N - 1); 0 for one client."""
    return (clients - arrivals) / np.maximum(clients - 1, 1)


def bounded(
    statement: Statement,
    constants: SimpleNamespace,
    terms: Terms,
    conditions: Sequence[Condition] = (),
    axis: str = "server_steps",
) -> xr.Dataset:
    """Returns the bound as a dataset: a variable per term in the order of the formula, and their sum `total`.

    Args:
        statement: the statement.
        constants: its checked constants, as `numbers` returns them.
        terms: formula and value by name.
        conditions: the conditions of the statement.
        axis: the constant that is the coordinate, a number or [T].

    Returns:
        A dataset with dimension `axis` (none for a single T). The coordinate `holds` is True where all conditions hold.
        Attributes: `verdict` (if conditions are violated, or the bound is vacuous, and where), `paper`, `statement`,
        `form`, `servers` (that it bounds), `constants` (single numbers, as JSON), `guaranteed` (1 or 0), `quantity`
        and `bounds` (the bounded quantity), `conditions` (each with its two sides) and `holds` (1 if all conditions
        hold everywhere, else 0). A bound is vacuous if it is not below what smoothness alone implies: 2L(F(x_0) - F*)
        of a gradient, LR²/2 of a gap.
    """
    along = np.asarray(getattr(constants, axis))
    shape = along.shape
    dims = (axis,) if shape else ()

    def spread(value: Number) -> np.ndarray:
        return np.array(np.broadcast_to(value, shape))

    variables = {name: (dims, spread(value), {"long_name": says}) for name, (says, value) in terms.items()}
    total = np.sum([values for _, values, _ in variables.values()], axis=0)
    meaning = _MEANINGS[statement.quantity]
    variables["total"] = (dims, total, {"long_name": meaning})
    holds = spread(True)
    for condition in conditions:
        holds &= condition.met
    implied = None if statement.form == "order" else _IMPLIED.get(statement.quantity)
    trivial = np.inf if implied is None else implied(constants)
    single = {name: float(one) for name, one in vars(constants).items() if name in CONSTANTS and np.ndim(one) == 0}
    attributes = {
        "verdict": _verdict(holds, total, trivial, along, axis),
        "paper": statement.paper,
        "statement": statement.name,
        "form": statement.form,
        "servers": ", ".join(statement.servers),
        "constants": json.dumps(single),
        "guaranteed": int(statement.guaranteed),  # NetCDF has no booleans
        "quantity": statement.quantity,
        "bounds": meaning,
        "conditions": "; ".join(_shown(condition, along, axis) for condition in conditions) or "none",
        "holds": int(holds.all()),
    }
    if statement.note:
        attributes["note"] = statement.note
    return xr.Dataset(variables, {axis: (dims, along), "holds": (dims, holds)}, attributes)


def _verdict(holds: np.ndarray, total: np.ndarray, trivial: Number, along: np.ndarray, axis: str) -> str:
    """Returns if the bound says anything, in words; `trivial`: what smoothness alone implies, or infinity."""
    informative = holds & (total < trivial)
    limit = np.max(trivial)
    verdicts = {
        "no bound{}: its conditions are violated": ~holds,
        f"vacuous{{}}: not below {limit:.3g}, which smoothness alone implies": holds & ~informative,
        "informative{}" if np.isfinite(limit) else "its conditions hold{}": informative,
    }
    words = []
    for verdict, found in verdicts.items():
        if found.any():
            some = along[found]
            place = f" at {axis} = {some.min():g} .. {some.max():g} ({found.sum()} of {found.size})"
            words.append(verdict.format("" if found.all() else place))
    return "; ".join(words)


def _shown(condition: Condition, along: np.ndarray, axis: str) -> str:
    """Returns a condition as text with its two sides, at the T with the smallest margin."""
    left, right, at = np.broadcast_arrays(condition.left, condition.right, along)
    with np.errstate(invalid="ignore", divide="ignore"):
        worst = int(np.argmax((left / right).ravel()))
    sides = f"{left.flat[worst]:.6g} {'<' if condition.strict else '<='} {right.flat[worst]:.6g}"
    varies = bool(np.ndim(condition.left) or np.ndim(condition.right))
    place = f" (at {axis} = {at.flat[worst]:g}, the worst)" if varies else ""
    return f"{condition.says}: {sides} {'holds' if condition.met.all() else 'is violated'}{place}"


def evaluate(theorem: Callable[..., xr.Dataset], *constants: Mapping[Any, Any], **given: Any) -> xr.Dataset:
    """Evaluates a statement with constants from several sources.

    Args:
        theorem: a function of this package, such as `theory.defedavg.theorem_1`.
        *constants: values by name, such as `Quadratic.constants(...)` and the datasets of `estimate` and
            `theory.staleness`. Names that the statement does not need are ignored; a later value replaces an earlier.
        **given: further constants by name; they replace those of `constants`.

    Raises:
        TypeError: a constant is missing.

    Examples:
        >>> import jaxafl as afl
        >>> problem = afl.theory.quadratic(clients=4, heterogeneity=0.5)
        >>> given = afl.theory.staleness.bernoulli(0.95, clients=4).assign(learning_rate=0.5)
        >>> bound = afl.theory.evaluate(
        ...     afl.theory.delayed_gradients.audg, problem.constants(), given, server_steps=range(1, 101)
        ... )
        >>> bound.attrs["conditions"], bool((bound.total.diff("server_steps") < 0).all())
        ('η <= 1/L: 0.5 <= 1 holds', True)
    """
    parameters = inspect.signature(theorem).parameters
    merged = {str(name): np.asarray(value)[()] for part in constants for name, value in part.items()}
    return theorem(**{name: value for name, value in merged.items() if name in parameters} | given)


def steps_to(target: float, bound: Callable[[np.ndarray], xr.Dataset]) -> float:
    """Returns the smallest T with a bound of at most `target`; infinity if no T up to 10^18 has one.

    Args:
        target: > 0, in the unit of the bound.
        bound: a function of T server steps [1] that returns the bound, which must fall with T. It chooses rates that
            depend on T. The bound counts as infinite where its conditions do not hold.

    Returns:
        T, not rounded.
    """
    check_number("steps_to", "target", target, above=0)

    def reached(exponent: float) -> bool:
        found = bound(np.array([np.exp(exponent)]))
        return bool(found["holds"].item() and found["total"].item() <= target)

    most = float(np.log(_MOST))
    if reached(0.0):
        return 1.0
    return float(np.exp(bisected(reached, most, 1e-12))) if reached(most) else float("inf")


def bisected(holds: Callable[[float], bool], high: float, rounding: float) -> float:
    """Returns the smallest number up to `high` from which on a statement holds, but for a relative error."""
    low = 0.0
    while high - low > rounding * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def speed_up(target: float, sizes: Sequence[float], bound: Callable[[np.ndarray, float], xr.Dataset]) -> np.ndarray:
    """Returns the predicted speed-up in server steps, [sizes]: T of the first size over T of each size; NaN if both are
    infinite.

    The speed-up of DeFedAvg is linear in n, of FADAS in M and of AFL in J as long as their leading terms dominate.
    AsyncFedED, AUDG and PSURDG predict none, because no term of their bounds falls with the number of clients.
    Simulated with its rates on a quadratic (10 clients, K = 2, 40 seeds), DeFedAvg has the same mean squared gradient
    norm after 8192/n server steps: 0.0264, 0.0262, 0.0263 and 0.0258 for n = 1, 2, 4 and 8.

    Args:
        target: > 0, in the unit of the bound.
        sizes: n, M or J.
        bound: a function (T [1], size) that returns the bound with the step sizes chosen for both.
    """
    needed = np.array([steps_to(target, lambda steps, size=size: bound(steps, size)) for size in sizes])  # type: ignore[misc]
    with np.errstate(invalid="ignore"):
        return needed[0] / needed
