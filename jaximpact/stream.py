"""A loop whose rows leave it as they are made, for native code, which writes them to memory: as many as it is told when it runs.

`lax.scan` would need their number while it is traced, and give arrays, which a program of numbers has none of. Inside the traced
function a row stands for all of them: it can be returned, and nothing else done with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Literal, Primitive

stream_p = Primitive("stream")
stream_p.multiple_results = True


def stream(body: Callable, carry: Any, given: Any) -> tuple[Any, Any]:
    """The last carry of ``body(carry, given) -> carry, row``, and the rows, which stand for a sequence of them.

    ``given``: a pytree of `jax.ShapeDtypeStruct` (), what each turn is given from sequences that come with the call.
    """
    closed, shape = jax.make_jaxpr(body, return_shape=True)(carry, given)
    leaves = jax.tree.leaves(carry)
    found = stream_p.bind(*closed.consts, *leaves, jaxpr=closed.jaxpr, carried=len(leaves))
    return jax.tree.unflatten(jax.tree.structure(shape), found)


@stream_p.def_abstract_eval
def _(*_: Any, jaxpr: Any, **__: Any) -> list:
    return [v.aval for v in jaxpr.outvars]


def streamed(closed: ClosedJaxpr, passing: set[str]) -> list[Any]:
    """Of each output of a jaxpr, the output of a `stream` that it is, or None; ``passing`` are primitives that change nothing."""
    origin: dict = {}
    for eqn in closed.jaxpr.eqns:
        if eqn.primitive is stream_p:
            origin.update((v, v) for v in eqn.outvars[eqn.params["carried"] :])
        elif eqn.primitive.name in passing:
            for x, y in zip(eqn.invars, eqn.outvars, strict=False):
                if not isinstance(x, Literal) and x in origin:
                    origin[y] = origin[x]
    return [None if isinstance(v, Literal) else origin.get(v) for v in closed.jaxpr.outvars]
