"""A process with several CPU devices: `python -m tests.sweep.on_devices DEVICES`; prints what it has seen as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import jax


def seen(devices: int) -> dict[str, Any]:
    """What sweeps on all devices of this process give, against one device."""
    import jaxafl as afl
    from tests.sweep.conftest import differing, simulation

    found: dict[str, Any] = {"devices": len(jax.devices())}
    grids = {
        "one after another": (simulation(hidden=300), {"seed": range(5)}),
        "together": (simulation(), {"server.learning_rate": [0.2, 0.4, 0.6, 0.8, 1.0]}),
        "online": (simulation("online"), {"seed": range(3)}),
    }
    for name, (sim, axes) in grids.items():
        alone = afl.sweep(sim, axes, 8, eval_every=4, together=1)
        found[name] = differing(afl.sweep(sim, axes, 8, eval_every=4, devices="all", together=1), alone)
        spread = afl.sweep(sim, axes, 8, eval_every=4, devices=devices)
        found[f"{name}, close"] = differing(spread, alone, tolerance=1e-5)
    try:
        afl.sweep(simulation(), {"seed": [0]}, 2, devices=devices + 1)
    except ValueError as error:
        found["too many"] = str(error)
    return found


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
    print(json.dumps(seen(int(sys.argv[1]))))
