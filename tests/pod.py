"""One of several processes under `jax.distributed`: `python -m tests.pod PROCESS OF PORT FOLDER`; prints what it has
seen as JSON."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import jax


def seen(folder: pathlib.Path) -> dict[str, Any]:
    """What sweeps that processes share give, against those of each alone; and who has made what."""
    import jaxafl as afl
    from jaxafl.sweep.work import Work
    from tests.sweep.conftest import differing, simulation

    found, made, run = dict[str, Any](), list[int](), Work.run
    grids: dict[str, tuple[Any, Any]] = {
        "apart": (simulation(hidden=300), {"seed": range(3)}),
        "together": (simulation(), {"server.learning_rate": [0.2, 0.4, 0.6, 0.8, 1.0]}),
        "online": (simulation("online"), {"seed": range(3)}),
    }

    def counted(self: Work, places: Any, *rest: Any) -> Any:
        made.extend(places)
        return run(self, places, *rest)

    for name, (sim, axes) in grids.items():
        (key, values), kept = next(iter(axes.items())), folder / name
        parts = [sim.run(8, eval_every=4, seed=value) for value in values] if key == "seed" else None
        Work.run = counted  # type: ignore[method-assign]
        made.clear()
        shared = afl.sweep(sim, axes, 8, eval_every=4, devices="all", folder=kept, checkpoint_every=2)
        found[f"{name}, made"] = sorted(made)  # threads of one process begin in any order
        Work.run = run  # type: ignore[method-assign]
        again = afl.sweep(sim, axes, 8, eval_every=4, folder=kept, checkpoint_every=2)
        found[f"{name}, again"] = differing(again, shared)
        found[name] = [] if parts is None else _unlike(shared, parts)
        shared.attrs.clear()
    path = folder / "saved.nc"
    afl.sweep(simulation(), {"seed": range(2)}, 4, save=str(path))
    afl.sweep(simulation(), {"seed": range(2)}, 4)  # after which the first process has written it
    found["saved"] = path.exists()
    try:
        callbacks = [_Failing()] if jax.process_index() == 0 else []
        afl.sweep(simulation(), {"seed": range(2)}, 4, callbacks=callbacks)
    except Exception as error:
        found["failed"] = f"{type(error).__name__}: {error}"
    return found


class _Failing:
    def begin(self, run: Any) -> None:
        raise KeyError("on purpose")

    def chunk(self, chunk: Any) -> None: ...

    def end(self, result: Any) -> None: ...


def _unlike(shared: Any, parts: list[Any]) -> list[str]:
    import numpy as np

    names = ("accuracy", "loss", "client_id", "staleness", "time")
    return [name for name in names for at, part in enumerate(parts) if not np.array_equal(shared[name][at], part[name])]


if __name__ == "__main__":
    process, count, port = map(int, sys.argv[1:4])
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", count, process)
    result = seen(pathlib.Path(sys.argv[4]))
    print(json.dumps(result | {"devices": [len(jax.local_devices()), len(jax.devices())]}), flush=True)
