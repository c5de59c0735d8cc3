"""Differential privacy of clients, from their participations in a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxafl.clock.accounts.contract import How, Mechanism
from jaxafl.clock.options import fail_if
from jaxafl.options import UserError, check_choice, check_number

if TYPE_CHECKING:
    import xarray as xr

Squares = tuple[np.ndarray, np.ndarray]
_POINTS = 16  # compositions of privacy loss distributions along a curve; one takes a tenth of a second
_ASSUMES = {
    "participation": "no amplification by sampling; the clients' participations are public",
    "tree": "noise of a binary tree over server steps; no amplification by sampling",
    "sampled": "every server step takes a Poisson sample of all clients, which is secret",
}
NOT_PRIVATE = "losses, local steps, accuracies and other diagnostics of a result are the simulator's, and not private"


class Takings(NamedTuple):
    """Arrivals that server steps take, as arrays [T, A] without meaning where `mask` is False; `time` is [T].

    A `Schedule` has the same attributes, and may stand in its place.
    """

    client: np.ndarray
    run: np.ndarray
    multiplicity: np.ndarray
    mask: np.ndarray
    time: np.ndarray
    num_clients: int


def privacy_of(takings: Any, mechanism: Mechanism, noise_multiplier: Any, delta: float, how: How) -> xr.Dataset:
    """Computes ε of every client, and the largest after every server step; see `Schedule.privacy`."""
    z = _noise(mechanism, noise_multiplier, takings.num_clients)
    check_number("privacy", "delta", delta, above=0, below=1)
    check_choice("privacy", "how", how, ("participation", "sampled", "tree"))
    fail_if("privacy", [
        (bool(mechanism.refused), mechanism.refused),
        (how != "participation" and mechanism.at == "client", f"how={how!r} is of noise at the server, and here every "
         "client adds its noise before it sends. Use how='participation'"),
        (how != "participation" and mechanism.kept, f"how={how!r} does not hold for a server that uses the last update "
         "of every client again. Use how='participation'"),
        (how == "tree" and mechanism.noise_multiplier is not None, "how='tree' is of noise in the nodes of a tree, and "
         "the server adds independent noise in every step. Use how='participation'"),
    ])  # fmt: skip
    import xarray as xr

    said = f"ε of differential privacy for δ = {delta:g}, if the client is added or removed"
    assumes = _ASSUMES[how]
    variables: dict[str, Any] = {}
    if how == "sampled":
        if not mechanism.drawn:
            assumes += ": optimistic here, because server steps do not draw their clients; it is no guarantee"
        largest = _sampled(takings, float(z), delta)
        epsilon = np.full(takings.num_clients, largest[-1])
    else:
        of_clients, of_steps = sensitivity_of(takings, mechanism, z, how)
        epsilon, largest = (gaussian_epsilon(squares, delta) for squares in (of_clients, of_steps))
        exposed = "L2 sensitivity of all releases to the client over the noise's standard deviation"
        variables["sensitivity"] = ("population", np.sqrt(of_clients), {"long_name": exposed})
    variables["epsilon"] = ("population", epsilon, {"long_name": said})
    variables["max_epsilon"] = ("step", largest, {"long_name": "largest ε of a client so far"})
    times = ("step", takings.time, {"units": "s", "long_name": "simulated time of the server step"})
    settings = {
        "noise_multiplier": z.tolist(),
        "noise": f"at the {mechanism.at}",
        "delta": float(delta),
        "how": how,
    }
    return xr.Dataset(variables, {"time": times}, settings | {"assumes": assumes, "not_private": NOT_PRIVATE})


def sensitivity_of(takings: Any, mechanism: Mechanism, z: np.ndarray, how: How = "participation") -> Squares:
    """Computes the squared L2 sensitivity of all releases over the variance of their noise, μ_i² = S_i / z².

    S_i depends on where the noise is, and on which noise it is.

    At the server, S_i = Σ_t m_it² with the multiplicity m_it of client i in server step t, the number of server steps
    after its first arrival if the server keeps updates. At the client, S_i is the number of its updates. In a tree,
    S_i = Σ_nodes (Σ_{t in node} m_it)² over the complete nodes, which cover 1, 2, 4 ... server steps.

    Returns:
        μ_i² after the last server step, float [N], and that of the most exposed client after each, float [T].
    """
    steps, clients = len(takings.mask), takings.num_clients
    when, place = np.nonzero(takings.mask)
    client = takings.client[when, place].astype(np.int64)
    if mechanism.at == "client":
        most = int(takings.run[when, place].max(initial=0)) + 1
        _, first = np.unique(client * most + takings.run[when, place], return_index=True)
        return _accumulated(when[first], client[first], np.ones(len(first)), z, steps, clients)
    if mechanism.kept:
        first_step = np.full(clients, steps)
        np.minimum.at(first_step, client, when)
        age = np.arange(1, steps + 1) - first_step.min()
        return (steps - first_step) / z**2, np.maximum(age, 0) / z**2
    times = takings.multiplicity[when, place].astype(float)
    events = []
    for level in range(steps.bit_length() if how == "tree" else 1):
        node, whole = when >> level, steps >> level
        key, index = np.unique(client * (whole + 1) + node, return_inverse=True)
        total = np.bincount(index, times, len(key))
        of_node, of_client = key % (whole + 1), key // (whole + 1)
        complete = of_node < whole
        ends = (of_node[complete] + 1 << level) - 1
        events.append((ends, of_client[complete], total[complete] ** 2))
    ended, who, squares = (np.concatenate(part) for part in zip(*events, strict=True))
    return _accumulated(ended, who, squares, z, steps, clients)


def _accumulated(
    when: np.ndarray, client: np.ndarray, squares: np.ndarray, z: np.ndarray, steps: int, clients: int
) -> Squares:
    order = np.lexsort((when, client))
    when, client, squares = when[order], client[order], squares[order]
    scale = np.broadcast_to(z, clients) ** 2
    total = np.bincount(client, squares, clients)
    before = np.cumsum(total) - total
    so_far = np.cumsum(squares) - before[client]  # sums of integers, so exact
    largest = np.zeros(steps)
    np.maximum.at(largest, when, so_far / scale[client])
    return total / scale, np.maximum.accumulate(largest)


def _sampled(takings: Any, z: float, delta: float) -> np.ndarray:
    """Returns ε after every server step if each takes a Poisson sample of its number of updates over N, float [T].

    It is computed from privacy loss distributions by dp-accounting, which the extra `privacy` brings.
    """
    import dp_accounting

    size = np.where(takings.mask, takings.multiplicity, 0).sum(axis=1)
    shares = np.minimum(size / takings.num_clients, 1.0)
    ends = np.unique(np.linspace(0, len(size) - 1, _POINTS).astype(int))
    known = []
    for end in ends:
        accountant: Any = dp_accounting.pld.PLDAccountant()
        for share, count in zip(*np.unique(shares[: end + 1], return_counts=True), strict=True):
            if share > 0:
                sampled = dp_accounting.PoissonSampledDpEvent(float(share), dp_accounting.GaussianDpEvent(z))
                accountant.compose(sampled, int(count))
        known.append(float(accountant.get_epsilon(delta)))
    return np.array(known)[np.searchsorted(ends, np.arange(len(size)))]


def gaussian_epsilon(squares: np.ndarray, delta: float) -> np.ndarray:
    """Computes ε of Gaussian mechanisms with squared sensitivity over variance μ², exactly.

    The smallest ε >= 0 with Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ) <= δ. Gaussian mechanisms compose exactly: several with
    μ_1, μ_2 ... are one with μ² = Σ μ_k².

    Args:
        squares: μ² = 1/z² of mechanisms with noise multiplier z, float [n]; 0 for no release.
        delta: δ in (0, 1).

    References:
        Balle, Wang (2018), "Improving the Gaussian mechanism for differential privacy", ICML, Theorem 8.
    """
    from scipy.special import log_ndtr

    values, place = np.unique(squares, return_inverse=True)
    released = values > 0
    mu = np.sqrt(np.where(released, values, 1.0))

    def exceeded(epsilon: np.ndarray) -> np.ndarray:
        above, below = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        with np.errstate(divide="ignore"):
            return above + np.log1p(-np.exp(np.minimum(below - above, 0.0))) > np.log(delta)

    low = np.zeros_like(mu)
    high = np.where(exceeded(low), mu * mu / 2 + mu * np.sqrt(2 * np.log(1 / delta)), 0.0)  # Φ(-t) <= exp(-t²/2)
    for _ in range(60):  # halves to the last bit
        middle = (low + high) / 2
        more = exceeded(middle)
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    return np.where(released, high, 0.0)[place]


def _noise(mechanism: Mechanism, given: Any, num_clients: int) -> np.ndarray:
    """Returns z, a number or [N]."""
    known = mechanism.noise_multiplier
    if given is not None:
        check_number("privacy", "noise_multiplier", given, above=0, per_client=True, num_clients=num_clients)
    elif known is None:
        raise UserError(
            "privacy: there is no noise, its clipping norm is not known, or an upload after it keeps a memory or reads "
            "the run; expected noise_multiplier=, the deviation over the clipping norm. Give it, or train with "
            "afl.server.fedbuff(aggregate=afl.aggregate.private_mean(C, z)), or with "
            "Client(upload=afl.upload.chain(afl.upload.clip_by_global_norm(C), afl.upload.add_noise(z * C)))"
        )
    z = np.asarray(known if given is None else given, np.float64)
    fail_if("privacy", [
        (known is not None and not np.allclose(z, known), f"noise_multiplier={given} is not that of the noise at the "
         f"{mechanism.at}, {known}; leave it out"),
        (not (z > 0).all(), "the noise has a standard deviation of 0, so that ε is infinite; expected std > 0"),
        (z.ndim > 0 and mechanism.at == "server", "noise at the server has one noise_multiplier, got one per client. "
         "Give one number"),
    ])  # fmt: skip
    return z
