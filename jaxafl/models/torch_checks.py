"""Checks of PyTorch modules before their conversion."""

from __future__ import annotations

import copy
from typing import Any

from jaxafl.models.adapters import what
from jaxafl.options import UserError, check_choice


def checked(module: Any, loss: Any, images: str) -> Any:
    """Checks the arguments of `from_torch`, and returns a copy of the module in the main memory."""
    import torch

    if not isinstance(module, torch.nn.Module) or isinstance(module, torch.jit.ScriptModule):
        advice = ". Give an instance, such as Net()" if isinstance(module, type) else ""
        raise TypeError(f"from_torch needs a torch.nn.Module that is not scripted, got {what(module)}{advice}")
    if isinstance(loss, torch.nn.Module) or (getattr(loss, "__module__", None) or "").startswith("torch."):
        raise TypeError(
            f"from_torch: the loss is {getattr(loss, '__name__', type(loss).__name__)} of PyTorch; expected a name, "
            "such as 'squared_error' for nn.MSELoss, or a function in JAX. Leave it out for nn.CrossEntropyLoss"
        )
    check_choice("from_torch", "images", images, ("NHWC", "NCHW"))
    network = type(module).__name__
    for path, part in module.named_modules():
        norm = f"from_torch: the layer {path or network} is {type(part).__name__} with"
        if any(map(torch.nn.parameter.is_lazy, (*part.parameters(False), *part.buffers(False)))):
            raise UserError(f"{norm} lazy parameters without shapes. Call the module once on an example")
        if isinstance(part, torch.nn.modules.batchnorm._NormBase) and part.track_running_stats:
            if part.momentum is None:
                raise UserError(f"{norm} momentum=None, whose statistics depend on a count; expected a number")
            if isinstance(part, torch.nn.modules.instancenorm._InstanceNorm):
                raise UserError(f"{norm} track_running_stats=True; expected False, the default of PyTorch")
        if getattr(part, "scale_grad_by_freq", False):
            raise UserError(f"{norm} scale_grad_by_freq=True, which changes gradients; expected False")
        if (
            part._backward_hooks
            or part._backward_pre_hooks
            or any(one._backward_hooks for one in part.parameters(False))
        ):
            raise UserError(f"{norm} hooks on gradients, which JAX does not call; remove them")
    if not any(one.requires_grad for one in module.parameters()):
        raise UserError(f"from_torch: no parameter of {network} requires a gradient, so that nothing is left to train")
    module = getattr(module, "_orig_mod", module)  # torch.compile wraps modules
    values = [one for part in module.modules() for one in vars(part).values()]
    computed = [one for one in values if isinstance(one, torch.Tensor) and not one.is_leaf]  # by weight_norm, anew
    return copy.deepcopy(module, {id(one): one.detach().clone() for one in computed}).cpu()
