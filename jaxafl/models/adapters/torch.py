"""Models from PyTorch modules."""

from __future__ import annotations

import copy
import types
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxafl.device.keys import drawing_key
from jaxafl.models.losses import Loss, as_loss, softmax_cross_entropy
from jaxafl.models.metrics import Better
from jaxafl.models.model import Array, Batch, Key, Model, Outputs, Params, State, judged
from jaxafl.options import UserError, check_choice, named, shown

TorchModule: TypeAlias = Any
"""A `torch.nn.Module`; functions import torch themselves, because it is optional."""
Arrays: TypeAlias = dict[str, Any]
_SURE = 1e-9  # with a larger one, draws of `reset_parameters` would be refused now and then
_SAMPLE = 5000


@named
def from_torch(
    module: TorchModule,
    loss: Loss | str = softmax_cross_entropy,
    name: str | None = None,
    references: tuple[str, ...] = (),
    better: Mapping[str, Better] = types.MappingProxyType({}),
    *,
    reset: bool | None = None,
    images: Literal["NHWC", "NCHW"] = "NHWC",
) -> Model:
    """Converts a PyTorch module to a model: torchax executes its `forward` in JAX.

    Parameters with `requires_grad` are trained, under their names in `module.state_dict()`. All others are frozen:
    neither trained nor sent. Buffers that training changes, such as running statistics, are the state. Other buffers
    are constants. Parameters that modules share stay shared. Floats of any precision become float32, or float64 with
    `jax_enable_x64`, in which the module computes. Training and evaluation are the modes of `module.train()`
    and `module.eval()`. Dropout, `torch.rand_like` and the like draw from JAX's key. The module itself is not changed.

    Batch norm excludes padding (`Batch.mask`) from its statistics. Convolutions and 2×2 pooling are those of
    `afl.models.conv2d` and `afl.models.max_pool`. Recurrent networks are loops over time steps. Attributes other than
    buffers that `forward` sets are forgotten after the call.

    Inputs are those of `Batch.x`: an array is passed as it is, a tuple as positional arguments, and a dict as keywords.
    Images [B, H, W, C] are passed as [B, C, H, W].

    Args:
        module: the network; maps inputs [B, ...] to predictions [B, ...].
        loss: a name such as `"squared_error"`, a loss of Optax, or a function in JAX `(predictions, batch) -> Outputs`,
            or a loss per example [B]; see `from_linen`.
        name: the name in results, by default the module's class name.
        references: see `Model`.
        better: metric -> `"higher"` or `"lower"`, for metrics with other names than `Model` lists.
        reset: if True, x_0 is drawn from the seed by the `reset_parameters` of the submodules, from the inside out.
            Parameters that it does not set, and frozen ones, keep the module's values. If False, every seed starts
            from the module's values, for example pretrained ones. `None` means True, and raises an error for values
            that `reset_parameters` would not have drawn.
        images: order of the axes of the dataset's images. `"NCHW"` passes all inputs as they are.

    Returns:
        The model. A module that cannot be compiled, for example because of `if` on values of tensors, raises the error
        of JAX. Backward passes of its own, hooks on gradients and changed parameters are refused.

    Raises:
        ImportError: torch or torchax is not installed; the extra `torch` brings them.
        TypeError: `module` is not a PyTorch module.
        ValueError: no parameter is trained, the gradients of a layer are not those of its `forward`, or `reset=None`
            meets values that `reset_parameters` would not draw.
    """
    try:
        from jaxafl.models.adapters import torch_environment as environment
    except ModuleNotFoundError as error:
        raise ImportError(f'from_torch needs {error.name}: pip install "jaxafl[torch]"') from error
    check_choice("from_torch", "images", images, ("NHWC", "NCHW"))
    module = _checked(module)
    loss_of = as_loss("from_torch", loss)
    network = type(module).__name__
    parameters = [(one, value.requires_grad, _array(value)) for one, value in module.named_parameters()]
    trained, held = ({one: value for one, given, value in parameters if given == kind} for kind in (True, False))
    buffers = {one: _array(value) for one, value in module.named_buffers()}
    if not trained:
        raise UserError(f"from_torch: no parameter of {network} requires a gradient; expected one to train")
    functions = _Functions(module, environment.Environment, trained, held, buffers, images)
    drawn = jax.jit(functions.drawn)
    sample = {} if reset is False else drawn(trained, jax.random.key(0, impl="threefry2x32"))
    if reset is None:
        _check_drawn(network, trained, sample)

    def make(key: Key, batch: Batch) -> tuple[Params, State]:
        state = {one: buffers[one] for one in functions.moving(batch)}
        return {**trained, **(drawn(trained, key) if sample else {})}, state

    def apply(
        params: Params, state: State, batch: Batch, key: Key, train: bool, frozen: Params = types.MappingProxyType({})
    ) -> tuple[Outputs, State]:
        predictions, new = functions.called({**frozen, **params, **state}, batch, key, train)
        outputs = judged(loss_of, predictions, batch)
        return outputs, {one: new.get(one, value) for one, value in state.items()} if train else state

    of_norms = tuple(path for path, one in module.named_modules() if isinstance(one, environment.BATCH_NORMS))
    sees_mask = all(one.rpartition(".")[0] in of_norms for one, value in buffers.items() if value.dtype.kind == "f")
    description = {"network": network, "framework": "torch", "initial": _initial(trained, [*sample], buffers)}
    description |= {"loss": loss} if isinstance(loss, str) else {}
    return Model(name or network, make, apply, description, held or None, sees_mask, references, better=better)


class _Functions(NamedTuple):
    """A module as functions of its arrays."""

    module: TorchModule
    environment: Any
    trained: Arrays
    held: Arrays
    buffers: Arrays
    images: str

    def called(self, values: Arrays, batch: Batch, key: Key, train: bool) -> tuple[Any, Arrays]:
        """Returns the predictions, and the buffers that the call has changed."""
        env = self.environment(drawing_key(key), batch.mask)
        float_type = jnp.result_type(*(values[one] for one in self.trained))
        with jax.ensure_compile_time_eval():
            constants = {
                one: jnp.asarray(value, float_type if value.dtype.kind == "f" else None)
                for one, value in self.buffers.items()
            }
        net = _copied(self.module, {**constants, **values}, env).train(train)
        env.writable += net.buffers()
        first = self.images == "NHWC"
        x = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 1) if first and jnp.ndim(leaf) == 4 else leaf, batch.x)

        def forward() -> Any:
            given = env.j2t_iso(x)
            if isinstance(given, Mapping):
                return net(**given)
            return net(*given) if isinstance(given, tuple | list) else net(given)

        out, changed = _effects(net, env, forward)
        if wrong := sorted(changed.keys() - self.buffers.keys()):
            network = type(self.module).__name__
            raise UserError(f"from_torch: forward of {network} changes its parameter {wrong[0]}. Make it a buffer")
        return env.t2j_iso(out), changed

    def moving(self, batch: Batch) -> list[str]:
        """Returns the names of the buffers that training changes."""
        params, key = jax.eval_shape(lambda: ({**self.trained, **self.held}, jax.random.key(0)))
        moved = jax.eval_shape(lambda params, batch, key: self.called(params, batch, key, True)[1], params, batch, key)
        names = [one for one in moved if not one.endswith("num_batches_tracked")]
        if wrong := [one for one in names if self.buffers[one].dtype.kind != "f"]:
            raise UserError(
                f"from_torch: {type(self.module).__name__} changes its buffer {wrong[0]} of "
                f"{self.buffers[wrong[0]].dtype}; expected floats, whose mean over clients is defined"
            )
        return names

    def drawn(self, params: Params, key: Key) -> Params:
        """Draws the parameters that `reset_parameters` sets, in each module after its submodules."""
        env = self.environment(key)
        net = _copied(self.module, {**params, **self.held, **self.buffers}, env)
        env.writable += [*net.parameters(), *net.buffers()]

        def reset() -> None:
            for part in reversed(list(net.modules())):
                for method in ("reset_parameters", "_reset_parameters"):
                    getattr(part, method, lambda: None)()

        after = _effects(net, env, reset)[1]
        return {one: after[one] for one in params if one in after}


def _effects(net: TorchModule, env: Any, act: Callable[[], Any]) -> tuple[Any, Arrays]:
    """Returns the result of a call in an environment, and the parameters and buffers of `net` that it has changed."""
    before = _values(net, env)
    with env.active():
        out = act()
    return out, {one: value for one, value in _values(net, env).items() if value is not before[one]}


def _checked(module: TorchModule) -> TorchModule:
    """Returns a copy of a module in the main memory; raises if its gradients are not those of its `forward`."""
    import torch

    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"from_torch: got {shown(module)}; expected an instance of a torch.nn.Module, such as Net()")
    for path, part in module.named_modules():
        hooked = any(one._backward_hooks for one in (part, *part.parameters(False))) or part._backward_pre_hooks
        averaged = isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and part.momentum is None
        tracked = isinstance(part, torch.nn.modules.instancenorm._InstanceNorm) and part.track_running_stats
        if hooked or averaged or tracked or getattr(part, "scale_grad_by_freq", False):
            raise UserError(
                f"from_torch: the layer {path or type(part).__name__} has hooks on gradients, momentum=None, "
                "scale_grad_by_freq=True, or track_running_stats=True of an instance norm, which JAX would not apply; "
                "expected none of these"
            )
    module = getattr(module, "_orig_mod", module)  # torch.compile wraps modules
    values = [one for part in module.modules() for one in vars(part).values()]
    computed = [one for one in values if isinstance(one, torch.Tensor) and not one.is_leaf]  # by weight_norm, anew
    return copy.deepcopy(module, {id(one): one.detach().clone() for one in computed}).cpu()


def _array(tensor: Any) -> np.ndarray:
    """Copies a tensor; floats get JAX's precision."""
    array = tensor.detach().double().numpy() if tensor.is_floating_point() else tensor.detach().numpy()
    return np.array(array, jnp.result_type(float) if array.dtype.kind == "f" else array.dtype)


def _values(net: TorchModule, env: Any) -> dict[str, Array]:
    return env.t2j_iso({**dict(net.named_parameters()), **dict(net.named_buffers())})


def _copied(module: TorchModule, values: Arrays, env: Any) -> TorchModule:
    """Returns a copy of the module with other arrays as parameters and buffers; shared ones stay shared."""
    tensors = dict((*module.named_parameters(), *module.named_buffers()))
    return copy.deepcopy(module, {id(tensors[one]): env.j2t_iso(jnp.asarray(value)) for one, value in values.items()})


def _check_drawn(network: str, trained: Arrays, sample: Arrays) -> None:
    """Raises `ValueError` if values of a module are unlikely as draws, by a Kolmogorov-Smirnov test."""
    from scipy import stats

    pairs = ((one, trained[one].ravel()[:_SAMPLE], np.ravel(sample[one])[:_SAMPLE]) for one in sample)
    foreign = [one for one, mine, other in pairs if stats.ks_2samp(mine, other).pvalue < _SURE]
    if foreign:
        raise UserError(
            f"from_torch: the values of {foreign[0]} of {network} are not draws of reset_parameters, but trained "
            f"or set by another rule ({len(foreign)} of {len(trained)} parameters). Give reset=False to start "
            "every seed from the module's values, or reset=True to draw them"
        )


def _initial(trained: Arrays, names: list[str], buffers: Arrays) -> str:
    """Describes x_0; a checksum tells values of one module from those of another in checkpoints."""
    own = [one for one in trained if one not in names]
    checksum = zlib.crc32(b"".join(value.tobytes() for value in (*(trained[one] for one in own), *buffers.values())))
    which = f"{len(own)} of {len(trained)} parameters" if names else "all parameters"
    text = f"{which} of the module, for every seed" if own else "drawn from the seed"
    return f"{text} ({checksum:08x})" if checksum else text
