"""The mechanical problem a user states: force, constraints, mass, restitution.

    M(q) dv = g(t, q, v) dt + sum_a grad f_a(t, q) dLambda_a,     f_a(t, q) >= 0,

with Newton's impact law in the kinetic metric (Paoli, ARMA 198 (2010), problem (P)).
Gradients and Jacobians are derived by automatic differentiation; Coriolis and centrifugal terms only by the
constructors from energies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from ..jaxtools.empty import nothing
from ..jaxtools.jaxpr_tools import replay_jaxpr
from ..jaxtools.outlined import call_outlined
from ..jaxtools.shapes import PyTree, as_array, shape_of_result
from .coefficients import OfSpeed, coefficients
from .gaps import Gaps, OfBodies, gaps_of
from .impact_law import NEWTON, ImpactLaw, impact_law_of
from .labels import Labels
from .mass import mass_of
from .problem_parts import (
    Args,
    Constraints,
    Energy,
    Equations,
    Force,
    FrictionLike,
    MassLike,
    Named,
    Noise,
    Reset,
    RestitutionLike,
    Slips,
    Surfaces,
    annotate,
    check_friction,
    check_function,
    check_switches,
    slip_of_bodies,
)
from .some_contacts import SomeSlips

if TYPE_CHECKING:
    from ..bodies import Bodies
    from ..bodies.neighbours import Neighbours

NAMING = ("coordinates", "contacts", "units", "joint_names", "quaternions")
OTHERS = ("joints", "switches", "reset", "slip", "friction", "static_friction", "noise")
FIELDS = ("force", "constraints", "mass", "restitution", "energy", *NAMING, *OTHERS, "impact_law")
NUMERIC = ("restitution", "mass", "friction", "static_friction")  # leaves, unless they are functions
OPTIONAL = (*NAMING, *OTHERS)  # omitted where they are None


def is_left_out(name: str, value: object) -> bool:
    """Whether a field of a problem has a value that changes nothing. It is then left out of texts and of records, so
    that these equal the ones of versions that do not have the field."""
    says_nothing = value is None or (name == "quaternions" and not value)
    return (name in OPTIONAL and says_nothing) or (name == "impact_law" and value == NEWTON)


@jax.tree_util.register_pytree_with_keys_class
class Problem(metaclass=Named):
    """A mechanical system with perfect unilateral constraints and, where they are given, joints.

    Args:
        force: ``force(t, q, v, args) -> (d,)``, generalised force g [N or N m], with the Coriolis and centrifugal terms
            of a mass that depends on q: `from_potential` and `from_lagrangian` derive them. If such a mass meets a
            force without terms quadratic in v, calls issue a `JaximpactWarning`; who means this equation as it stands
            filters it: ``warnings.filterwarnings("ignore", "mass.* depends on q")``.
        constraints: ``constraints(t, q, args) -> (m,)``, gaps; admissible where every gap >= 0.
            None for a system without constraints.
        mass: ``mass(q, args) -> (d, d)`` symmetric positive definite, a ``(d, d)`` array, a ``(d,)``
            diagonal, a scalar, or None for the identity [kg or kg m^2].
        restitution: Newton's coefficient e in [0, 1], a scalar or, for `MoreauJean`, `EventCorrected` and
            `EventDriven`, one per contact ``(m,)`` or a function of the approach speeds, ``restitution(w, args) -> ()``
            or ``(m,)``, with w (m,) >= 0 the rates at which the gaps close [unit of the gaps / s]. Of contacts that do
            not approach w is a tiny positive number.
        energy: ``energy(t, q, v, args) -> ()``, reported by `solve` where it is given [J].
        coordinates, contacts: names of the coordinates (d) and of the constraints (m), ``("x", "y")``, ``("floor",)``,
            for messages, tables and pictures.
        units: of coordinates and gaps: one text for all, ``"m"``, or by name, ``{"x": "m", "angle": "rad"}``, of joints
            too, and of masses, ``{"x": "mm", "mass": "t"}``, kg by default. Times are in s.
            Nothing is converted.
        joints: ``joints(t, q, args) -> (j,)``, equations c = 0 that hold at all times: rods, pins, closed loops. A
            motion must start on them, see `assemble`. Redundant equations do no harm.
        joint_names: names of the joint equations (j).
        quaternions: numbers of the coordinates with which quaternions (w, x, y, z) begin, ``(3,)``, of which force,
            mass and the others see p/|p| only. Their lengths are left out of orbits, multipliers and exponents,
            where p and -p are one.
        switches: ``switches(t, q, v, args) -> (k,)``, surfaces s = 0 across which the force jumps or is not smooth, or
            the state is reset. `EventDriven` and `EventCorrected` locate them. Comparisons, signs and the like in
            force and mass are found automatically: state only those that cannot be found, as inside a `lax.while_loop`
            or a callback, and those beyond which the force of one side is not finite by other operations than roots,
            powers and logarithms.
        reset: ``reset(t, q, v, k, args) -> v`` or ``(q, v)``, the state after a crossing of surface k, an int,
            in either direction.
        slip: ``slip(t, q, v, args) -> (m,)`` in the plane, ``(m, 2)`` in space, and up to three more columns for
            drilling and rolling, angular velocities times a radius: the relative tangential velocity of the two bodies
            at every contact, affine in v [m/s]. By virtual power it also gives the direction of friction. The gaps must
            then be distances [m], since friction is mu times the normal force. Of gaps that are not, such as
            ``y - h(x)`` over a slope, return the whole relative velocity, a tuple ``(normal, tangential)`` with the
            velocity along the normal (m,) first: the scale of each gap follows from it.
        friction: Coulomb's coefficient mu >= 0 where ``slip`` is given: a number, one per contact ``(m,)``, or a
            function of args, or of the slip speeds s (m,) >= 0 too, ``friction(s, args)``, that returns either.
            `MoreauJean`, `EventCorrected`, `EventDriven` and, for e = 0, `Maury` take it.
        static_friction: the coefficient >= ``friction`` up to which a contact at rest sticks, by default ``friction``:
            likewise a number, one per contact, or a function of args. A contact that breaks
            away slips with ``friction``.
        noise: ``noise(t, q, v, args) -> (d, r)``, sigma of r white forces, M dv = g dt + sigma dW + impulses, in the
            sense of Ito [N s^(1/2)]. In each step h it is a constant force, with sigma at the start of the step; calls
            then need h or steps, and a ``key``.

    Numbers (restitution, a numeric mass) are pytree leaves: they may be swept and differentiated. Constructors that
    derive a force from the mass keep a numeric mass as a constant: to vary it, write it as a function of args.
    Functions, names and units are static: a problem made of the same ones does not retrace.

    Example:
        >>> ball = Problem(force=lambda t, q, v, args: jnp.array([-9.81]),
        ...                constraints=lambda t, q, args: q, restitution=0.8)
    """

    __slots__ = (
        "force",
        "constraints",
        "mass",
        "restitution",
        "energy",
        "naming",
        "joints",
        "switches",
        "reset",
        "slip",
        "friction",
        "static_friction",
        "impact_law",
        "noise",
    )
    force: Force
    constraints: Constraints | None
    mass: Any
    restitution: Any
    energy: Energy | None
    naming: Labels
    joints: Equations | None
    switches: Surfaces | None
    reset: Reset | None
    slip: Slips | None
    friction: Any
    static_friction: Any
    impact_law: ImpactLaw
    noise: Noise | None

    def __init__(
        self,
        force: Force,
        constraints: Constraints | None = None,
        mass: MassLike = None,
        restitution: RestitutionLike = 0.0,
        energy: Energy | None = None,
        *,
        coordinates: Sequence[str] | None = None,
        contacts: Sequence[str] | None = None,
        units: str | Mapping[str, str] | None = None,
        joint_names: Sequence[str] | None = None,
        quaternions: Sequence[int] = (),
        joints: Equations | None = None,
        switches: Surfaces | None = None,
        reset: Reset | None = None,
        slip: Slips | None = None,
        friction: FrictionLike = None,
        static_friction: FrictionLike = None,
        impact_law: ImpactLaw | str = NEWTON,
        noise: Noise | None = None,
    ) -> None:
        check_function(force, "force must be a function force(t, q, v, args) -> (d,)", optional=False)
        check_function(constraints, "constraints must be a function constraints(t, q, args) -> (m,) or None")
        check_function(noise, "noise must be a function noise(t, q, v, args) -> (d, r) or None")
        check_function(energy, "energy must be a function energy(t, q, v, args) -> () or None")
        if isinstance(restitution, str):
            raise TypeError(
                "restitution must be a number in [0, 1], one number per contact, or a function restitution(w, args) of "
                "the approach speeds"
            )
        check_function(joints, "joints must be a function joints(t, q, args) -> (j,) or None")
        if joints is not None and isinstance(constraints, OfBodies):
            raise ValueError(
                "joints: bodies of jaximpact.bodies take none; state the same bodies by one dense function of gaps"
            )
        check_switches(switches, reset)
        if isinstance(constraints, OfBodies):
            slip = slip_of_bodies(constraints, slip)
        check_friction(slip, friction, static_friction, constraints)
        labels = Labels.of(coordinates, contacts, units, joint_names, quaternions)
        laws = (slip, OfSpeed.or_as_given(friction), static_friction, impact_law_of(impact_law), noise)
        self._set(force, constraints, mass, restitution, energy, labels, joints, switches, reset, *laws)

    def _set(self, *values: object) -> None:
        for name, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Problem is immutable; use problem.replace({name}=...)")

    def __reduce__(self) -> tuple:
        # copies and pickles, whose functions the pickler must take: those of modules, or any by cloudpickle
        leaves, static = self.tree_flatten_with_keys()
        return type(self).tree_unflatten, (static, tuple(value for _, value in leaves))

    def __repr__(self) -> str:
        parts = []
        for name in FIELDS:
            value = getattr(self, name)
            if not is_left_out(name, value):
                parts.append(f"{name}={getattr(value, '__name__', value)!s}")
        return f"Problem({', '.join(parts)})"

    def replace(self, **changes: Any) -> Problem:
        """Returns a copy with some fields changed."""
        values = {name: getattr(self, name) for name in FIELDS}
        if self.between is not None:
            values["slip"] = None  # the bodies define it
        unknown = set(changes) - set(values)
        if unknown:
            raise TypeError(f"Problem has no field {sorted(unknown)[0]!r}; its fields are {', '.join(FIELDS)}")
        if "mass" in changes and getattr(self.force, "derived_from_mass", False):
            raise ValueError("mass: force and energy of this problem were derived from its mass; construct it again")
        return Problem(**(values | changes))

    @property
    def coordinates(self) -> tuple[str, ...] | None:
        """Names of the coordinates."""
        return self.naming.coordinates

    @property
    def contacts(self) -> tuple[str, ...] | None:
        """Names of the constraints."""
        return self.naming.contacts

    @property
    def joint_names(self) -> tuple[str, ...] | None:
        """Names of the joint equations."""
        return self.naming.joints

    @property
    def quaternions(self) -> tuple[int, ...]:
        """Numbers of the coordinates with which quaternions begin."""
        return self.naming.quaternions

    @property
    def units(self) -> str | dict[str, str] | None:
        """Units of coordinates and gaps."""
        units = dict(self.naming.units)
        return units[""] if list(units) == [""] else units or None

    @property
    def gaps(self) -> Gaps:
        """The function (t, q, args) -> (m,) of the gaps, in the dtype of q;
        its values are empty if the problem has no constraints."""
        return gaps_of(self.constraints)

    @property
    def rubs(self) -> bool:
        """Whether contacts have friction."""
        return self.slip is not None

    @property
    def jointed(self) -> bool:
        """Whether there are joints."""
        return self.joints is not None

    @property
    def between(self) -> OfBodies | None:
        """The constraints, if they are those of `jaximpact.bodies`; else None."""
        return self.constraints if isinstance(self.constraints, OfBodies) else None

    @property
    def bodies(self) -> Bodies:
        """The constraints of a problem that has bodies of `jaximpact.bodies` (`between`)."""
        bodies: Any = self.constraints
        return bodies

    @property
    def listed(self) -> bool:
        """Whether near pairs of bodies are kept in a neighbour list, see `jaximpact.bodies` ("listed bodies")."""
        return self.gaps.listed

    def sampled(self, name: str) -> Any:
        """Returns the function of that name, "constraints" or "slip"; for listed bodies that of a single pair, as all
        pairs would be too many to trace."""
        stated = getattr(self, name)
        return stated.sample if self.listed and stated is not None else stated

    def near(self, neighbours: Neighbours | None) -> Problem:
        """Returns the problem restricted to the pairs of a neighbour list; unchanged for None."""
        if neighbours is None:
            return self
        return self.replace(constraints=self.bodies.near(neighbours))

    def count(self, t: ArrayLike, q: Array, args: object) -> int:
        """Returns the number of constraints m."""
        return self.gaps.count(t, q, args)

    def joint_values(self, t: ArrayLike, q: Array, args: object) -> Array:
        """Returns c(t, q), shape (j,), in the dtype of q; zero where the joints hold, empty without joints."""
        return gaps_of(self.joints)(jnp.asarray(t, q.dtype), q, args)

    def joint_count(self, t: ArrayLike, q: Array, args: object) -> int:
        """Returns the number of joint equations j."""
        return gaps_of(self.joints).count(t, q, args)

    def switch_values(self, t: ArrayLike, q: Array, v: Array, args: object) -> Array:
        """Returns s(t, q, v), shape (k,), in the dtype of q; zero on the surfaces that are stated as switches."""
        return jnp.asarray(self.switches(t, q, v, args), q.dtype)  # type: ignore[misc]

    def switch_count(self, t: ArrayLike, q: Array, v: Array, args: object) -> int:
        """Returns the number k of surfaces that are stated as switches."""
        if self.switches is None:
            return 0
        return shape_of_result(as_array, self.switches, np.zeros((), q.dtype), q, v, args).shape[0]

    def state_behind(self, k: int, t: ArrayLike, q: Array, v: Array, args: object) -> tuple[Array, Array]:
        """Returns (q, v) after the reset at surface k, in the dtype of q."""
        found = self.reset(t, q, v, k, args)  # type: ignore[misc]
        place, speed = found if isinstance(found, tuple) else (q, found)
        return jnp.asarray(place, q.dtype), jnp.asarray(speed, q.dtype)

    def states_behind(self, t: ArrayLike, q: Array, v: Array, args: object) -> list[tuple[Array, Array]]:
        """Returns `state_behind` for each of the stated surfaces."""
        return [self.state_behind(k, t, q, v, args) for k in range(self.switch_count(t, q, v, args))]

    def slip_velocity(self, t: ArrayLike, q: Array, v: Array, args: object) -> Array:
        """Returns the slip velocities (m, k) of all contacts, k = 1 in the plane and 2 in space, in the dtype of q."""
        return self.contact_velocity(t, q, v, args)[1]

    def contact_velocity(self, t: ArrayLike, q: Array, v: Array, args: object) -> tuple[Array | None, Array]:
        """Returns the relative velocities of all contacts: along the normals (m,), None where ``slip`` does not give
        them, and along tangents (m, k).

        Without ``slip`` k is 0.
        """
        if not self.rubs:
            return None, nothing(q.dtype, self.count(t, q, args), 0)
        found = _value_of(self.slip, t, q, v, args)
        normal, along = found if isinstance(found, tuple) else (None, found)
        along = jnp.asarray(along, q.dtype)
        along = along[:, None] if along.ndim == 1 else along
        return None if normal is None else jnp.asarray(normal, q.dtype), along

    def restitution_at(self, e: Any, rates: Array, args: object) -> Array:
        """Returns the restitution of contacts with gap velocities ``rates`` (m,): e, or e times the problem's function
        of approach speeds, (m,).

        ``e``: the restitution of the motion, () or (m,); where the problem has a function, e is 1,
        or 0 to turn restitution off.
        """
        if not callable(self.restitution):
            return e
        # at zero powers of the speed have no derivative
        speeds = jnp.where(rates < 0, -rates, jnp.finfo(rates.dtype).tiny)
        return e * jnp.broadcast_to(jnp.asarray(self.restitution(speeds, args), rates.dtype), rates.shape)

    def friction_coefficients(self, slip: Array, args: object) -> Array:
        """Returns the coefficients of friction mu (m,) of contacts with the slip velocities (m, k)."""
        return coefficients(self.friction, slip, args)

    def static_coefficients(self, slip: Array, args: object) -> Array | None:
        """Returns those of static friction (m,), up to which contacts at rest stick; None if they equal those of slip.
        ``slip`` (m, k): any."""
        return (
            None if self.static_friction is None else coefficients(self.static_friction, slip, args, "static_friction")
        )

    def generalised_force(self, t: ArrayLike, q: Array, v: Array, args: object) -> Array:
        """Returns g(t, q, v), shape (d,), in the dtype of q."""
        return jnp.asarray(_value_of(self.force, t, q, v, args), q.dtype)

    def mass_at(self, q: Array, args: object) -> Array | None:
        """Returns the mass at q, in any of the forms in which it may be stated, in the dtype of q;
        None for the identity."""
        mass = _value_of(self.mass, q, args) if callable(self.mass) else self.mass
        return None if mass is None else jnp.asarray(mass, q.dtype)

    # pytree protocol: numbers are leaves, functions are structure
    def tree_flatten_with_keys(self) -> tuple[tuple, tuple]:
        key = jax.tree_util.GetAttrKey
        values = {name: getattr(self, name) for name in NUMERIC}
        functions = tuple(value if callable(value) else None for value in values.values())
        leaves = tuple((key(name), None if callable(value) else value) for name, value in values.items())
        others = (self.joints, self.switches, self.reset, self.slip, self.noise)
        return leaves, (self.force, self.constraints, self.energy, self.naming, *others, self.impact_law, functions)

    @classmethod
    def tree_unflatten(cls, static: tuple, leaves: tuple) -> Problem:
        force, constraints, energy, *others, noise, impact_law, functions = static
        numbers = [x if function is None else function for x, function in zip(leaves, functions, strict=True)]
        restitution, mass, friction, static_friction = numbers
        self = object.__new__(cls)
        self._set(force, constraints, mass, restitution, energy, *others, friction, static_friction, impact_law, noise)
        return self

    # constructors
    @classmethod
    def from_lagrangian(
        cls,
        lagrangian: Force,
        constraints: Constraints | None = None,
        restitution: RestitutionLike = 0.0,
        force: Force | None = None,
        **naming: Any,
    ) -> Problem:
        """Makes the problem of a Lagrangian L(t, q, v, args) -> (), quadratic in v,
        plus an optional non-conservative force.

        The mass matrix is M = d2L/dv2 and the force g = dL/dq minus the rate of dL/dv at constant v: Coriolis,
        centrifugal and explicit time terms come from automatic differentiation. Energy is v . dL/dv - L. L must be
        quadratic in v, with a mass matrix that does not depend on time; both are checked when a motion starts.
        ``naming``: coordinates, contacts, units, joint_names; joints, switches, reset, slip,
        friction and static_friction.
        """

        recorded_lagrangian = replay_jaxpr(lagrangian)
        inertia = replay_jaxpr(jax.hessian(recorded_lagrangian, argnums=2))

        @replay_jaxpr
        def mass(q: Array, args: object) -> Array:
            return inertia(jnp.zeros((), q.dtype), q, jnp.zeros_like(q), args)

        @replay_jaxpr
        def generalised(t: Array, q: Array, v: Array, args: object) -> Array:
            t = jnp.asarray(t, q.dtype)
            # one pass for both, so that common parts of dL/dq and of the rate of the momentum are computed once
            slopes = jax.grad(recorded_lagrangian, argnums=(1, 2))
            (slope, _), (_, rate) = jax.jvp(lambda s, x: slopes(s, x, v, args), (t, q), (jnp.ones_like(t), v))
            g = slope - rate
            return g if force is None else g + force(t, q, v, args)

        stated = "lagrangian(t, q, v, args)"
        stated = stated if force is None else f"{stated} or force(t, q, v, args)"
        annotate(generalised, derived_from_mass=True, inertia=inertia, stated=stated)

        def energy(t: Array, q: Array, v: Array, args: object) -> Array:
            return v @ jax.grad(lagrangian, argnums=2)(t, q, v, args) - lagrangian(t, q, v, args)

        return cls(generalised, constraints, mass, restitution, energy, **naming)

    @classmethod
    def from_potential(
        cls,
        potential: Callable[[Array, Args], Array],
        constraints: Constraints | None = None,
        mass: MassLike = None,
        restitution: RestitutionLike = 0.0,
        force: Force | None = None,
        **naming: Any,
    ) -> Problem:
        """Makes the problem of a mass M(q) and a potential V(q, args) -> (), plus an optional non-conservative force.

        g = -grad V - (dM/dt v - 1/2 grad_q(v' M v)) + force(t, q, v, args). Energy is v' M v / 2 + V. ``naming``:
        coordinates, contacts, units; joints, switches, reset, slip, friction and static_friction.
        """

        given = mass
        mass = given if callable(given) or given is None else lambda q, args: given

        @replay_jaxpr
        def momentum(q: Array, v: Array, args: object) -> Array:
            return mass_times(mass(q, args) if callable(mass) else mass, v)

        @replay_jaxpr
        def generalised(t: Array, q: Array, v: Array, args: object) -> Array:
            g = -jax.grad(potential)(q, args)
            if callable(given):
                _, rate = jax.jvp(lambda x: momentum(x, v, args), (q,), (v,))
                g = g - rate + 0.5 * jax.grad(lambda x: v @ momentum(x, v, args))(q)
            return g if force is None else g + force(t, q, v, args)

        others = ("mass(q, args)", "force(t, q, v, args)")
        parts = [name for name, part in zip(others, (callable(given), force), strict=True) if part]
        annotate(generalised, derived_from_mass=True, stated=" or ".join(["potential(q, args)", *parts]))

        def energy(t: Array, q: Array, v: Array, args: object) -> Array:
            return 0.5 * v @ momentum(q, v, args) + potential(q, args)

        return cls(generalised, constraints, mass, restitution, energy, **naming)

    @classmethod
    def from_momentum_force(
        cls,
        force: Force,
        constraints: Constraints | None = None,
        mass: MassLike = None,
        restitution: RestitutionLike = 0.0,
        energy: Energy | None = None,
        **naming: Any,
    ) -> Problem:
        """Makes the problem of a force f(t, q, p, args) that is stated in the momentum p = M(q) v
        (Paoli-Schatzman 1999, (1.1)).

        ``naming``: coordinates, contacts, units, joint_names; joints, switches, reset, slip,
        friction and static_friction.
        """

        given = mass
        mass = given if callable(given) or given is None else lambda q, args: given

        def generalised(t: Array, q: Array, v: Array, args: object) -> Array:
            return force(t, q, mass_times(mass(q, args) if callable(mass) else mass, v), args)

        annotate(generalised, derived_from_mass=True)

        return cls(generalised, constraints, mass, restitution, energy, **naming)


def _value_of(function: Any, *operands: object) -> PyTree:
    """Returns the value of a function of the problem, which native code has once for all its calls if it is long."""
    # these hold traced numbers, or have more to offer than this value
    special = isinstance(function, SomeSlips)
    return function(*operands) if special else call_outlined(function, *operands)


def mass_times(mass: Any, v: Array) -> Array:
    """Returns M v, for a mass given as None, a scalar, a (d,) diagonal,
    a (d, d) matrix or diagonal blocks (N, D, D)."""
    return mass_of(mass, v.dtype).times(v)
