"""Declarations of options.

A *part* (a server, a clock, a duration, a partition, local training) is a class whose fields are its options. The
constructor, checks, sweeps, listings and the command line read type, default and bounds from the field, and the help
from `Args` of the class's docstring. Numbers are arguments of the compiled program, so that a sweep varies them
without compilation. Options that fix shapes or control flow are `static`.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import html
import types
import typing
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, dataclass_transform

import cloudpickle
import jax
import numpy as np

from jaxafl.options.checks import (
    Bounds,
    as_array,
    check_choice,
    check_flag,
    check_number,
    check_whole,
    in_order,
    kept,
    shown,
)
from jaxafl.options.suggestions import named

Number: TypeAlias = float | jax.Array | np.ndarray
"""A number that can be swept, or an array [N] of one number per client if the part allows it."""


def number(*, default: Any = dataclasses.MISSING, kw_only: bool = False, **bounds: Any) -> Any:
    """Declares an option that is a finite number: a leaf of the pytree, which can be swept.

    Args:
        default: its default; `None` if the type allows it. Type checkers require the keyword.
        kw_only: if True, a keyword-only option.
        **bounds: `least` (value >= least), `above`, `most`, `below`. `per_client=True` also allows an array [N],
            `infinite=True` infinity.
    """
    return dataclasses.field(default=default, kw_only=kw_only, metadata={"bounds": Bounds(**bounds)})


def static(*, default: Any = dataclasses.MISSING, least: int = 1, kw_only: bool = False) -> Any:
    """Declares a static option: a change of its value compiles a new program.

    Its type determines the allowed values: `int` (a whole number of at least `least`), `bool`, `Literal` or a function,
    and `None` with `| None`.

    Args:
        default: its default.
        least: lower bound of a whole number.
        kw_only: if True, a keyword-only option.
    """
    return dataclasses.field(default=default, kw_only=kw_only, metadata={"bounds": Bounds(static=True, least=least)})


def recording(default: None, compare: bool = True) -> Any:
    """Declares a field that the package sets, and no user: recorded draws of `jaxafl.clock.trace`, or of a run."""
    return dataclasses.field(default=default, kw_only=True, compare=compare, metadata={"recording": True})


@dataclass_transform(frozen_default=True, field_specifiers=(number, static, recording, dataclasses.field))
class Part:
    """Base class of everything with options. Subclasses become frozen dataclasses and pytrees.

    Attributes:
        name: the name in results and messages; by default that of the class.
        references: the citations of a run with the part: keys of `jaxafl.references.BIBTEX`, or BibTeX entries.
        implied: option -> the value that its default `None` stands for, which representations leave out.
        derives: True if the constructor makes attributes that are no fields, so that the copies of JAX need it; by
            default of classes that define `__post_init__`.
    """

    name: ClassVar[str] = ""
    references: ClassVar[tuple[str, ...]] = ()
    implied: ClassVar[dict[str, Any]] = {}
    derives: ClassVar[bool] = False
    is_part: ClassVar[bool] = True

    def __init_subclass__(cls, init: bool = True) -> None:
        """Makes the subclass a frozen dataclass and a pytree.

        Args:
            init: False if the constructor takes more than the fields (`Optimised`); only type checkers read it.
        """
        super().__init_subclass__()
        if "name" not in vars(cls):
            cls.name = cls.__name__
        if "__post_init__" in vars(cls) and "derives" not in vars(cls):
            cls.derives = True
        dataclasses.dataclass(frozen=True, repr=False)(cls)
        if "__init__" in vars(cls):
            cls.__init__ = named(cls.__init__)  # type: ignore[method-assign]
        fields = [field for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]
        _register(cls, [one.name for one in fields], [one.name for one in fields if not bounds_of(one).static])

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value is None or type(value) in (bool, int, float, str):
                continue
            value = in_order(self.name, field.name, value)
            if bounds_of(field).static:  # JAX compares them, and a number of NumPy with a tuple gives an array
                value = _as_plain(value)
            elif type(value) in (list, tuple):
                value = as_array(self.name, field.name, value)
            object.__setattr__(self, field.name, kept(value))

    def __repr__(self) -> str:
        given = []
        for name, value in options_of(self).items():
            usual = self.implied.get(name, getattr(type(self), name, ...))  # a class has the defaults of its fields
            equal = value is usual or (isinstance(value, int | float | str) and value == usual)
            if not equal:
                given.append(f"{name}={shown(value)}")
        return f"{type(self).__name__}({', '.join(given)})"


def _register(cls: type, names: list[str], leaves: list[str]) -> None:
    """Makes a class a pytree.

    Structures of `jax.tree_util.register_dataclass` are equal if only their classes differ (in JAX 0.10 to 0.12), so
    that `jax.jit` now and then took the trace of `uniform(0.5, 1)` for `lognormal(0.5, 1)`.
    """
    keys, static = [*map(jax.tree_util.GetAttrKey, leaves)], [name for name in names if name not in leaves]

    def flatten(part: Any) -> tuple[Any, Any]:
        values = functools.partial(getattr, part)
        return zip(keys, map(values, leaves), strict=True), tuple(map(values, static))

    def unflatten(rest: Any, values: Any) -> Any:
        fields = dict(zip([*leaves, *static], [*values, *rest], strict=True))
        if cls.derives:  # type: ignore[attr-defined]
            return cls(**fields)
        part: Any = object.__new__(cls)  # the fields have been checked
        vars(part).update(fields)
        return part

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)


class Wrapped:
    """Base of named static values around another one; two of one class are equal if their contents are."""

    def __init__(self, content: Any, name: str) -> None:
        self.content = content
        self.__name__ = name

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.content == other.content

    def __hash__(self) -> int:
        return hash(self.content)

    def __repr__(self) -> str:
        return self.__name__


class Summarised:
    """Base class of large objects whose representation is `summary()`: one line, or a table in a notebook."""

    is_part: ClassVar[bool] = True

    def summary(self) -> dict[str, Any]:
        """Returns name -> the most important facts about the object."""
        raise NotImplementedError(f"{type(self).__name__} has no summary()")

    def __deepcopy__(self, memo: Any) -> Any:
        """Returns the object itself: it never changes, and functions and tables in it could not be copied."""
        return self

    def __reduce__(self) -> Any:
        """Pickles the fields by cloudpickle, which also writes functions that were defined in other functions."""
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(self) if one.init}  # type: ignore[arg-type]
        return _unpickled, (type(self), cloudpickle.dumps(fields))

    def _shown(self, most: int) -> dict[str, str]:
        texts = {name: value if isinstance(value, str) else shown(value) for name, value in self.summary().items()}
        return {name: text if len(text) <= most else f"{text[: most - 3]}..." for name, text in texts.items()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={text}' for name, text in self._shown(60).items())})"

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in self._shown(200).items())
        return f"<table><caption>{type(self).__name__}</caption>{''.join(rows)}</table>"


def _unpickled(cls: Any, fields: bytes) -> Any:
    return cls(**cloudpickle.loads(fields))


def bounds_of(field: dataclasses.Field[Any]) -> Bounds:
    """Returns the bounds of a field."""
    return field.metadata.get("bounds", Bounds())


def options_of(part: Any, hidden: bool = False) -> dict[str, Any]:
    """Returns name -> value of a part's options: recordings if they are set, and the entries of tables of numbers.

    Private fields, such as the content of a recorded file, are only among them if `hidden`.
    """
    found: dict[str, Any] = {}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if isinstance(value, dict):
            found |= value
        elif hidden >= field.name.startswith("_") and (value is not None or not field.metadata.get("recording")):
            found.setdefault(field.name, value)
    return found


@functools.cache
def types_of(cls: Any) -> dict[str, Any]:
    """Returns name -> type of a part's options; empty if a type is local to a function and cannot be resolved."""
    try:
        return typing.get_type_hints(cls)
    except NameError:
        return {}


class Kinds(NamedTuple):
    """What a type allows."""

    members: tuple[Any, ...]  # of a union, or the single type
    kinds: frozenset[Any]  # their classes: `int`, or `Literal` and `collections.abc.Callable` without parameters
    choices: list[Any]  # the values of its `Literal` types


def kinds_of(hint: Any) -> Kinds:
    """Returns what a type allows."""
    members = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    kinds = frozenset([typing.get_origin(one) or one for one in members])
    literal = [value for one in members if typing.get_origin(one) is Literal for value in typing.get_args(one)]
    return Kinds(members, kinds, literal)


def check_options(part: Any, num_clients: int | None = None) -> None:
    """Checks every option of a part against its type and bounds, and those of parts in it, its dicts and its tuples.

    Raises:
        ValueError, TypeError: an option is not allowed; the message names owner, option, value and allowed values.
    """
    cls: Any = type(part)
    if isinstance(part, dict | tuple | list):
        values = part.values() if isinstance(part, dict) else part
        for one in () if {*map(type, values)} <= {int, float} else values:  # there may be millions of numbers
            check_options(one, num_clients)
    for field in dataclasses.fields(part) if isinstance(part, Part) else ():  # type: ignore[arg-type]
        value, bounds = getattr(part, field.name), field.metadata.get("bounds")
        _, kinds, choices = kinds_of(types_of(cls).get(field.name, Any))
        optional, functions = types.NoneType in kinds, collections.abc.Callable in kinds
        of_option, kinds = (part.name, field.name, value), kinds - {types.NoneType}
        check_options(value, num_clients)
        parts = tuple(one for one in kinds if isinstance(one, type) and issubclass(one, Part))
        if (value is None and optional) or isinstance(value, parts):
            continue
        if parts and len(parts) == len(kinds):
            kind = parts[0].__name__.lower()
            raise TypeError(f"{part.name}: {field.name} must be of the kind {kind}, made by a call, got {value!r:.200}")
        if bounds is None:
            continue
        if not bounds.static:
            check_number(*of_option, num_clients=num_clients, **bounds._asdict())
        elif kinds == {int} or (int in kinds and choices and not isinstance(value, str)):
            check_whole(*of_option, int(bounds.least or 0))
        elif choices and not (functions and callable(value)):
            also = " or a function" if functions else " or a whole number" if int in kinds else ""
            check_choice(*of_option, (*[None] * optional, *choices), also)
        elif kinds == {bool}:
            check_flag(*of_option)
        elif kinds == {collections.abc.Callable} and not callable(value):
            raise TypeError(f"{part.name}: {field.name} must be a function, got {value!r}")


def _as_plain(value: Any) -> Any:
    """Returns lists as tuples, and numbers of NumPy as those of Python; arrays without axes are refused later."""
    if type(value) in (list, tuple):
        return tuple(map(_as_plain, value))
    return value.item() if isinstance(value, np.generic) and value.dtype.kind in "biuf" else value
