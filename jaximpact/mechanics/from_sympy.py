"""Problems from SymPy's mechanics: equations of Kane's and Lagrange's methods, with gaps as expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from ..jaxtools.argument_checks import check_kind
from .problem import Problem


def from_sympy(
    method: Any,
    constraints: Sequence[Any] | Mapping[str, Any] = (),
    *,
    restitution: Any = 0.0,
    energy: Any = None,
    coordinates: Sequence[str] | None = None,
    contacts: Sequence[str] | None = None,
    units: str | Mapping[str, str] | None = None,
    joints: Sequence[Any] = (),
) -> Problem:
    """`Problem` from equations of motion derived by SymPy; needs sympy, extra ``jaximpact[sympy]``.

    M(q) and g(t, q, v) are SymPy's mass matrix and forcing. Generalised speeds u that are not the derivatives of the coordinates,
    u = Y(q) (dq/dt - w(t, q)), are replaced by them: M becomes Y' M Y (Kane and Levinson, Dynamics (1985), section 2.12).

    Args:
        method: `KanesMethod`, after ``kanes_equations``, or `LagrangesMethod`, of independent coordinates without constraints
            of its own.
        constraints: gaps, expressions in the coordinates, the time ``dynamicsymbols._t`` and parameters, admissible where
            >= 0; or a dict from names of contacts to them. ``x >= 0`` may be written for ``x``.
        restitution: as in `Problem`.
        energy: an expression; by default that of the Lagrangian, v . dL/dv - L, and none for Kane's method.
        coordinates, contacts, units: as in `Problem`; by default coordinates are called as their symbols are.
        joints: expressions in the coordinates, the time and parameters that are zero at all times.

    Returns:
        A `Problem` whose ``args`` is a dict from the names of all other symbols (``m``, ``g``) to numbers.

    Raises:
        TypeError, ValueError: constraints of the method (joints, rolling), velocities in a gap, functions of time that are no
            coordinates, a mass matrix that depends on the time; the message names the expression.

    Example:
        >>> x = dynamicsymbols("x"); m, g = symbols("m g")
        >>> method = LagrangesMethod(m * x.diff()**2 / 2 - m * g * x, [x])
        >>> ball = jaximpact.from_sympy(method, {"floor": x}, restitution=0.8)
        >>> motion = jaximpact.solve(ball, [1.0], [0.0], t1=1.0, h=1e-3, args={"m": 1.0, "g": 9.81})
    """
    try:
        import sympy
        from sympy.physics import mechanics
    except ImportError as error:
        raise ImportError("from_sympy needs sympy: pip install 'jaximpact[sympy]'") from error

    t = mechanics.dynamicsymbols._t
    q, mass, force, energy = _method_parts(sympy, mechanics, method, energy)
    if isinstance(constraints, Mapping):
        if contacts is not None:
            raise ValueError("contacts: the names are given twice, as keys of constraints too")
        contacts, constraints = tuple(constraints), tuple(constraints.values())
    if isinstance(constraints, str | sympy.Basic):
        raise TypeError(
            "constraints must be a sequence of expressions, or a dict from names to them: for one gap write [gap]"
        )
    if isinstance(joints, str | sympy.Basic):
        raise TypeError("joints must be a sequence of expressions: for one joint write [expression]")
    gaps = [_gap(sympy, x) for x in constraints]
    parts = {
        "the mass matrix": list(mass),
        "the forcing": list(force),
        **{f"constraint {a}": [x] for a, x in enumerate(gaps)},
        **{f"joint {a}": [_gap(sympy, x, "joints")] for a, x in enumerate(joints)},
        "the energy": [] if energy is None else [sympy.sympify(energy)],
    }
    replaced, order, names = _in_plain_symbols(sympy, t, q, parts)

    def function(what: list[str]) -> Callable[..., Array]:
        compiled = sympy.lambdify(order, [x for name in what for x in replaced[name]], modules="jax", cse=True)

        def call(t: Any, q: Array, v: Array, args: Any) -> Array:
            time = jnp.asarray(t, q.dtype)
            found = compiled(time, *q, *v, *_values(names, args, q.dtype))
            return jnp.stack([jnp.asarray(x, q.dtype) for x in found])

        return call

    d = len(q)
    entries, forces = function(["the mass matrix"]), function(["the forcing"])
    walls = function([f"constraint {a}" for a in range(len(gaps))]) if gaps else None
    held = function([f"joint {a}" for a in range(len(joints))]) if joints else None
    energies = None if energy is None else function(["the energy"])

    def mass_of(q: Array, args: Any) -> Array:
        return entries(0.0, q, jnp.zeros_like(q), args).reshape(d, d)

    mass_of.__name__, forces.__name__ = "mass", "force"
    return Problem(
        forces,
        None if walls is None else lambda t, q, args: walls(t, q, jnp.zeros_like(q), args),
        mass_of,
        restitution,
        None if energies is None else lambda t, q, v, args: energies(t, q, v, args)[0],
        coordinates=[x.func.__name__ for x in q] if coordinates is None else coordinates,
        contacts=contacts,
        units=units,
        joints=None if held is None else lambda t, q, args: held(t, q, jnp.zeros_like(q), args),
    )


def _method_parts(sympy: Any, mechanics: Any, method: Any, energy: Any) -> tuple[list, Any, Any, Any]:
    """Coordinates, mass matrix, forcing and energy of a SymPy method."""
    t = mechanics.dynamicsymbols._t
    if isinstance(method, mechanics.KanesMethod):
        _refuse_kane(method)
        q, mass, force = _kane(sympy, method, t)
    elif isinstance(method, mechanics.LagrangesMethod):
        if len(method.coneqs):
            raise ValueError(
                f"method: it has constraints of its own, {_short_list(method.coneqs)}, holonomic or not: choose independent coordinates"
            )
        method.form_lagranges_equations()
        q, mass, force = list(method.q), method.mass_matrix, method.forcing
        if energy is None:
            (lagrangian,) = sympy.Matrix([method._L])  # kept as a matrix, or not
            energy = sum(v * lagrangian.diff(v) for v in (x.diff(t) for x in q)) - lagrangian
    else:
        raise TypeError(
            f"method must be a KanesMethod or a LagrangesMethod of sympy.physics.mechanics, got {type(method).__name__}"
        )
    return q, mass, force, energy


def _in_plain_symbols(sympy: Any, t: Any, q: list, parts: dict[str, list]) -> tuple[dict[str, list], list, list[str]]:
    """Replaces functions of time by plain symbols: the expressions, their order, t, q, v, and the parameters with their names.

    Raises:
        ValueError: an expression depends on what it must not depend on.
    """
    v = [x.diff(t) for x in q]
    plain = {x: sympy.Dummy(f"q{i}") for i, x in enumerate(q)} | {x: sympy.Dummy(f"v{i}") for i, x in enumerate(v)}
    symbols: set[Any] = set()
    replaced = {}
    for what, expressions in parts.items():
        replaced[what] = [sympy.sympify(x).xreplace(plain) for x in expressions]
        for expression in replaced[what]:
            odd = expression.atoms(sympy.Derivative, sympy.core.function.AppliedUndef)
            if odd:
                raise ValueError(
                    f"{what} holds {_short_list(odd)}, which is no coordinate of the method nor the first derivative of one: substitute an "
                    "expression in t and symbols for it"
                )
            symbols |= expression.free_symbols
    velocities = {plain[x] for x in v}
    for what, banned, cause in (
        ("the mass matrix", velocities | {t}, "the time or a velocity: only M(q) is taken"),
        *((x, velocities, "a velocity: gaps are functions of t and q") for x in parts if x.startswith("constraint")),
        *((x, velocities, "a velocity: joints are functions of t and q") for x in parts if x.startswith("joint")),
    ):
        if any(x.free_symbols & banned for x in replaced[what]):
            raise ValueError(f"{what} depends on {cause}; it is {_short_list(parts[what])}")
    parameters = sorted(symbols - set(plain.values()) - {t}, key=str)
    names = [str(x) for x in parameters]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"two different symbols are called {twice[0]!r}: parameters are handed over by name in args")
    return replaced, [t, *plain.values(), *parameters], names


def _kane(sympy: Any, method: Any, t: Any) -> tuple[list, Any, Any]:
    """Coordinates, mass matrix and forcing of Kane's equations, in the derivatives of the coordinates."""
    q, u = list(method.q), list(method.u)
    v = sympy.Matrix([x.diff(t) for x in q])
    kinematics = method.kindiffdict()
    speeds = sympy.Matrix(u)
    if [kinematics.get(x) for x in v] == u:
        back = dict(zip(u, v, strict=True))
        return q, method.mass_matrix.xreplace(back), method.forcing.xreplace(back)
    # dq/dt = W u + w
    rates = sympy.Matrix([kinematics[x] for x in v])
    matrix = rates.jacobian(speeds)
    inverse = matrix.inv()
    rest = (rates - matrix * speeds).applyfunc(sympy.expand)
    of_v = inverse * (v - rest)
    # du/dt without the accelerations, which inverse carries
    drift = of_v.jacobian(sympy.Matrix(q)) * v
    drift += _partial(sympy, of_v, [*q, *v], t)
    back = dict(zip(u, of_v, strict=True))
    mass, forcing = method.mass_matrix.subs(back), method.forcing.subs(back)
    return q, inverse.T * mass * inverse, inverse.T * (forcing - mass * drift)


def _partial(sympy: Any, matrix: Any, functions: list, t: Any) -> Any:
    """Partial derivative by the time, with functions of the time held fixed."""
    hold = {x: sympy.Dummy() for x in functions}
    back = {dummy: x for x, dummy in hold.items()}
    return matrix.xreplace(hold).diff(t).xreplace(back)


def _refuse_kane(method: Any) -> None:
    """Raises for features of Kane's method that a `Problem` cannot express."""
    for found, what in (
        (method._f_h, "configuration constraints (dependent coordinates)"),
        (method._uaux, "auxiliary speeds"),
        (method._f_nh, "velocity constraints (nonholonomic, such as rolling)"),
    ):
        if len(found):
            if found is method._f_nh:
                found = method._k_nh * method.u + found
            raise ValueError(f"method: it has {what}, {_short_list(found)}: choose independent coordinates and speeds")
    if len(method.q) != len(method.u):
        raise ValueError(
            f"method: it has {len(method.q)} coordinates and {len(method.u)} speeds; as many of both are taken"
        )
    try:
        method.mass_matrix  # noqa: B018
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(
            "method: its equations are not formed yet: call method.kanes_equations(bodies, loads) first"
        ) from error


def _gap(sympy: Any, expression: Any, what: str = "constraints") -> Any:
    """Gap expression, >= 0; for an inequality, the greater side minus the smaller one."""
    if isinstance(expression, str):
        raise TypeError(f"{what} must be expressions, got the text {expression!r}, whose names would all be parameters")
    expression = sympy.sympify(expression)
    if isinstance(expression, sympy.core.relational._Greater | sympy.core.relational._Less):
        return expression.gts - expression.lts
    check_kind(what, expression, sympy.Expr, "expressions, or x >= y" if what == "constraints" else "expressions")
    return expression


def _short_list(expressions: Any) -> str:
    """Expressions in one line, shortened."""
    text = ", ".join(sorted(map(str, expressions)))
    return text if len(text) <= 200 else text[:197] + "..."


def _values(names: list[str], args: Any, dtype: Any) -> list[Array]:
    """Values of the parameters, by name, from args."""
    if not names:
        return []
    check_kind("args", args, Mapping, f"a dict with {', '.join(names)}")
    missing = [name for name in names if name not in args]
    if missing:
        raise ValueError(f"args has no {', '.join(map(repr, missing))}: the parameters are {', '.join(names)}")
    return [jnp.asarray(args[name], dtype) for name in names]
