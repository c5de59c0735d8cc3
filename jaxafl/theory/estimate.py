"""The constants of bounds, measured on a run."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import xarray as xr
from jax.flatten_util import ravel_pytree

from jaxafl import server
from jaxafl.engine.loop import Trained
from jaxafl.engine.state import Version, first_model
from jaxafl.options import UserError, check_choice, check_whole
from jaxafl.simulation import Simulation
from jaxafl.theory.bounds import described
from jaxafl.theory.measure import AtModel, Sampled, at_model, loss_of, smallest_loss, spread_of
from jaxafl.theory.staleness import of_schedule

_AGREES = 1e-4  # relative difference allowed between the losses of a result and of the repeated run
_ROLES: dict[str, tuple[type, ...]] = {  # what the option `learning_rate` of a server is in the bounds
    "learning_rate": (server.audg, server.psurdg, server.asysg),
    "adaptive_rate": (server.fadas, server.fedams, server.fedadam, server.fedyogi, server.fedadagrad),
    "server_rate": (server.fedavg, server.fedbuff, server.ca2fl, server.defedavg_iid, server.defedavg_niid),
}
_OF_SCHEDULE = ("mean_staleness", "cubic_staleness", "mean_arrivals", "staleness_max", "staleness_mean_of_max")


def estimate(
    result: xr.Dataset | Trained,
    sim: Simulation,
    *,
    run_seed: int = 0,
    seed: int = 0,
    clients: int = 32,
    samples: int = 256,
    iterations: int = 100,
    optimum: float | None = None,
    optimum_steps: int = 500,
    weights: Literal["samples", "uniform"] = "samples",
) -> xr.Dataset:
    """Measures the constants of bounds on the first and the last model of a run, and its staleness on the schedule.

    Assumptions concern all models, but only two are measured. The maximum of both (for μ the minimum) is a lower
    estimate of the true constant. The objective is the training loss without augmentation, dropout, weight decay or
    proximal term. A result does not hold its models, so the run is repeated (`sim.train`) and compared. Ages are those
    of arrivals; for PSURDG use `staleness.of_schedule(result, age="gradient")`.

    Args:
        result: the result of `sim.run`, or of `sim.train`.
        sim: the simulation.
        run_seed: the seed of the run, if `result` comes from `sim.train`.
        seed: the seed of the choice of clients and samples, and of the power iterations.
        clients: the largest number of clients to measure, drawn at random.
        samples: the largest number of samples of each client, drawn at random.
        iterations: Hessian-vector products for each client, model and eigenvalue.
        optimum: F*, if it is known (such as `Quadratic.optimum`); otherwise the smallest loss that L-BFGS finds from
            the last model, on the chosen samples.
        optimum_steps: the largest number of L-BFGS steps.
        weights: λ_i of the chosen clients, and of all clients in the moments of the staleness: in proportion to
            `"samples"`, or `"uniform"`.

    Returns:
        Scalars by the names of `theory.CONSTANTS`, with symbol, meaning and measured models as attributes:
        `smoothness` (L, the largest |eigenvalue| of a client's Hessian, by power iteration), `strong_convexity` (μ, the
        smallest eigenvalue; NaN unless it is certainly above 0), `local_variance` (σ² of a mini-batch, the largest of a
        client), `global_variance` (σ_g², ν²), `gradient_bound` (G, of single samples; of all samples of a client if
        batches are full), `gap`, `distance` (R, to the point that L-BFGS found), `optimum_spread` (h², if μ is known),
        the moments of `staleness.of_schedule`, `clients` and `server_steps`. `local_steps` and `arrivals` are included
        if they are constant over the run, and `euclidean_staleness` (Γ) if the server reports γ. The constant rates of
        client and server have the names of their roles, `local_rate` (of plain SGD), `server_rate`, `learning_rate` or
        `adaptive_rate`, with `epsilon` and `staleness_threshold`; their attribute `measured_on` names the option. If
        `optimum` is given, `distance` and `optimum_spread` are NaN. Further variables: `optimum`, and along `model`
        (first, last) `loss` and `gradient_norm_squared`.

    Raises:
        ValueError: the result is not of this simulation, or its last model is not finite.
    """
    owner = "theory.estimate"
    for name, value in (("clients", clients), ("samples", samples), ("optimum_steps", optimum_steps)):
        check_whole(owner, name, value)
    check_whole(owner, "iterations", iterations, least=2)
    check_choice(owner, "weights", weights, ("samples", "uniform"))
    trained, run_seed = _trained(owner, result, sim, run_seed)
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.device_get(trained.params))):
        raise UserError(f"{owner}: the run's last model is not finite, so that nothing can be measured on it")
    problem = sim.problem(run_seed)
    chosen = _chosen(sim, clients, samples, weights, seed)
    models = [first_model(problem.model, problem.data.form, problem.key), Version(trained.params, trained.model_state)]
    loss, points = loss_of(problem.model, problem.data, models[0]), [ravel_pytree(one.params)[0] for one in models]
    given = [(one.model_state, problem.device.arrays, problem.device.frozen, chosen) for one in models]
    at = [at_model(loss, iterations, *one, jax.random.key(seed)) for one in zip(given, points, strict=True)]
    found = jax.tree.map(lambda *both: np.stack(both), *at)
    values = _of_gradients(sim, chosen, found)
    values |= _of_optimum(loss, given[-1], points, found, values["strong_convexity"], optimum, optimum_steps)
    on = f"first and last model of a run of {trained.schedule.server_steps} server steps, {len(chosen.client)} of "
    on += f"{sim.data.num_clients} clients, up to {chosen.mask.shape[1]} samples of each"
    measured = {on: values, "the schedule and the server's reports": _of_run(sim, trained, weights)}
    return _dataset(measured | _rates(sim), found, on)


def _trained(owner: str, result: Any, sim: Simulation, run_seed: int) -> tuple[Trained, int]:
    """Returns the run and its seed; repeats the run if only its result is given."""
    if isinstance(result, Trained):
        return result, run_seed
    known = {**result.variables, **result.attrs}  # those that differ are variables
    seed = int(known["seed"])
    trained = sim.train(int(known["server_steps"]), seed=seed, eval_every=int(known["eval_every"]))
    loss = trained.evaluations["loss"]
    seen = result["loss"].values[result["eval_step"].notnull().values]  # a member of a sweep may end before others
    if loss.shape != seen.shape or not np.allclose(loss, seen, rtol=_AGREES, equal_nan=True):
        raise UserError(f"{owner}: the result is not of this simulation, which gives other losses when it runs again")
    return trained, seed


def _chosen(sim: Simulation, clients: int, samples: int, weights: str, seed: int) -> Sampled:
    counts = np.asarray(sim.data.counts)
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(len(counts), min(clients, len(counts)), replace=False))
    width = min(samples, int(counts[chosen].max()))
    positions, mask = np.zeros((len(chosen), width), np.int32), np.zeros((len(chosen), width), bool)
    for row, client in enumerate(chosen):
        taken = rng.choice(counts[client], min(width, counts[client]), replace=False)
        positions[row, : len(taken)], mask[row, : len(taken)] = np.sort(taken), True
    share = counts[chosen] if weights == "samples" else np.ones(len(chosen))
    weight = jnp.asarray(share / share.sum(), jnp.result_type(float))
    return Sampled(jnp.int32(chosen), jnp.asarray(positions), jnp.asarray(mask), weight)


def _of_gradients(sim: Simulation, chosen: Sampled, found: AtModel) -> dict[str, Any]:
    """Returns the constants that gradients and curvature give; `found`: at both models, each leaf [2, ...]."""
    client = sim.client
    counts = np.asarray(sim.data.counts)[np.asarray(chosen.client)]
    variance = _per_batch(client, counts, np.asarray(chosen.client))
    return {
        "smoothness": found.largest.max(),
        "strong_convexity": found.smallest.min(),  # NaN if the value of any client is NaN
        "local_variance": (found.within * variance).max(),
        "global_variance": found.between.max(),
        "gradient_bound": (found.client_gradient if client.batch_size is None else found.sample_gradient).max(),
    }


def _per_batch(client: Any, counts: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Returns the variance of a mini-batch's mean over that of a sample, for `chosen` clients with `counts` samples."""
    if client.batch_size is None:
        return np.zeros(len(counts))
    size = np.asarray(client.batch_size)[chosen] if isinstance(client.batch_size, tuple) else client.batch_size
    if client.epochs is None and client.sampling == "replacement":
        return np.broadcast_to(1 / size, len(counts))
    return np.maximum(counts - size, 0) / (size * np.maximum(counts - 1, 1))


def _of_optimum(
    loss: Any, given: Any, points: list[Any], found: AtModel, mu: float, optimum: float | None, steps: int
) -> dict[str, float]:
    """Returns F*, the gap of the first model, and the distances to the minimisers of F and of every f_i."""
    nan, losses = np.nan, found.loss.tolist()
    begin = losses[0]
    if optimum is not None:
        return {"optimum": optimum, "gap": begin - optimum, "distance": nan, "optimum_spread": nan}
    value, w = smallest_loss(loss, steps, given, points[-1])
    lowest = min(float(value), *losses)
    distances = [float(jnp.linalg.norm(point - w)) for point in points]
    spread = float(spread_of(loss, steps, given, w)) if np.isfinite(mu) else nan
    return {"optimum": lowest, "gap": begin - lowest, "distance": max(distances), "optimum_spread": spread}


def _of_run(sim: Simulation, trained: Trained, weights: str) -> dict[str, Any]:
    """Returns the constants that the schedule and the server's diagnostics give."""
    schedule = trained.schedule
    moments = of_schedule(schedule, weights=np.asarray(sim.data.counts, float) if weights == "samples" else None)
    values = {name: float(moments[name]) for name in _OF_SCHEDULE}
    values |= {"clients": sim.data.num_clients, "server_steps": schedule.server_steps}
    local_steps, arrivals = schedule.local_steps[schedule.mask], schedule.mask.sum(axis=1)
    for name, seen in (("local_steps", local_steps), ("arrivals", arrivals)):
        if (seen == seen[0]).all():
            values[name] = seen[0]
    if "gamma" in trained.records:
        gamma = trained.records["gamma"]
        values["euclidean_staleness"] = gamma[np.isfinite(gamma)].max(initial=0.0)
    return values


def _rates(sim: Simulation) -> dict[str, dict[str, float]]:
    """Returns the constants that options of client and server give: option -> name -> value."""
    found: dict[str, tuple[str, Any]] = {}
    client, options = sim.client, sim.client.hyperparameters
    factors = (client.rate_schedule, client.step_schedule, client.run_schedule, client.rate_decay_per_run)
    constant = all(one is None for one in factors)
    if constant and client.optimizer is optax.sgd and not np.any(options.get("momentum")):
        found["local_rate"] = "client.learning_rate", options.get("learning_rate")
    role = next((role for role, servers in _ROLES.items() if isinstance(sim.server, servers)), "")
    names = {role: "learning_rate"} if role else {}
    if role == "adaptive_rate":
        names |= {"epsilon": "eps", "staleness_threshold": "tau_c"}
    found |= {name: (f"server.{option}", getattr(sim.server, option, None)) for name, option in names.items()}
    numbers = (int, float, np.number)
    known = [(option, name, one) for name, (option, one) in found.items() if isinstance(one, numbers)]
    return {option: {name: float(one)} for option, name, one in known}


def _dataset(measured: dict[str, dict[str, Any]], found: AtModel, on: str) -> xr.Dataset:
    variables: dict[str, Any] = {}
    for source, values in measured.items():
        for name, value in values.items():
            variables[name] = ((), float(value), {"measured_on": source} | described(name))
    for name in ("loss", "gradient_norm_squared"):
        variables[name] = ("model", getattr(found, name).astype(float), {"measured_on": on})
    return xr.Dataset(variables, {"model": ["first", "last"]})
