"""Models from Flax Linen modules."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import types
import zlib
from collections.abc import Mapping
from typing import Any

import jax
from flax import errors, linen

from jaxafl.device.keys import drawing_key
from jaxafl.models.adapters import Loss, check_loss, jsonable, outputs_of, tried, what
from jaxafl.models.frozen import Frozen, described, split_off, still_statistics
from jaxafl.models.linen_modes import in_mode, network_attributes
from jaxafl.models.metrics import Better
from jaxafl.models.model import Batch, Key, Model, Outputs, Params, State, softmax_cross_entropy
from jaxafl.models.modes import Modes, keywords, mode_arguments
from jaxafl.models.unreached import MASK, Parts, changed, check_reached, opposed, probed
from jaxafl.options import named


@named
def from_linen(
    module: linen.Module,
    loss: Loss | str = softmax_cross_entropy,
    name: str | None = None,
    references: tuple[str, ...] = (),
    better: Mapping[str, Better] = types.MappingProxyType({}),
    *,
    training: dict[str, Any] | None = None,
    evaluation: dict[str, Any] | None = None,
    frozen: Frozen = None,
) -> Model:
    """Converts a Flax Linen module to a model.

    The collection `params` is trained. All other collections of `module.init` (`batch_stats`, ...) are the state,
    updated in training and unchanged in evaluation.

    The module is called as `module(x)`, with the flags that its call or its attributes declare. Flags such as `train`,
    `training` and `is_training` are True in training; `deterministic`, `inference`, `use_running_average` and the like
    are True in evaluation. A flag that a submodule requires but does not receive gets its value too. A module with
    state that takes `mask` (bool [B]) receives `Batch.mask`, to exclude padding from its statistics. Random streams
    (`make_rng`) of all names are provided, with new keys in each call.

    Args:
        module: the network; maps inputs [B, ...] to predictions [B, ...].
        loss: a name (`"softmax_cross_entropy"`, `"sigmoid_cross_entropy"`, `"squared_error"`, `"absolute_error"`,
            `"huber"`, `"log_cosh"`), a loss of Optax (`optax.hinge_loss`), or a function `(predictions, batch) ->
            Outputs`, or a loss per example [B], which records no metrics. Those of a regression record `mae` and
            `rmse`, in the unit of the targets. Losses are means over the targets of an example.
        name: the name in results, by default the module's class name.
        references: see `Model`.
        better: metric -> `"higher"` or `"lower"`, for metrics with other names than `Model` lists.
        training, evaluation: name -> value of arguments or attributes in one mode; they override the values by name.
            If the module does not take a name, all submodules that take it receive the value.
            `"block/*/deterministic"` addresses the submodules at that path.
        frozen: selection of parameters that are neither trained nor sent: a function `path -> bool`, such as
            `lambda path: path.startswith("encoder/")`, or a tree of bools or of arrays that may end above the
            parameters (`{"encoder": True}`). Frozen values are the given arrays or those of `initialised`, else drawn
            under one key for all seeds. They are stored once, in `Model.frozen`. If all parameters of a layer are
            frozen, its batch statistics are too: they are neither updated nor sent, and training normalises by them.

    Returns:
        The model. Its `init` raises `ValueError` if training would never apply a dropout or never update batch
        statistics, or if evaluation would.

    Raises:
        TypeError: `module` is not a Linen module, or its `__call__` requires arguments with unknown values.
    """
    if not isinstance(module, linen.Module):
        raise TypeError(f"from_linen needs a flax.linen.Module instance, got {what(module)}")
    network = type(module).__name__
    loss_of = check_loss("from_linen", loss)
    modes = Modes.checked("from_linen", training, evaluation, network)
    arguments = mode_arguments(type(module).__call__, modes, 2, ("mask",))
    attributes = network_attributes(module, modes, set(arguments))
    streams: list[str] = []

    def given(train: bool, batch: Batch, stateful: bool) -> tuple[linen.Module, dict[str, Any]]:
        changes = attributes(train)
        takes_mask = stateful or ("mask" in arguments and arguments["mask"].default is inspect.Parameter.empty)
        values = keywords(arguments, modes, train, **({"mask": batch.mask} if takes_mask else {}))
        twice = [one for one in changes if one in values and arguments[one].default is None]
        return module.clone(**changes) if changes else module, {one: values[one] for one in values if one not in twice}

    @jax.jit  # removes the forward pass of module.init, whose result is not used
    def make(key: Key, batch: Batch) -> tuple[Params, State]:
        rngs = dict(zip(("params", "dropout"), jax.random.split(key), strict=True))
        network, values = given(False, batch, True)
        with in_mode(modes, False):
            variables = dict(network.init(rngs, batch.x, **values))
        return variables.pop("params", {}), variables

    def predicted(
        params: Params,
        state: State,
        batch: Batch,
        key: Key,
        train: bool,
        changing: bool,
        parts: Parts | None = None,
        modes: Modes = modes,
    ) -> tuple[Any, State]:
        rngs = {"dropout": drawing_key(key)}
        rngs |= {one: jax.random.fold_in(key, zlib.crc32(one.encode())) for one in streams}
        network, values = given(train, batch, bool(jax.tree.leaves(state)))
        with in_mode(modes, train, parts):
            predictions, new = network.apply(
                {"params": params, **state}, batch.x, rngs=rngs, mutable=list(state) if changing else [], **values
            )
        return predictions, {**state, **new}

    def apply(
        params: Params, state: State, batch: Batch, key: Key, train: bool, still: tuple[str, ...] = ()
    ) -> tuple[Outputs, State]:
        changing = train or bool(modes.evaluation)
        predictions, new = predicted(params, state, batch, key, train, changing, modes=modes.with_still(still))
        return outputs_of(loss_of, predictions, batch), new if train else state

    def check(params: Params, state: State, batch: Batch) -> None:
        flags: set[str] = set()
        still = still_statistics(params, state, frozen, "from_linen", True)
        for train in (True, False):
            statistics, parts = observed(params, state, batch, train)
            moving = {one: to for one, to in statistics.items() if one not in still}
            of_batch = {
                one.removeprefix("batch_stats/"): to for one, to in moving.items() if one.startswith("batch_st")
            }
            without = withheld(params, state, batch, parts) if train else ()
            check_reached(modes, train, parts, of_batch, functools.partial(advised, network), without)
            flags |= {flag for part in parts.values() for flag in part.flags}
        modes.check_used(flags)

    def withheld(params: Params, state: State, batch: Batch, parts: Parts) -> tuple[str, ...]:
        """Returns paths of modules that draw nothing in training because their flags select evaluation."""
        flags = opposed(parts, True)
        if not flags:
            return ()
        turned = dataclasses.replace(modes, training={**modes.training, **flags}, used=set())
        try:
            _, found = observed(params, state, batch, True, turned)
        except Exception:  # raised by a network that does not accept these flags
            return ()
        return tuple(
            path for path in {key.rpartition("/")[0] for key in flags} if path in found and found[path].own_draws
        )

    def observed(
        params: Params, state: State, batch: Batch, train: bool, modes: Modes = modes
    ) -> tuple[dict[str, bool], Parts]:
        """Returns the leaves of the state that a mode changes, and the modules in it; adds missing random streams."""
        while True:
            parts: Parts = {}

            def new_state(state: State, params: Params, batch: Batch, key: Key, parts: Parts = parts) -> State:
                return predicted(params, state, batch, key, train, True, parts, modes)[1]

            try:
                return changed(
                    new_state, state, params, probed(batch), jax.eval_shape(lambda: jax.random.key(0))
                ), parts
            except errors.InvalidRngError as error:
                stream = re.search(r'PRNG for "(.+?)"', str(error))
                if stream is None or stream[1] in streams:
                    raise
                streams.append(stream[1])
            except (TypeError, ValueError) as error:
                if "mask" in arguments and "mask" not in modes.given(train):
                    error.add_note(MASK)
                raise

    description = {"network": network} | {
        option.name: jsonable(getattr(module, option.name))
        for option in dataclasses.fields(module)
        if option.name not in ("parent", "name")
    }
    if isinstance(loss, str):
        description["loss"] = loss
    init: Any = make
    applied, held = apply, None
    if frozen is not None:
        init, applied, held = split_off(make, apply, frozen, "from_linen", True)
        description["frozen"] = described(frozen)
    sees_mask = "mask" in arguments and "mask" not in modes.training
    return Model(
        name or network,
        tried(init, applied, held, (make, check), loss_of),
        applied,
        description,
        held,
        sees_mask,
        references,
        better=better,
    )


def advised(network: str, path: str, flag: str, value: bool) -> str:
    """Returns the advice for a flag of a module that a mode does not reach."""
    key = f"{path}/{flag}" if path else flag
    return (
        f"Let the call of {network} take train or deterministic and pass it on, or give from_linen training="
        f"{{{key!r}: {value}}} and evaluation={{{key!r}: {not value}}}; where it is meant as it is, give it so in both"
    )
