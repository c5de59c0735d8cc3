"""The compiled evaluation of the models of an execution."""

from __future__ import annotations

import numpy as np

from jaxafl.device import compiled, on_device, on_host
from jaxafl.engine.devices import on_first_device
from jaxafl.engine.evaluate import PerClient, evaluate_personal
from jaxafl.engine.members import evaluate_members
from jaxafl.engine.problem import DeviceData, Problem
from jaxafl.engine.set_metrics import SetMetrics
from jaxafl.engine.state import State, Version


class Evaluator:
    """Metrics of the models of all members; a run over several devices evaluates on the first.

    Attributes:
        seconds: seconds of compilation.
    """

    def __init__(self, problem: Problem, members: int, device: DeviceData, model: Version) -> None:
        """Compiles the evaluation.

        Args:
            problem: of one of the members.
            members: P.
            device: data on the devices.
            model: of all members, each leaf [P, ...].
        """
        self.mesh, self.program, of_test = problem.mesh, problem.program(), True
        self.device: DeviceData = on_first_device(
            self.mesh, device if device.validation is not None else device._replace(arrays=None)
        )
        self.clients, self.own = None, None
        if "per_client" in self.program.recording.diagnostics:
            owners = problem.data.owners
            of_test, self.clients = owners.of_test, PerClient(*on_device((owners.owner, owners.samples)))
        if problem.client.personal is not None and device.owned is not None:
            self.own = on_device(np.asarray(problem.data.owners.clients, np.int32))
        given = self.device, self.clients, on_first_device(self.mesh, model)
        self.compiled, self.seconds = compiled(evaluate_members, (self.program, of_test), given)
        self.of_sets = SetMetrics(problem, members, self.program, self.device)

    def of_state(self, state: State) -> dict[str, np.ndarray]:
        """Returns metrics of the models, each [P], of single clients [P, C]; `average_...` of the mean of versions."""
        found = self.of_model(state.model)
        if self.own is not None:
            single = "per_client" in self.program.recording.diagnostics
            own = on_first_device(self.mesh, (state.memory.tree.personal, state.model))
            arguments = self.device, self.own, *own
            found |= on_host(compiled(evaluate_personal, (self.program, single), arguments)[0](*arguments))
        if state.average is not None:
            average = self.of_model(state.model._replace(params=state.average))
            found |= {f"average_{name}": values for name, values in average.items()}
        return found

    def of_model(self, model: Version) -> dict[str, np.ndarray]:
        """Returns metrics of models, each leaf [P, ...]."""
        local = on_first_device(self.mesh, model)
        return dict(on_host({**self.compiled(self.device, self.clients, local), **self.of_sets(local)}))
