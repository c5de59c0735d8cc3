"""Runs before their first server step: initial states, and the compiled evaluation of models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import numpy as np

from jaxafl.clock import Schedule
from jaxafl.device import on_device, on_host
from jaxafl.engine.batched import evaluate_members, initial_members, observe_members
from jaxafl.engine.check import check_fit
from jaxafl.engine.evaluate import PerClient, evaluate_personal
from jaxafl.engine.execution import Execution
from jaxafl.engine.mesh import compiled_over, on_first_device, shard
from jaxafl.engine.problem import BufferSizes, DeviceData, Layout, MemberHyperparameters, Problem, Program
from jaxafl.engine.set_metrics import SetMetrics
from jaxafl.engine.state import State, Version


def prepared(
    problems: Sequence[Problem],
    schedules: Sequence[Schedule] | None,
    program: Program,
    sizes: BufferSizes,
    deterministic: bool,
    *,
    shared: bool,
) -> Execution:
    """Initialises runs and compiles their evaluation.

    Args:
        problems: one per run.
        schedules: one per run; `None` if they depend on the training.
        program: of the runs.
        sizes: of the buffers of each.
        deterministic: see `Speed`.
        shared: True if they share a plan.
    """
    layout, count = program.layout, len(problems)
    parts = layout.mesh.size if layout.mesh is not None and layout.shares == 1 else 1
    size = -(-count // parts)  # members of each device, if they are sharded; the last is repeated to fill devices up
    padded = [*problems, *[problems[-1]] * (size * parts - count)]
    members = MemberHyperparameters.stacked([problem.hyperparameters for problem in padded])
    keys = on_device(tuple(np.stack([np.asarray(problem.key[word]) for problem in padded]) for word in (0, 1)))
    check_fit(problems[0], program, sizes, size)
    members, device, keys = arguments = shard(layout, (members, problems[0].device, keys), of_members=(2,))
    static = (program.without_loops, sizes, shared)
    initialise, _ = compiled_over(initial_members, static, arguments, (2,), state=True, once=True)
    state = initialise(*arguments)
    evaluated = (program if layout.shares == 1 else program.unsharded).without_loops
    model = on_first_device(layout, state.model)
    evaluate, seconds = _evaluation(problems[0], count, evaluated, device, model)
    observe, _ = compiled_over(observe_members, (evaluated,), (model.params,), (0,), once=True)
    first = on_host(observe(model.params))
    execution = Execution(problems, program, members, state, deterministic, evaluate, seconds, first, schedules)
    if state.memory is not None and device.owned is not None and problems[0].client.personal is not None:
        execution.evaluate_personal = _personal_evaluation(problems[0], evaluated, device)
    return execution


def _personal_evaluation(problem: Problem, program: Program, device: DeviceData) -> Callable[[State], dict[str, Any]]:
    """Returns the evaluation of the clients' models of all members."""
    layout = problem.layout
    given = _placed(layout, device, on_device(np.asarray(problem.data.owners.clients, np.int32)))
    single = "per_client" in program.recording.diagnostics

    def evaluate(state: State) -> dict[str, Any]:
        personal = state.memory.tree.personal
        if layout.mesh is not None and layout.shares > 1:  # the rows of all devices
            personal = jax.device_put(on_host(personal), layout.mesh.devices.flat[0])
        arguments = (*given, personal, on_first_device(layout, state.model))
        return compiled_over(evaluate_personal, (program, single), arguments, (2,))[0](*arguments)

    return evaluate


def _evaluation(
    problem: Problem, members: int, program: Program, device: DeviceData, model: Version
) -> tuple[Callable[[Version], dict[str, Any]], float]:
    """Compiles the evaluation of the members' models; a sharded run evaluates on its first device."""
    layout, of_test, clients = problem.layout, True, None
    if "per_client" in program.recording.diagnostics:
        owners = problem.data.owners
        of_test, clients = owners.of_test, PerClient(*on_device((owners.owner, owners.samples)))
    given = _placed(layout, device, clients)
    compiled_evaluate, seconds = compiled_over(evaluate_members, (program, of_test), (*given, model))
    of_sets = SetMetrics(problem, members, program, given[0])

    def evaluate(model: Version) -> dict[str, Any]:
        local = on_first_device(layout, model)
        return {**compiled_evaluate(*given, local), **of_sets(local)}

    return evaluate, seconds


def _placed(layout: Layout, device: DeviceData, others: Any) -> tuple[DeviceData, Any]:
    """Returns the data that evaluations read and other arrays, on the devices that evaluate."""
    given = device if device.validation is not None else device._replace(arrays=None), others
    return cast(Any, shard(layout, given) if layout.shares == 1 else on_first_device(layout, given))
