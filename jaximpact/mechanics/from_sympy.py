"""Problems from SymPy's mechanics: equations of Kane's and Lagrange's methods, with gaps as expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from ..jaxtools.argument_checks import check_kind
from ..jaxtools.optional_packages import import_optional
from .problem import Problem
from .problem_parts import FrictionLike, RestitutionLike

if TYPE_CHECKING:
    from sympy import Expr, Matrix, Symbol
    from sympy.physics.mechanics import KanesMethod, LagrangesMethod

    Coefficients: TypeAlias = Expr | FrictionLike | Sequence[Expr | float]  # one for all contacts, or one for each


def from_sympy(
    method: KanesMethod | LagrangesMethod,
    constraints: Sequence[Expr] | Mapping[str, Expr] = (),
    *,
    restitution: RestitutionLike = 0.0,
    energy: Expr | None = None,
    coordinates: Sequence[str] | None = None,
    contacts: Sequence[str] | None = None,
    units: str | Mapping[str, str] | None = None,
    joints: Sequence[Expr] = (),
    switches: Sequence[Expr] = (),
    slip: Sequence[Expr] = (),
    friction: Coefficients = None,
    static_friction: Coefficients = None,
) -> Problem:
    """`Problem` from equations of motion derived by SymPy; needs sympy.

    M(q) and g(t, q, v) are SymPy's mass matrix and forcing. Generalised speeds u that are not the derivatives of the
    coordinates, u = Y(q) (dq/dt - w(t, q)), are replaced by them: M becomes Y' M Y (Kane and Levinson,
    Dynamics (1985), section 2.12).

    Args:
        method: `KanesMethod`, after ``kanes_equations``, or `LagrangesMethod`. Its holonomic constraints become joints,
            and dependent coordinates and speeds are treated like the others.
        constraints: gaps, expressions in the coordinates, the time ``dynamicsymbols._t`` and parameters, admissible
            where >= 0; or a dict from names of contacts to them. ``x >= 0`` may be written for ``x``.
        restitution: as in `Problem`.
        energy: an expression; by default that of the Lagrangian, v . dL/dv - L, and none for Kane's method.
        coordinates, contacts, units: as in `Problem`; by default coordinates have the names of their symbols.
        joints: expressions in the coordinates, the time and parameters that are zero at all times,
            besides those of the method.
        switches: expressions in the time, coordinates, velocities and parameters, zero where the force jumps:
            as in `Problem`.
        slip: the velocity along each contact, or a pair of them in space: expressions in the same quantities,
            affine in the velocities.
        friction, static_friction: as in `Problem`; or an expression in the parameters, or one for each contact.

    Returns:
        A `Problem` whose ``args`` is a dict from the names of all other symbols (``m``, ``g``) to numbers.

    Raises:
        TypeError, ValueError: nonholonomic constraints of the method (rolling), velocities in a gap, functions of time
            that are no coordinates, a mass matrix that depends on the time; the message names the expression.

    Example:
        >>> x = dynamicsymbols("x"); m, g = symbols("m g")
        >>> method = LagrangesMethod(m * x.diff()**2 / 2 - m * g * x, [x])
        >>> ball = jaximpact.from_sympy(method, {"floor": x}, restitution=0.8)
        >>> motion = jaximpact.solve(ball, [1.0], [0.0], t1=1.0, h=1e-3, args={"m": 1.0, "g": 9.81})
    """
    sympy, mechanics = (import_optional(x, "from_sympy") for x in ("sympy", "sympy.physics.mechanics"))
    t = mechanics.dynamicsymbols._t
    q, mass, force, energy, own = _method_parts(sympy, mechanics, method, energy)
    if isinstance(constraints, Mapping):
        if contacts is not None:
            raise ValueError("contacts: the names are given twice, as keys of constraints too")
        contacts, constraints = tuple(constraints), tuple(constraints.values())
    groups = _groups(sympy, constraints, joints, switches, slip, friction, static_friction)
    groups["joint"] = [*([_gap(sympy, x, "joints")] for x in own), *groups["joint"]]
    parts = {
        "the mass matrix": list(mass),
        "the forcing": list(force),
        **{f"{kind} {a}": x for kind, group in groups.items() for a, x in enumerate(group)},
        "the energy": [] if energy is None else [sympy.sympify(energy)],
    }
    replaced, order, names = _in_plain_symbols(sympy, t, q, parts)

    def function(what: list[str]) -> Callable[..., Array]:
        compiled = sympy.lambdify(order, [x for name in what for x in replaced[name]], modules="jax", cse=True)

        def call(t: ArrayLike, q: Array, v: Array, args: object) -> Array:
            time = jnp.asarray(t, q.dtype)
            found = compiled(time, *q, *v, *_values(names, args, q.dtype))
            return jnp.stack([jnp.asarray(x, q.dtype) for x in found])

        return call

    def of_group(kind: str, made: Callable = lambda found: found) -> Any:
        """Makes a function of the problem out of that, (t, q, v, args) -> (n,), of the n components of a kind of
        expressions; None without any."""
        return made(function([f"{kind} {a}" for a in range(len(groups[kind]))])) if groups[kind] else None

    d = len(q)
    entries, forces = function(["the mass matrix"]), function(["the forcing"])
    of_place = lambda found: lambda t, q, args: found(t, q, jnp.zeros_like(q), args)
    of_numbers = lambda found: lambda args: found(0.0, np.zeros(d), np.zeros(d), args)
    of_energy = lambda found: lambda t, q, v, args: found(t, q, v, args)[0]

    def mass_of(q: Array, args: object) -> Array:
        return entries(0.0, q, jnp.zeros_like(q), args).reshape(d, d)

    def rates(along: Callable) -> Callable:
        def slips(t: ArrayLike, q: Array, v: Array, args: object) -> Array:
            found = along(t, q, v, args)
            return found if len(found) == len(slip) else found.reshape(len(slip), -1)

        return slips

    mass_of.__name__, forces.__name__ = "mass", "force"
    return Problem(
        forces,
        of_group("constraint", of_place),
        mass_of,
        restitution,
        None if energy is None else of_energy(function(["the energy"])),
        coordinates=[x.func.__name__ for x in q] if coordinates is None else coordinates,
        contacts=contacts,
        units=units,
        joints=of_group("joint", of_place),
        switches=of_group("switch"),
        slip=of_group("slip", rates),
        friction=of_group("friction", of_numbers) or friction,
        static_friction=of_group("static_friction", of_numbers) or static_friction,
    )


def _groups(
    sympy: ModuleType,
    constraints: Sequence[Expr] | Mapping[str, Expr],
    joints: Sequence[Expr],
    switches: Sequence[Expr],
    slip: Sequence[Expr],
    friction: Coefficients,
    static_friction: Coefficients,
) -> dict[str, list[list]]:
    """Collects the expressions by kind, a list of components for each;
    TypeError for anything that is no sequence of expressions."""
    for what, found, one in (
        ("constraints", constraints, "gap"),
        ("joints", joints, "joint"),
        ("switches", switches, "surface"),
        ("slip", slip, "contact"),
    ):
        if isinstance(found, str | sympy.Basic):
            also = ", or a dict from names to them" if one == "gap" else ""
            word = "gap" if one == "gap" else "expression"
            raise TypeError(f"{what} must be a sequence of expressions{also}: for one {one} write [{word}]")
    pairs = [x if isinstance(x, list | tuple) else [x] for x in slip]
    return {
        "constraint": [[_gap(sympy, x)] for x in constraints],
        "joint": [[_gap(sympy, x, "joints")] for x in joints],
        "switch": [[_gap(sympy, x, "switches")] for x in switches],
        "slip": [[_gap(sympy, x, "slip") for x in pair] for pair in pairs],
        "friction": _coefficients(sympy, friction),
        "static_friction": _coefficients(sympy, static_friction),
    }


def _coefficients(sympy: ModuleType, given: Coefficients) -> list[list]:
    """Returns the coefficients of friction as expressions; an empty list if all of them are numbers or functions."""
    every: list = list(given) if isinstance(given, list | tuple) else [given]
    return [[x] for x in every] if any(isinstance(x, sympy.Basic) for x in every) else []


def _method_parts(
    sympy: ModuleType, mechanics: ModuleType, method: KanesMethod | LagrangesMethod, energy: Expr | None
) -> tuple[list, Matrix, Matrix, Expr, list]:
    """Returns coordinates, mass matrix, forcing and energy of a SymPy method without its constraints,
    and its holonomic constraints."""
    t = mechanics.dynamicsymbols._t
    if isinstance(method, mechanics.KanesMethod):
        _refuse_kane(method)
        joints = list(method._f_h)
        q, mass, force = _kane(sympy, _without_constraints(sympy, mechanics, method, t) if joints else method, t)
    elif isinstance(method, mechanics.LagrangesMethod):
        joints = list(method._hol_coneqs)
        if len(method.coneqs) > len(joints):
            raise ValueError(
                f"method: it has nonholonomic constraints, {_short_list(method.coneqs[len(joints) :])}: choose "
                "independent velocities"
            )
        method.form_lagranges_equations()
        q, d = list(method.q), len(method.q)
        mass, force = method.mass_matrix[:, :d], method.forcing  # the other columns are those of multipliers
        if energy is None:
            (lagrangian,) = sympy.Matrix([method._L])  # kept as a matrix, or not
            energy = sum(v * lagrangian.diff(v) for v in (x.diff(t) for x in q)) - lagrangian
    else:
        raise TypeError(
            f"method must be a KanesMethod or a LagrangesMethod of sympy.physics.mechanics, got {type(method).__name__}"
        )
    return q, mass, force, energy, joints


def _without_constraints(
    sympy: ModuleType, mechanics: ModuleType, method: KanesMethod | LagrangesMethod, t: Symbol
) -> LagrangesMethod:
    """Makes Kane's method for the same bodies and loads, with all speeds independent.

    Raises:
        ValueError: its velocity constraints are not the derivatives of its configuration constraints.
    """
    kinematics = method.kindiffdict()
    speeds = sympy.Matrix(method.u)
    rate = sympy.Matrix(method._f_h).diff(t).xreplace(kinematics)
    both = rate.col_join(method._k_nh * speeds + method._f_nh)
    rows = both.jacobian(speeds).row_join(both.xreplace(dict.fromkeys(speeds, 0)))
    # the rows of both must span the same space, tested at a generic point
    unknown = sorted(rows.atoms(sympy.core.function.AppliedUndef, sympy.Symbol), key=str)
    point = {x: sympy.Rational(7 * i + 3, 5 * i + 11) for i, x in enumerate(unknown)}
    count = len(method._f_h)
    rank = np.linalg.matrix_rank(np.array(rows.xreplace(point).evalf(), float), tol=1e-9)
    if len(method._f_nh) != count or rank != count:
        raise ValueError(
            f"method: its velocity constraints, {_short_list(both[count:, :])}, are not the derivatives of its "
            "configuration constraints, as nonholonomic ones "
            "(such as rolling) are not: choose independent speeds"
        )
    free = mechanics.KanesMethod(
        method._inertial, list(method.q), list(method.u), kd_eqs=[x - y for x, y in kinematics.items()]
    )
    free.kanes_equations(method.bodies, method.forcelist)
    return free


def _in_plain_symbols(
    sympy: ModuleType, t: Symbol, q: list, parts: dict[str, list]
) -> tuple[dict[str, list], list, list[str]]:
    """Replaces functions of time in the expressions of ``parts`` by plain symbols.

    Returns the new expressions, the list of symbols in the order t, q, v, parameters, and the names of the parameters.

    Raises:
        ValueError: the mass matrix depends on time or velocities, a gap or a joint on velocities, a coefficient of
            friction on time or the motion; or an expression holds an unknown function of time.
    """
    v = [x.diff(t) for x in q]
    plain = {x: sympy.Dummy(f"q{i}") for i, x in enumerate(q)} | {x: sympy.Dummy(f"v{i}") for i, x in enumerate(v)}
    symbols: set[Symbol] = set()
    replaced = {}
    for what, expressions in parts.items():
        replaced[what] = [sympy.sympify(x).xreplace(plain) for x in expressions]
        for expression in replaced[what]:
            odd = expression.atoms(sympy.Derivative, sympy.core.function.AppliedUndef)
            if odd:
                raise ValueError(
                    f"{what} holds {_short_list(odd)}, which is no coordinate of the method nor the first derivative "
                    "of one: substitute an "
                    "expression in t and symbols for it"
                )
            symbols |= expression.free_symbols
    velocities, moving = {plain[x] for x in v}, {t, *plain.values()}
    for what, banned, cause in (
        ("the mass matrix", velocities | {t}, "the time or a velocity: only M(q) is taken"),
        *((x, velocities, "a velocity: gaps are functions of t and q") for x in parts if x.startswith("constraint")),
        *((x, velocities, "a velocity: joints are functions of t and q") for x in parts if x.startswith("joint")),
        *((x, moving, "the time or the motion: it is a function of parameters") for x in parts if "friction" in x),
    ):
        if any(x.free_symbols & banned for x in replaced[what]):
            raise ValueError(f"{what} depends on {cause}; it is {_short_list(parts[what])}")
    parameters = sorted(symbols - set(plain.values()) - {t}, key=str)
    names = [str(x) for x in parameters]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"two different symbols are called {twice[0]!r}: parameters are handed over by name in args")
    return replaced, [t, *plain.values(), *parameters], names


def _kane(sympy: ModuleType, method: KanesMethod, t: Symbol) -> tuple[list, Matrix, Matrix]:
    """Returns coordinates, mass matrix and forcing of Kane's equations,
    written in the derivatives of the coordinates."""
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
    # du/dt without the terms of accelerations, whose matrix is the inverse
    drift = of_v.jacobian(sympy.Matrix(q)) * v
    drift += _partial(sympy, of_v, [*q, *v], t)
    back = dict(zip(u, of_v, strict=True))
    mass, forcing = method.mass_matrix.subs(back), method.forcing.subs(back)
    return q, inverse.T * mass * inverse, inverse.T * (forcing - mass * drift)


def _partial(sympy: ModuleType, matrix: Matrix, functions: list, t: Symbol) -> Matrix:
    """Returns the partial derivative of a matrix by the time t, with the given functions of time held fixed."""
    hold = {x: sympy.Dummy() for x in functions}
    back = {dummy: x for x, dummy in hold.items()}
    return matrix.xreplace(hold).diff(t).xreplace(back)


def _refuse_kane(method: KanesMethod) -> None:
    """Raises for features of Kane's method that a `Problem` cannot express."""
    for found, what in (
        (method._uaux, "auxiliary speeds"),
        (method._f_nh, "velocity constraints (nonholonomic, such as rolling)"),
    ):
        if len(found) and not (found is method._f_nh and len(method._f_h)):
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


def _gap(sympy: ModuleType, expression: Expr | str, what: str = "constraints") -> Expr:
    """Returns an expression of the argument ``what`` unchanged, or for an inequality x >= y the difference x - y.

    Raises:
        TypeError: neither an expression nor an inequality is given.
    """
    if isinstance(expression, str):
        raise TypeError(f"{what} must be expressions, got the text {expression!r}, whose names would all be parameters")
    expression = sympy.sympify(expression)
    if isinstance(expression, sympy.core.relational._Greater | sympy.core.relational._Less):
        return expression.gts - expression.lts
    check_kind(what, expression, sympy.Expr, "expressions, or x >= y" if what == "constraints" else "expressions")
    return expression


def _short_list(expressions: Any) -> str:
    """Returns the expressions as one line of text, shortened."""
    text = ", ".join(sorted(map(str, expressions)))
    return text if len(text) <= 200 else text[:197] + "..."


def _values(names: list[str], args: Any, dtype: DTypeLike) -> list[Array]:
    """Returns the values of the parameters, by name, from args; TypeError or ValueError if one is missing."""
    if not names:
        return []
    check_kind("args", args, Mapping, f"a dict with {', '.join(names)}")
    missing = [name for name in names if name not in args]
    if missing:
        raise ValueError(f"args has no {', '.join(map(repr, missing))}: the parameters are {', '.join(names)}")
    return [jnp.asarray(args[name], dtype) for name in names]
