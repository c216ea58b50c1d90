"""diffrax with events: every bounce is a solve that ends at the event, Newton's law by hand, and a new solve.

The event time is located by `optimistix.Newton`, as diffrax's documentation shows, and diffrax differentiates it
implicitly; nothing else is needed for the exact derivative. The number of bounces must be known, constraints must come
one at a time, and contact that lasts would be another vector field: such cases have no entry here.
"""

import diffrax
import jax
import jax.numpy as jnp
import optimistix

from jaximpact.conformance import JaxMotions, get

PACKAGES = ("diffrax", "optimistix")
HOW = "Event with optimistix.Newton, restart after each bounce; Tsit5 at 1e-9, steps up to 0.1; jax.jacrev through the default adjoint"  # noqa: E501
BOUNCES = {
    "grav1d": 2,
    "harm1d": 5,
    "moving1d": 2,
    "billiard": 2,
    "dpend": 1,
    "hop1d": 1,
    "outside-disc": 1,
    "two-balls": 1,
    "off-wall": 1,
    "struck": 1,
    "unit-flight": 1,
    "drag": 1,
    "polar": 1,
}


def motion(case, bounces):
    problem = case.problem

    def mass(q, args):
        return jnp.eye(q.size) if problem.mass is None else problem.mass(q, args)

    def field(t, y, args):
        q, v = jnp.split(y, 2)
        return jnp.concatenate([v, jnp.linalg.solve(mass(q, args), problem.force(t, q, v, args))])

    def gap(t, y, args):
        return problem.constraints(t, y[: y.size // 2], args)[0]

    def until(t, y, args, **_):
        parameters, impact = args
        return jnp.where(impact, gap(t, y, parameters), 1.0)

    def strike(t, y, args, e):
        q, v = jnp.split(y, 2)
        by_t, by_y = jax.grad(gap, argnums=(0, 1))(t, y, args)
        normal = by_y[: q.size]
        response = jnp.linalg.solve(mass(q, args), normal)
        return jnp.concatenate([q, v - (1 + e) * (normal @ v + by_t) / (normal @ response) * response])

    def run(theta, t1, steps):
        q0, v0, e, args = case.start(theta)
        event = diffrax.Event(until, optimistix.Newton(1e-10, 1e-10), direction=False)
        controller = diffrax.PIDController(rtol=1e-9, atol=1e-9, dtmax=0.1)  # no event is stepped over
        term, solver = diffrax.ODETerm(lambda t, y, args: field(t, y, args[0])), diffrax.Tsit5()

        def fly(start, impact):
            t, y = start
            found = diffrax.diffeqsolve(
                term,
                solver,
                t,
                t1,
                None,
                y,
                (args, impact),
                stepsize_controller=controller,
                event=event,
                max_steps=1024,
            )
            t, y = found.ts[-1], found.ys[-1]
            return (t, jnp.where(impact, strike(t, y, args, e), y)), None

        start = jnp.zeros_like(t1), jnp.concatenate([q0, v0])
        # one compilation for all flights; the last ends at t1
        (_, y), _ = jax.lax.scan(fly, start, jnp.arange(bounces + 1) < bounces)
        return y

    return run


def adapter(variant: str) -> JaxMotions:
    """Cases of single impacts whose number is known; reverse mode, which diffrax's default adjoint is for."""
    motions = {name: motion(get(name), bounces) for name, bounces in BOUNCES.items()}
    return JaxMotions(motions, HOW, PACKAGES, steps=False, transform=jax.jacrev)
