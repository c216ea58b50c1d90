"""Laws of impact: how the impulses at contacts follow from the velocities before an impact and
the coefficients of restitution.

A law says what is added to an inelastic impact: Newton's a velocity, e times that of approach; Poisson's impulses, e
times those of the inelastic impact, the stage of compression, in a second stage after it. The time-stepping schemes and
the located ones ask it alike.

References:
    C. Glocker, F. Pfeiffer, Multiple impacts with friction in rigid multibody systems, Nonlinear Dynamics 7 (1995),
    section 4. M. Anitescu, F. A. Potra, Formulating dynamic multi-rigid-body contact problems with friction as solvable
    linear complementarity problems, Nonlinear Dynamics 14 (1997), section 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from ..jaxtools.empty import empty

NO_PUSH = empty(float, 0)  # least impulses where no law asks for any


@dataclass(frozen=True)
class ImpactLaw:
    """Base class of laws of impact, which define `velocity` or, in ``two_stages``, `impulse`; they are frozen
    dataclasses without arrays.

    In the first of two stages the impact is inelastic; in the second, contacts push with impulses of their own, and do
    not close. Contacts that touch without approaching take part in both.
    """

    two_stages: ClassVar[bool] = False

    def velocity(self, e: Array, before: Array) -> Array:
        """Returns the gap velocities (m,), less than zero, that an impact turns into
        velocities of opening of the same size.

        ``e``: coefficients of restitution (m,), 0 for contacts that do not rebound; ``before`` (m,):
        gap velocities before the impact.
        """
        return 0 * before

    def impulse(self, e: Array, compression: Array) -> Array:
        """Returns the least normal impulses (m,) of the second stage; ``compression`` (m,): those of the first;
        ``e`` as in `velocity`."""
        return 0 * compression

    def least(self, e: Array, inelastic: Callable[[], Array]) -> Array:
        """Returns the least normal impulses (m,) of an impact without friction, of both stages together;
        of size 0 if there is one stage.

        ``inelastic``: function that returns the impulses (m,) of the inelastic impact; ``e`` as in `velocity`.
        """
        if not self.two_stages:
            return NO_PUSH
        first = inelastic()
        return first + self.impulse(e, first)

    def rebounding(self, struck: Array, pressed: Array) -> Array:
        """Returns the contacts (m,) that rebound: those ``struck`` (m,) and, in two stages,
        others ``pressed`` (m,) by them."""
        return struck | (pressed & jnp.any(struck)) if self.two_stages else struck


@dataclass(frozen=True)
class NewtonImpact(ImpactLaw):
    """Newton's law: a gap that closes at a rate w opens at the rate e w. With friction and several coordinates an
    impact may gain energy by it."""

    def velocity(self, e: Array, before: Array) -> Array:
        return e * before


@dataclass(frozen=True)
class PoissonImpact(ImpactLaw):
    """Poisson's law: after compression each contact gives back e times its normal impulse,
    with friction in both stages.

    With one e for all contacts it gains no energy. At one contact without friction it is Newton's.
    """

    two_stages: ClassVar[bool] = True

    def impulse(self, e: Array, compression: Array) -> Array:
        return e * compression


NEWTON = NewtonImpact()
LAWS = {"newton": NEWTON, "poisson": PoissonImpact()}


def impact_law_of(given: ImpactLaw | str) -> ImpactLaw:
    """Returns the law of impact of a name, or the law itself; raises ValueError or TypeError, saying what there is."""
    if isinstance(given, str) and given not in LAWS:
        raise ValueError(f"impact_law must be {' or '.join(map(repr, LAWS))}, or an extend.ImpactLaw, got {given!r}")
    law = LAWS.get(given) if isinstance(given, str) else given
    if not isinstance(law, ImpactLaw):
        what = f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
        raise TypeError(f"impact_law must be {' or '.join(map(repr, LAWS))}, or an extend.ImpactLaw, got {what}")
    return law


def require_newton(law: ImpactLaw, what: str) -> None:
    """Raises ValueError, naming ``what`` needs it, unless the law of impact is Newton's."""
    if not isinstance(law, NewtonImpact):
        raise ValueError(f"{what} has the velocities before and after an impact from Newton's law; impact_law is {law}")
