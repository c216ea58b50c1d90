"""Arrays by their kind and shape, as annotations; jaxtyping checks them where a test has loaded it.

``F`` real numbers, ``B`` truth values, ``I`` whole numbers; then the dimensions in order, 0 for none: ``F_md`` is a
real array of shape (m, d). A call binds each dimension once, for its arguments and its result. They are

    d  coordinates                 k  tangents of a contact: 1 in the plane, 2 in space, 0 without friction
    m  contacts, or gaps           r  rows of a contact, 1 + k: its normal and its tangents
    j  joints                      n  rows of a linear system, such as all m r rows of contacts
    s  contacts of a working set

What has any of several shapes, such as () or (m,), is an `Array`, and its docstring says so.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from jax import Array

if TYPE_CHECKING or "jaxtyping" not in sys.modules:
    from typing import Annotated as Bool
    from typing import Annotated as Float
    from typing import Annotated as Int
else:
    from jaxtyping import Bool, Float, Int

F0 = Float[Array, ""]
F_d = Float[Array, "d"]
F_j = Float[Array, "j"]
F_m = Float[Array, "m"]
F_n = Float[Array, "n"]
F_r = Float[Array, "r"]
F_s = Float[Array, "s"]
F_dd = Float[Array, "d d"]
F_dj = Float[Array, "d j"]
F_dm = Float[Array, "d m"]
F_dn = Float[Array, "d n"]
F_jd = Float[Array, "j d"]
F_jj = Float[Array, "j j"]
F_kk = Float[Array, "k k"]
F_md = Float[Array, "m d"]
F_mk = Float[Array, "m k"]
F_mm = Float[Array, "m m"]
F_mr = Float[Array, "m r"]
F_nd = Float[Array, "n d"]
F_nn = Float[Array, "n n"]
F_rr = Float[Array, "r r"]
F_dmk = Float[Array, "d m k"]
F_mkd = Float[Array, "m k d"]
F_mkk = Float[Array, "m k k"]
F_mrr = Float[Array, "m r r"]

B0 = Bool[Array, ""]
B_j = Bool[Array, "j"]
B_m = Bool[Array, "m"]
B_n = Bool[Array, "n"]
B_mm = Bool[Array, "m m"]

I0 = Int[Array, ""]
I_m = Int[Array, "m"]
I_s = Int[Array, "s"]
