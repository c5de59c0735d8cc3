"""Calls of Linen modules in training or evaluation: missing flags are filled in, and the submodules are recorded."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flax import linen

from jaxafl.models.modes import UNKNOWN, Modes, by_convention, is_flag
from jaxafl.models.unreached import Part, Parts, dropout_rate


@contextmanager
def in_mode(modes: Modes, train: bool, parts: Parts | None = None) -> Iterator[None]:
    """Calls Linen modules within the context in one mode.

    If neither the caller of a module nor its attribute gives a flag, Flax would raise an error; the flag gets the value
    of its name instead. The user's values for submodules replace the original ones.

    Args:
        modes: the user's values.
        train: True for training, False for evaluation.
        parts: dict that receives the observed modules, if given.
    """
    drawn = [0]

    def intercepted(
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        context: linen.module.InterceptorContext,
    ) -> Any:
        module = context.module
        method = context.method_name
        path = "/".join(map(str, module.path))
        signature = _signature(context.orig_method.func)  # type: ignore[attr-defined]
        attributes, arguments = _changes(module, path, signature, modes, train, args, kwargs)
        if arguments:
            bound = signature.bind_partial(module, *args, **kwargs)
            bound.arguments.update(arguments)
            args, kwargs = bound.args[1:], bound.kwargs
        with _attributes(module, attributes):
            if parts is None:
                return call(*args, **kwargs)
            before = _counters(module)
            drawn.append(0)
            result = call(*args, **kwargs)
            by_stream = {name: count - before.get(name, 0) for name, count in _counters(module).items()}
            count = drawn.pop() + sum(by_stream.values())
            drawn[-1] += count
            if method != "setup":
                _note(parts, train, module, path, signature, args, kwargs, count, by_stream)
            return result

    with linen.intercept_methods(intercepted):
        yield


def network_attributes(module: linen.Module, modes: Modes, call_takes: set[str]) -> Callable[[bool], dict[str, Any]]:
    """Returns a function from the mode to the network's attributes that depend on it.

    Args:
        module: the network.
        modes: the user's values; the names of these attributes are added to `modes.reserved`.
        call_takes: names of arguments of the network's call, which are passed in the call if the attribute is `None`.
    """
    found = []
    for name in _fields(type(module)):
        value = getattr(module, name)
        flag = by_convention(name, True) is not None and (value is None or isinstance(value, bool))
        given = name in modes.training or name in modes.evaluation
        if (flag or given) and not (name in call_takes and value is None):
            found.append(name)
    modes.reserved.update(found)

    def of_mode(train: bool) -> dict[str, Any]:
        chosen = {name: modes.given(train).get(name, by_convention(name, train)) for name in found}
        return {name: value for name, value in chosen.items() if value is not None or name in modes.given(train)}

    return of_mode


def _changes(
    module: linen.Module,
    path: str,
    signature: inspect.Signature,
    modes: Modes,
    train: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the attributes and the arguments to replace in a call."""
    attributes: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    fields, parameters = _fields(type(module)), signature.parameters
    for name in sorted(modes.names & {*fields, *parameters}) if path else ():
        value = modes.nested(path, name, train)
        if value is not UNKNOWN:
            by_attribute = name in fields and (getattr(module, name) is not None or name not in parameters)
            (attributes if by_attribute else arguments)[name] = value
    lacking = [
        name
        for name in _flags(signature)
        if name not in {**attributes, **arguments} and getattr(module, name, None) is None
    ]
    if lacking:
        passed = signature.bind_partial(module, *args, **kwargs).arguments
        arguments |= {
            name: by_convention(name, train)
            for name in lacking
            if passed.get(name) is None and not isinstance(parameters[name].default, bool)
        }
    return attributes, arguments


@contextmanager
def _attributes(module: linen.Module, values: dict[str, Any]) -> Iterator[None]:
    """Replaces attributes of a module, which is immutable, within the context."""
    before = {name: getattr(module, name) for name in values}
    try:
        for name, value in values.items():
            object.__setattr__(module, name, value)
        yield
    finally:
        for name, value in before.items():
            object.__setattr__(module, name, value)


def _note(
    parts: Parts,
    train: bool,
    module: linen.Module,
    path: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    draws: int,
    by_stream: dict[str, int],
) -> None:
    bound = signature.bind_partial(module, *args, **kwargs)
    bound.apply_defaults()
    of_call = {name: bound.arguments.get(name) for name in _flags(signature)}
    of_module = {name: getattr(module, name) for name in _fields(type(module)) if by_convention(name, True) is not None}
    flags = of_module | {name: value for name, value in of_call.items() if value is not None or name not in of_module}
    part = parts.setdefault(path, Part(type(module).__name__))
    for name, value in flags.items():
        same = part.flags.get(name, value) == value if isinstance(value, bool) else False
        part.flags[name] = value if same else None
    part.draws += draws
    part.rate = dropout_rate(part.name, {name: getattr(module, name) for name in _fields(type(module))})
    opposite = any(value is not None and value == by_convention(name, not train) for name, value in flags.items())
    all_streams = part.rate or opposite or train
    part.own_draws += sum(by_stream.values()) if all_streams else by_stream.get("dropout", 0)


@functools.lru_cache(1024)
def _signature(method: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(method)


def _counters(module: linen.Module) -> dict[str, int]:
    """Counts a module's direct requests of random numbers by stream, without the counters of its submodules."""
    counters: dict[str, Any] = module.scope.rng_counters if module.scope else {}
    return {name: count for name, count in counters.items() if isinstance(count, int)}


def _flags(signature: inspect.Signature) -> list[str]:
    return [name for name, parameter in signature.parameters.items() if is_flag(parameter)]


def _fields(cls: type) -> tuple[str, ...]:
    return tuple(one.name for one in dataclasses.fields(cls) if one.name not in ("parent", "name"))
