"""Fingerprints of a problem: a hash of the jaxpr of each of its functions, independent of their source.

A jaxpr holds every operation that a function does and every number that it uses, also numbers from a global, a
container, an attribute, a default or another module. Names and addresses are left out, so that copies of a function,
and the same function in another process, have the same hash.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import singledispatchmethod
from types import CodeType, FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.extend.linear_util import WrappedFun
from jax.typing import ArrayLike

from ..jaxtools.jaxpr_tools import is_literal
from ..mechanics.coefficients import OfSpeed
from ..mechanics.motion import OF_FRICTION
from ..mechanics.problem import Problem, is_left_out
from ..simulation.call import Arguments
from ..simulation.canonical_arrays import canonical_state, cast_numbers
from .importing import LIBRARY
from .plain import encode
from .system import StudySystem

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
NAMES = {"name", "debug_info", "ctx_mesh", "inline", "keep_unused", "compiler_options_kvs"}  # change no number
ORDERS = 2  # derivatives of the problem's functions that schemes take


def fingerprint(system: StudySystem, values: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Hashes of the problem's functions by name, for the shapes and dtypes of a study.

    For a function that cannot be traced the error as text takes the place of a hash. ``values`` holds the values of
    each quantity over the design or some of its lanes.
    """
    one = system.lane({key: column[0] for key, column in values.items()})
    q, v = canonical_state(one["q0"], one["v0"])
    args = cast_numbers("args", one["args"], q.dtype)
    t, q, v, args = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(np.shape(x), x.dtype), (np.zeros((), q.dtype), q, v, args)
    )
    problem, everything = system.problem, (t, q, v, args)
    calls = calls_of(problem, *everything) | {
        "constraints": (problem.sampled("constraints"), (t, q, args)),
        "save.function": (system.save.function, everything),
        "until": (_surface(system), everything),
    }
    # settings that change no number, but what is traced or refused
    with jax.disable_jit(False), jax.numpy_rank_promotion("allow"):
        return {name: hash_of(function, operands) for name, (function, operands) in calls.items() if callable(function)}


def calls_of(problem: Problem, t: ArrayLike, q: Array, v: Array, args: object) -> dict[str, tuple]:
    """Functions of a problem besides its constraints, by name, each with its operands.

    None or a number stands for a function that the problem does not have. ``t``, ``q``, ``v``, ``args``: abstract
    values (`jax.ShapeDtypeStruct`), of which the operands are made.
    """
    everything = (t, q, v, args)
    law, of_contacts = problem.impact_law, jax.ShapeDtypeStruct((1,), q.dtype)
    both = lambda e, x: (law.velocity(e, x), law.impulse(e, x))
    return {
        "force": (problem.force, everything),
        "mass": (problem.mass, (q, args)),
        "energy": (problem.energy, everything),
        "joints": (problem.joints, (t, q, args)),
        "switches": (problem.switches, everything),
        "reset": (None if problem.reset is None else problem.states_behind, everything),
        "slip": (problem.sampled("slip"), everything),
        "noise": (problem.noise, everything),
        "impact_law": (None if is_left_out("impact_law", law) else both, (of_contacts, of_contacts)),
        **{
            name: (of := getattr(problem, name), (*speeds_of(problem, of, t, q, args), args))
            for name in (*OF_FRICTION, "restitution")
        },
    }


def speeds_of(problem: Problem, of: Callable, t: ArrayLike, q: Array, args: object) -> tuple:
    """Returns the shape and dtype (m,) of the speeds on which ``of``, a restitution or a coefficient of friction,
    depends, in a tuple; an empty tuple if it depends on none.

    They are the speeds of all contacts, or of one if near pairs of bodies are listed.
    """
    if of is not problem.restitution and not isinstance(of, OfSpeed):
        return ()
    m = 1 if problem.listed or not callable(of) else problem.count(t, q, args)
    return (jax.ShapeDtypeStruct((m,), q.dtype),)


def _surface(system: StudySystem) -> Callable | None:
    """The user's function whose change of sign ends motions.

    None if there is none, or if motions end at a gap or a velocity, which need no hash.
    """
    function = None if system.until is None else system.until.function
    return None if dataclasses.is_dataclass(function) else function


def hash_of(function: Callable, operands: tuple) -> str:
    """Hash of the jaxpr of one function on abstract operands.

    If the function has custom derivatives, the hash includes its derivatives by all operands except the last one,
    the parameters.
    """
    program = _Program()
    try:
        # a new function each time: otherwise jax returns an earlier trace
        program.trace(lambda *xs: function(*xs), operands)
        all_derivatives: Callable = function
        for _ in range(ORDERS):
            if not program.own_rules:
                break
            program.own_rules, all_derivatives = False, _derivative(all_derivatives)
            program.trace(all_derivatives, operands)
    except Exception as error:
        text = ADDRESS.sub("", str(error).partition("\n")[0])
        return f"fails with {type(error).__name__}: {text}"
    return program.hash.hexdigest()[:16]


def _derivative(function: Callable) -> Callable:
    """Function that returns all first derivatives by all operands but the last: in forward mode, or in reverse mode
    where forward mode has no rule."""

    def all_derivatives(*operands: object) -> object:
        inner, args = operands[:-1], operands[-1]
        found = lambda *xs: function(*xs, args)
        places = tuple(range(len(inner)))
        try:
            return jax.jacfwd(found, argnums=places)(*inner)
        except TypeError:
            return jax.jacrev(found, argnums=places)(*inner)

    return all_derivatives


class _Program:
    """Hashes jaxprs, one after the other, into one hash.

    ``own_rules``: whether a jaxpr calls a function with custom derivatives; its derivative rules are not in the jaxpr.
    """

    def __init__(self) -> None:
        self.hash, self.own_rules = hashlib.sha256(), False

    def trace(self, function: Callable, operands: tuple) -> None:
        self.value(jax.make_jaxpr(function)(*operands))

    def add_words(self, *words: object) -> None:
        # every word with its length: no two lists of words make one text
        for word in map(str, words):
            self.hash.update(f"{len(word)}:{word}".encode())

    @singledispatchmethod
    def value(self, x: Any) -> None:
        """Hashes a parameter of an operation, or a constant."""
        if callable(getattr(x, "callback_func", None)):
            self.add_words("callback", *_callback_source(x.callback_func))
        elif dataclasses.is_dataclass(x):
            self.add_words(type(x).__qualname__)
            for field in dataclasses.fields(x):
                self.add_words(field.name)
                self.value(getattr(x, field.name))
        elif callable(x):
            self.own_rules = True
        else:
            self.add_words(type(x).__qualname__, _scrub(x))

    @value.register
    def _(self, x: np.ndarray | np.generic | jax.Array) -> None:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            self.add_words("key", x.dtype)
            return self.value(jax.random.key_data(jnp.asarray(x)))
        array = np.ascontiguousarray(x)
        self.add_words("array", array.dtype, np.shape(x), hashlib.sha256(array.tobytes()).hexdigest())

    @value.register
    def _(self, x: bool | int | float | complex | str | bytes | np.dtype | Enum | None) -> None:
        self.add_words(type(x).__name__, repr(x))

    @value.register
    def _(self, x: Mapping) -> None:
        self.add_words("mapping", len(x))
        for key in sorted(x, key=str):
            self.add_words(key)
            self.value(x[key])

    @value.register
    def _(self, x: tuple | list) -> None:
        self.add_words(type(x).__name__, len(x))
        for part in x:
            self.value(part)

    @value.register
    def _(self, x: set | frozenset) -> None:
        self.add_words("set", *sorted(map(_scrub, x)))

    @value.register
    def _(self, x: WrappedFun) -> None:
        self.own_rules = True

    @value.register
    def _(self, x: type) -> None:
        self.add_words("type", x.__qualname__)

    @value.register
    def jaxpr(self, jaxpr: Jaxpr) -> None:
        number: dict[Any, int] = {}

        def atoms(xs: Iterable[Any]) -> None:
            for x in xs:
                if is_literal(x):
                    self.value(x.val)
                else:
                    self.add_words("v", number.setdefault(x, len(number)))
                self.add_words(x.aval)

        self.add_words("jaxpr")
        atoms((*jaxpr.constvars, *jaxpr.invars))
        for equation in jaxpr.eqns:
            self.add_words(equation.primitive.name)
            self.value({key: x for key, x in equation.params.items() if key not in NAMES})
            atoms((*equation.invars, *equation.outvars))
        self.add_words("returns")
        atoms(jaxpr.outvars)

    # after that of open ones: in newer versions of jax they are of one kind, with constants
    @value.register
    def _(self, x: ClosedJaxpr) -> None:
        self.value(list(x.consts))
        self.jaxpr(x.jaxpr)


def _callback_source(function: Any) -> list[str]:
    """Source of a callback, found inside the wrappers that jax puts around it."""
    if not (getattr(function, "__module__", None) or "").startswith("jax."):
        return texts_of(function, set())
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    return [text for cell in cells if callable(cell) for text in _callback_source(cell)]


def _scrub(x: object) -> str:
    return ADDRESS.sub("", repr(x))


# source, for studies and versions whose jaxprs cannot be compared


def sources(problem: Problem) -> Arguments:
    """Source-based fingerprint of a problem: a hash of the source of each of its functions, and its numbers."""
    found: Arguments = {}
    for name in problem.__slots__:
        if name == "naming":  # names and units compute nothing
            continue
        value = getattr(problem, name)
        if is_left_out(name, value):
            continue
        if name == "impact_law":
            texts = [repr(value), *texts_of(type(value).velocity, set()), *texts_of(type(value).impulse, set())]
            found[name] = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
        elif callable(value):
            found[name] = hashlib.sha256("\n".join(texts_of(value, set())).encode()).hexdigest()[:16]
        else:
            found[name] = encode(value, f"problem.{name}")
    return found


def texts_of(function: Any, seen: set[int]) -> list[str]:
    """Source of a function, and of the functions and numbers of its own package that it uses or closes over.

    ``seen``: ids of the functions that have been visited, which are left out; the call adds to it.
    """
    if id(function) in seen:
        return []
    seen.add(id(function))
    if dataclasses.is_dataclass(function) and not isinstance(function, type):
        # constraints between bodies, a function made of functions and numbers
        parts = [(field.name, getattr(function, field.name)) for field in dataclasses.fields(function)]
        return [type(function).__qualname__] + [
            text for name, x in parts for text in (name, *(texts_of(x, seen) if callable(x) else [repr(x)]))
        ]
    package = (getattr(function, "__module__", None) or "").partition(".")[0]
    if package == LIBRARY and ".catalogue" not in function.__module__:
        texts = [function.__qualname__]  # its versions are recorded
    else:
        try:
            texts = [inspect.getsource(function)]
        except (OSError, TypeError):
            texts = [repr(getattr(getattr(function, "__code__", None), "co_code", type(function).__name__))]
    used = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    if isinstance(function, FunctionType) and package != LIBRARY:
        names = sorted(_names(function.__code__) & set(function.__globals__))
        used += [function.__globals__[name] for name in names]
    for value in used:
        if isinstance(value, int | float | np.ndarray | jax.Array):
            texts.append(repr(np.asarray(value).tolist()))
        elif isinstance(value, FunctionType) and package in (LIBRARY, value.__module__.partition(".")[0]):
            texts += texts_of(value, seen)
    return texts


def _names(code: CodeType) -> set[str]:
    """Global names used in a code object and in those nested in it."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)
