"""The table of algorithms, grouped by question: clock, reads, keeps, paper, tag and speed, derived from the code."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Var, jaxprs_in_params

import jaxafl as afl
from jaxafl.cli.catalogue import Constructor
from jaxafl.presets import REFERENCES
from jaxafl.references import BIBTEX
from jaxafl.server import Arrivals, Delivery

HEAD = ("algorithm", "clock", "reads", "keeps", "paper", "rests on", "updates/s", "accuracy", "time", "staleness")
_SHAPE, _CLIENTS = (7, 3), 20
_CALLS = ("pjit", "jit", "closed_call", "core_call", "remat", "checkpoint", "custom_jvp_call", "custom_vjp_call")
_SYMBOLS = {"delta": "Δ", "base": "x_s", "staleness": "τ", "samples": "n_i", "local_steps": "K_i", "loss": "loss"}
_SYMBOLS |= {"client": "client", "kind": "kind", "multiplicity": "multiplicity", "columns": "columns of the clock"}


def facts(sim: afl.Simulation) -> dict[str, list[str]]:
    """Returns the inputs and the state of a server; tracing all servers is slow, so they are kept with the numbers."""
    server, _ = sim.server.prepare(sim.clock, sim.client, sim.data.counts, 0)
    return {"reads": reads(sim, server), "keeps": keeps(server)}


def row(one: Constructor, ran: dict[str, Any]) -> tuple[str, ...]:
    """Returns the cells of an algorithm; `ran` has its facts and its numbers on the common problem."""
    clock = ran["clock"].partition("(")[0]
    return (
        f"[`{one.name}`](../algorithms/{one.name}.md)",
        f"[`{clock}`](../clocks/{clock}.md)",
        ", ".join(ran["reads"]),
        ", ".join(ran["keeps"]) or "–",
        ", ".join(map(cited, keys_of(one))) or "–",
        tag(one),
        f"{ran['updates_per_second']:,.0f}",
        f"{100 * ran['accuracy']:.1f} ± {100 * ran['spread']:.1f} %",
        f"{ran['seconds']:,.0f} s",
        f"{ran['staleness']}",
    )


def keys_of(one: Constructor) -> list[str]:
    """Returns the keys in `BIBTEX` of the publications of an algorithm."""
    keys = [key for key in REFERENCES.get(one.name, getattr(one.call, "references", ())) if key in BIBTEX]
    return [*keys, *(["li2020"] if one.name == "fedprox" else [])]


def reads(sim: afl.Simulation, server: afl.Server) -> list[str]:
    """Returns the fields of `Arrivals` on which model, state or replies of a prepared server depend, as symbols."""
    size = sim.clock.arrivals(_CLIENTS) or _CLIENTS
    whole, real, rows = jnp.zeros(size, jnp.int32), jnp.zeros(size), {"w": jnp.zeros((size, *_SHAPE))}
    base = rows if server.needs.base or server.needs.client_models else None
    columns = {"delta": rows, "base": base, "samples": real, "loss": real, "step": jnp.int32(0), "time": jnp.zeros(())}
    columns |= {"mask": whole > 0, "key": jax.random.key(0)}
    integers = ("client", "multiplicity", "kind", "staleness", "local_steps")
    own = sim.compute_schedule(1, 0).columns  # of servers that reply, too
    columns["columns"] = {name: jnp.asarray(values[0]) for name, values in own.items()}
    arrivals = Arrivals(**columns, **dict.fromkeys(integers, whole))
    params = {"w": jnp.zeros(_SHAPE)}
    state = server.init(params, jnp.ones(_CLIENTS))

    def update(params: Any, state: Any, arrivals: Arrivals) -> Any:
        seen = arrivals._replace(validation_gradient=lambda params, size: params)
        outcome = server.at_step(arrivals.step).update(params, state, seen)
        return outcome.params, outcome.state, outcome.next_steps, outcome.client_params

    traced = jax.make_jaxpr(update)(params, state, arrivals)
    read = inputs_read(traced.jaxpr, [True] * len(traced.jaxpr.outvars))
    paths = [path[0].name for path, _ in jax.tree_util.tree_leaves_with_path(arrivals)]
    found = {name for name, one in zip(paths, read[-len(paths) :], strict=True) if one}
    found -= {"multiplicity"} if Delivery.MULTIPLE not in sim.server.requires else set()
    return [symbol for name, symbol in _SYMBOLS.items() if name in found] + ["∇f"] * server.needs.validation


def inputs_read(jaxpr: Any, wanted: Sequence[bool]) -> list[bool]:
    """Returns, for every input of a jaxpr, True if one of the wanted outputs may depend on it.

    Function calls are inspected. Loops and branches count as reading all their inputs.

    Args:
        jaxpr: a traced function.
        wanted: for every output, True if it is wanted.
    """
    needed = {output for output, one in zip(jaxpr.outvars, wanted, strict=True) if one and isinstance(output, Var)}
    for equation in reversed(jaxpr.eqns):
        outputs = [output in needed for output in equation.outvars]
        if any(outputs):
            inner = list(jaxprs_in_params(equation.params)) if equation.primitive.name in _CALLS else []
            known = len(inner) == 1 and len(inner[0].invars) == len(equation.invars)
            read = inputs_read(inner[0], outputs) if known else [True] * len(equation.invars)
            given = zip(equation.invars, read, strict=True)
            needed |= {value for value, one in given if one and isinstance(value, Var)}
    return [value in needed for value in jaxpr.invars]


def keeps(server: afl.Server) -> list[str]:
    """Returns the contents of the server's state, in models and numbers."""
    state = jax.eval_shape(server.init, {"w": jnp.zeros(_SHAPE)}, jnp.ones(_CLIENTS))
    shapes = [leaf.shape for leaf in jax.tree.leaves(state)]
    sizes = [math.prod(shape[:-2]) for shape in shapes if shape[-2:] == _SHAPE]  # in models
    rows, models = sum(size // _CLIENTS for size in sizes), sum(size for size in sizes if size < _CLIENTS)
    found = [f"{rows} row{'s' * (rows > 1)} per client"] * (rows > 0)
    found += ["the client models"] * server.needs.client_models
    found += [f"{models} model{'s' * (models > 1)}"] * (models > 0)
    return found + ["numbers per client"] * ((_CLIENTS,) in shapes and not rows)


def cited(key: str) -> str:
    """Returns authors and year of a publication, such as "Tyurin & Richtárik 2023"."""
    authors, year = (re.search(rf"{field} = {{(.*?)}},?\n", BIBTEX[key], re.S)[1] for field in ("author", "year"))  # type: ignore[index]
    authors = authors.replace(r"{\'a}", "á")
    people = [re.sub(r"[{}]", "", one).strip() for one in authors.split(" and ")]
    names = [one.partition(",")[0] if "," in one else one.split()[-1] for one in people]
    return f"{names[0] if len(names) > 2 else ' & '.join(names)}{' et al.' if len(names) > 2 else ''} {year}"


def tag(one: Constructor) -> str:
    """Returns P, A or T for the text or code against which the docstring says that the rule was checked."""
    text = " ".join((inspect.getdoc(one.call) or "").split())
    if "our reading of the paper" in text:
        return "reading"
    checked = re.search(r"[Cc]hecked against ([^.;]*)", text)
    if checked is None:
        return "T" if re.search(r"follows (a )?third[- ]party", text) else "P"
    if "reimplementation" in checked[1]:
        return "T"
    letters = {"P": "paper|poster|text", "A": "code"}
    return ", ".join(letter for letter, words in letters.items() if re.search(words, checked[1]))
