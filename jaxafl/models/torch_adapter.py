"""Models from PyTorch modules."""

from __future__ import annotations

import copy
import linecache
import types
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from jaxafl.device.keys import drawing_key
from jaxafl.models.adapters import Loss, check_loss, outputs_of, tried
from jaxafl.models.metrics import Better
from jaxafl.models.model import Array, Batch, Key, Model, Outputs, Params, State, softmax_cross_entropy
from jaxafl.models.torch_checks import checked
from jaxafl.models.unreached import changed, probed
from jaxafl.options import UserError, named

TorchModule: TypeAlias = Any
"""A `torch.nn.Module`; functions import torch themselves, because it is optional."""
Arrays: TypeAlias = dict[str, Any]
_SURE = 1e-9  # with a larger one, draws of `reset_parameters` would be refused now and then
_SAMPLE = 5000
_LIBRARIES = {"jaxafl", "torch", "torchax", "jax", "jaxlib", "flax", "contextlib", "copy", "opt_einsum"}
_VALUES = (
    *(jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError),
    jax.errors.TracerIntegerConversionError,
)


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
    are constants. Parameters that modules share stay shared. Training and evaluation are the modes of `module.train()`
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
        The model. Its `init` raises `ValueError`, with the line of the module, if the module cannot be compiled:
        `if` on values of tensors, global random streams, custom operators or backward passes, changed parameters.

    Raises:
        ImportError: torch or torchax is not installed; the extra `torch` brings them.
        TypeError: `module` is not a PyTorch module.
        ValueError: no parameter is trained, or `reset=None` meets values that `reset_parameters` would not draw.
    """
    environment = _environment()
    module = checked(module, loss, images)
    loss_of = check_loss("from_torch", loss)
    network = type(module).__name__
    trained = {one: _array(value) for one, value in module.named_parameters() if value.requires_grad}
    held = {one: _array(value) for one, value in module.named_parameters() if not value.requires_grad}
    buffers = {one: _array(value) for one, value in module.named_buffers()}
    found: dict[str, tuple[str, ...]] = {}  # form of the samples -> buffers that training changes

    def called(values: Arrays, batch: Batch, key: Key, train: bool, watch: bool = False) -> tuple[Any, Arrays]:
        """Returns the predictions, and the buffers that the call has changed."""
        env = environment.Environment(drawing_key(key), batch.mask, watch)
        float_type = jnp.result_type(*(values[one] for one in trained))
        with jax.ensure_compile_time_eval():
            constants = {one: _as_constant(value, float_type) for one, value in buffers.items() if one not in values}
        net = _copied(module, {**values, **constants}, env).train(train)
        env.writable += net.buffers()
        given = env.t2j_iso({**dict(net.named_parameters()), **dict(net.named_buffers())})
        x = env.j2t_iso(jax.tree.map(lambda leaf: _first_channels(leaf) if images == "NHWC" else leaf, batch.x))
        try:
            with env.active():
                out = net(**x) if isinstance(x, Mapping) else net(*x) if isinstance(x, tuple | list) else net(x)
        except Exception as error:
            moved = images == "NHWC" and any(jnp.ndim(leaf) == 4 for leaf in jax.tree.leaves(batch.x))
            turned = moved and not isinstance(error, (UserError, *_VALUES))
            advice = '. Images are passed as [C, H, W]; if the dataset stores them so, give images="NCHW"' * turned
            raise UserError(f"from_torch: {_explained(error, net)}{advice}") from error
        for one, value in env.t2j_iso(dict(net.named_parameters())).items():
            if value is not given[one]:
                raise UserError(f"from_torch: forward of {network} changes its parameter {one}. Make it a buffer")
        after = env.t2j_iso(dict(net.named_buffers()))
        return env.t2j_iso(out), {one: value for one, value in after.items() if value is not given[one]}

    def moving(batch: Batch) -> tuple[str, ...]:
        """Returns the names of the buffers that training changes."""
        form = str(jax.tree.map(jnp.shape, batch.x))
        if form not in found:
            params = jax.eval_shape(lambda: {**trained, **held})
            key = jax.eval_shape(lambda: jax.random.key(0))
            moved = jax.eval_shape(
                lambda params, batch, key: called(params, batch, key, True, True)[1], params, probed(batch), key
            )
            names = [one for one in moved if not one.endswith("num_batches_tracked")]
            for one in names:
                if buffers[one].dtype.kind != "f":
                    raise UserError(
                        f"from_torch: {network} changes its buffer {one} of {buffers[one].dtype}; expected floats, "
                        "whose mean over clients is defined. Make it a float buffer"
                    )
            found[form] = tuple(names)
        return found[form]

    def drawn(params: Params, key: Key) -> Params:
        """Draws trained parameters by `reset_parameters`, in each module after its submodules."""
        env = environment.Environment(key)
        net = _copied(module, {**params, **held, **buffers}, env)
        env.writable += [*net.parameters(), *net.buffers()]
        try:
            with env.active():
                for part in reversed(list(net.modules())):
                    for method in ("reset_parameters", "_reset_parameters"):
                        getattr(part, method, lambda: None)()
        except Exception as error:
            advice = "Give reset=False to start from the module's values"
            raise UserError(f"from_torch: reset_parameters: {_explained(error, net)}. {advice}") from error
        values = dict(net.named_parameters())
        return {one: env.t2j_iso(values[one]) for one in params}

    names = [] if reset is False else _drawn_names(network, drawn, trained, reset is None)

    def make(key: Key, batch: Batch) -> tuple[Params, State]:
        state = {one: buffers[one] for one in moving(batch)}
        fresh = jax.jit(drawn)(trained, key) if names else {}
        return {**trained, **{one: fresh[one] for one in names}}, state

    def apply(
        params: Params,
        state: State,
        batch: Batch,
        key: Key,
        train: bool,
        frozen: Mapping[str, Any] = types.MappingProxyType({}),
    ) -> tuple[Outputs, State]:
        predictions, new = called({**frozen, **params, **state}, batch, key, train)
        return outputs_of(loss_of, predictions, batch), {**state, **_only(new, state)} if train else state

    of_norms = tuple(path for path, one in module.named_modules() if isinstance(one, environment.BATCH_NORMS))
    sees_mask = all(one.rpartition(".")[0] in of_norms for one, value in buffers.items() if value.dtype.kind == "f")
    return Model(
        name or network,
        tried(make, apply, held or None, loss=loss_of),
        apply,
        {"network": network, "framework": "torch", "initial": _initial(trained, names, buffers)}
        | ({"loss": loss} if isinstance(loss, str) else {}),
        held or None,
        sees_mask,
        references,
        better=better,
    )


def _environment() -> Any:
    try:
        from jaxafl.models import torch_environment
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("torch", "torchax"):
            raise
        raise ImportError(f'from_torch needs {error.name}: pip install "jaxafl[torch]"') from error
    return torch_environment


def _array(tensor: Any) -> np.ndarray:
    """Copies a tensor; floats get JAX's precision."""
    array = tensor.detach().double().numpy() if tensor.is_floating_point() else tensor.detach().numpy()
    return np.array(array, jnp.result_type(float) if array.dtype.kind == "f" else array.dtype)


def _as_constant(value: np.ndarray, float_type: Any) -> Array:
    return jnp.asarray(value, float_type if value.dtype.kind == "f" else None)


def _only(values: Arrays, names: Iterable[str]) -> Arrays:
    return {one: values[one] for one in names if one in values}


def _first_channels(leaf: Array) -> Array:
    return jnp.moveaxis(leaf, -1, 1) if jnp.ndim(leaf) == 4 else leaf


def _copied(module: TorchModule, values: Arrays, env: Any) -> TorchModule:
    """Returns a copy of the module with other arrays as parameters and buffers; shared ones stay shared."""
    tensors = dict((*module.named_parameters(), *module.named_buffers()))
    return copy.deepcopy(module, {id(tensors[one]): env.j2t_iso(jnp.asarray(value)) for one, value in values.items()})


def _drawn_names(network: str, drawn: Callable[[Params, Key], Params], trained: Arrays, check: bool) -> list[str]:
    """Returns the names of the parameters that `reset_parameters` sets.

    With `check`, raises `ValueError` if values of the module are unlikely as its draws, by a Kolmogorov-Smirnov test.
    """
    key = jax.random.key(0, impl="threefry2x32")
    sets = changed(drawn, trained, jax.eval_shape(lambda: key))
    names = [one for one in trained if sets[one]]
    if check and names:
        fresh = jax.jit(drawn)(trained, key)
        pairs = ((one, trained[one].ravel()[:_SAMPLE], np.ravel(fresh[one])[:_SAMPLE]) for one in names)
        foreign = [one for one, mine, other in pairs if stats.ks_2samp(mine, other).pvalue < _SURE]
        if foreign:
            raise UserError(
                f"from_torch: the values of {foreign[0]} of {network} are not draws of reset_parameters, but trained "
                f"or set by another rule ({len(foreign)} of {len(trained)} parameters). Give reset=False to start "
                "every seed from the module's values, or reset=True to draw them"
            )
    return names


def _initial(trained: Arrays, names: list[str], buffers: Arrays) -> str:
    """Describes x_0; a checksum tells values of one module from those of another in checkpoints."""
    own = [one for one in trained if one not in names]
    checksum = zlib.crc32(b"".join(value.tobytes() for value in (*(trained[one] for one in own), *buffers.values())))
    which = f"{len(own)} of {len(trained)} parameters" if names else "all parameters"
    text = f"{which} of the module, for every seed" if own else "drawn from the seed"
    return f"{text} ({checksum:08x})" if checksum else text


def _explained(error: Exception, net: TorchModule) -> str:
    """Describes an error in a traced call, with the module and the user's line in which it was raised."""
    paths = {id(one): f"{path or 'module'} ({type(one).__name__})" for path, one in net.named_modules()}
    inside = line = ""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        inside = paths.get(id(frame.f_locals.get("self")), inside)
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES:
            file = frame.f_code.co_filename
            line = f", {file}:{trace.tb_lineno}: {linecache.getline(file, trace.tb_lineno).strip()}"
        trace = trace.tb_next
    first = str(error).partition("\n")[0]
    reason = first if isinstance(error, UserError) else f"{type(error).__name__}: {first}"
    if isinstance(error, _VALUES):
        reason = (
            "`if`, `while`, item(), tolist() or numpy() needs values of a tensor, which are not known while a module "
            "is compiled; use torch.where, torch.clamp and the like"
        )
    return f"{reason} [in {inside}{line}]"
