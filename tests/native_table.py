"""Functions of jax that native code has to compute as XLA does: a family, and in each line an expression.

x, y: numbers of every kind, side by side in all pairs; z, w: of order one, and what is none; k, l: whole numbers of every size; u: such
without sign; p, o: booleans; i, j: places within and without four entries, near and far; s: a place; m: regular matrices, symmetric
positive ones c, and r, which may be neither; all are of one lane.
"""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

TABLE = """
arithmetic
  x + y
  x - y
  x * y
  x / y
  -x
  jnp.abs(x)
  jnp.sign(x)
  jnp.maximum(x, y)
  jnp.minimum(x, y)
  jnp.fmax(x, y)
  jnp.fmin(x, y)
  jnp.sqrt(x)
  lax.rsqrt(x)
  jnp.square(x)
  jnp.reciprocal(x)
  x**2
  x**3
  x**-1
  x**-2
  x**7
  lax.integer_pow(x, 0)
  lax.integer_pow(x, -5)
  jnp.hypot(x, y)
  ! jnp.copysign(x, y)
  jnp.heaviside(x, y)
  lax.nextafter(x, y)
  jnp.float_power(x, y)
  jnp.power(x, y)
  jnp.power(x, 0.5)
  jnp.power(x, 1.5)
  jnp.power(2.0, x)
  ! jnp.power(x, k[:4])
  ! lax.pow(x, jnp.int32(3))
  jnp.fmod(x, y)
  jnp.remainder(x, y)
  x % 2.5
  jnp.floor_divide(x, y)
  jnp.divmod(x, y)
  jnp.modf(x)
  jnp.fabs(x)
  jnp.clip(x, -1, 1)
  jnp.clip(x, y, 2.0)
  jnp.clip(x, 2.0, y)
  lax.clamp(jnp.minimum(y, 1.0), x, jnp.maximum(y, 1.0))
  jnp.cbrt(x)
  jnp.deg2rad(x)
  ! jnp.ldexp(x, k)
  ! jnp.frexp(x)
  jnp.nan_to_num(x)
  jnp.positive(x)
  jnp.where(x > y, x, 0.0)
  x + 0.0
  x - 0.0
  0.0 - x
  x * 1.0
  x * 0.0
  x * -1.0
  jnp.zeros(4) + x
  x / 1.0
  0.0 / x

rounding
  jnp.floor(x)
  jnp.ceil(x)
  jnp.round(x)
  jnp.rint(x)
  jnp.trunc(x)
  lax.round(x)
  lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)
  jnp.round(z, 2)
  x.astype(jnp.int32)
  x.astype(jnp.int64)
  x.astype(jnp.int8)
  x.astype(jnp.int16)
  x.astype(jnp.uint8)
  x.astype(jnp.uint16)
  x.astype(jnp.uint32)
  x.astype(jnp.uint64)
  x.astype(bool)
  x.astype(jnp.float32)
  ! x.astype(jnp.float16)
  ! x.astype(jnp.bfloat16).astype(jnp.float32)
  k.astype(x.dtype)
  u.astype(x.dtype)
  k.astype(jnp.int8)
  k.astype(jnp.int64)
  k.astype(jnp.uint32)
  k.astype(bool)
  p.astype(x.dtype)
  p.astype(jnp.int32)
  ! lax.reduce_precision(x, 8, 7)
  ! lax.bitcast_convert_type(k, jnp.float32)
  ! lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)

functions
  jnp.sin(x)
  jnp.cos(x)
  jnp.sin(x - y)
  jnp.cos(x - y)
  jnp.sin(x) * jnp.cos(x)
  jnp.tan(x)
  jnp.arcsin(x)
  jnp.arccos(x)
  jnp.arctan(x)
  jnp.arctan2(x, y)
  jnp.sinh(x)
  jnp.cosh(x)
  jnp.tanh(x)
  jnp.arcsinh(x)
  jnp.arccosh(x)
  jnp.arctanh(x)
  jnp.exp(x)
  jnp.exp2(x)
  jnp.expm1(x)
  jnp.log(x)
  jnp.log2(x)
  jnp.log10(x)
  jnp.log1p(x)
  jnp.logaddexp(x, y)
  jnp.sinc(x)
  jax.nn.sigmoid(x)
  jax.nn.softplus(x)
  jax.nn.relu(x)
  jax.nn.elu(x)
  jax.nn.gelu(x)
  jax.nn.silu(x)
  jax.nn.softmax(z)
  jax.nn.log_softmax(z)
  jax.nn.logsumexp(z)
  jax.scipy.special.erf(x)
  jax.scipy.special.erfc(x)
  ! jax.scipy.special.erfinv(z)
  jax.scipy.special.gammaln(x) + 10.0
  ! jax.scipy.special.digamma(x)
  jax.scipy.special.xlogy(x, y)
  jax.scipy.special.xlog1py(x, y)
  jax.scipy.special.entr(x)
  jax.scipy.special.logit(x)
  jax.scipy.special.expit(x)
  ! jax.scipy.special.i0e(x)
  ! jax.scipy.special.i1(z)
  jax.scipy.special.ndtr(x)
  ! jax.scipy.special.gammainc(jnp.abs(z), jnp.abs(w))
  ! jax.scipy.special.betainc(jnp.abs(z), jnp.abs(w), 0.5)
  ! jax.scipy.special.zeta(jnp.abs(z) + 1.5, 1.0)
  jnp.angle(x)
  jnp.real(x)
  jnp.polyval(y, z)
  jnp.unwrap(z)
  ! jnp.i0(z)

comparison
  x == y
  x != y
  x < y
  x <= y
  x > y
  x >= y
  jnp.isnan(x)
  jnp.isinf(x)
  jnp.isfinite(x)
  ! jnp.signbit(x)
  jnp.isclose(x, y)
  jnp.array_equal(x, y)
  jnp.logical_and(x, y)
  jnp.logical_or(x, y)
  jnp.logical_xor(x, y)
  jnp.logical_not(x)
  ~(x < y)
  ~(x >= y)
  (x < y) & (y > z)
  (x < y) | ~(y > z)
  jnp.where(~(x < y), x, y)
  jnp.where(jnp.isnan(x), 0, x)
  k < l
  k >= l
  u < u[::-1]
  p == o
  p < o
  p >= o
  jnp.where(p, x, y)
  jnp.select([p, o], [x, y], z)
  jnp.piecewise(z, [z < -1, z >= 1], [-1, 1, lambda x: x])
  lax.select_n(k % 3, x, y, z)
  lax.select_n(jnp.clip(k, 0, 2), x, y, z)

integers
  k + l
  k - l
  k * l
  -k
  jnp.abs(k)
  jnp.sign(k)
  jnp.sign(u)
  k // l
  k % l
  lax.div(k, l)
  lax.rem(k, l)
  lax.div(u, u[::-1])
  lax.rem(u, u[::-1])
  u // u[::-1]
  jnp.maximum(k, l)
  jnp.minimum(u, u[::-1])
  jnp.clip(k, -3, l)
  jnp.divmod(k, l)
  k**2
  k**3
  k ** (jnp.abs(l) % 5)
  lax.integer_pow(k, 5)
  k & l
  k | l
  k ^ l
  ~k
  k << (l & 31)
  k << l
  k >> l
  lax.shift_right_logical(k, l)
  lax.shift_right_arithmetic(k, l)
  u >> u[::-1]
  u << 3
  lax.population_count(k)
  lax.population_count(u)
  lax.clz(k)
  k.astype(jnp.int8) * l.astype(jnp.int8)
  k.astype(jnp.int64) * l
  k / l
  jnp.gcd(k % 50, l % 50)
  jnp.lcm(k % 50, l % 50)
  k.sum()
  k.prod()
  jnp.mean(k)
  k.max()
  k @ l
  jnp.cumsum(k)
  jnp.sort(k)
  jnp.argsort(k)
  jnp.bitwise_count(u)
  jnp.invert(u)
  p & o
  p | o
  p ^ o
  ~p
  p * o
  p + o
  p.sum()
  p @ o
  jnp.cumsum(p)
  jnp.maximum(p, o)
  jnp.sort(p)

reductions
  z.sum()
  z.prod()
  z.max()
  z.min()
  x.max()
  x.min()
  z.mean()
  z.var()
  z.std()
  jnp.median(z)
  jnp.percentile(z, 30)
  jnp.ptp(z)
  jnp.argmax(x)
  jnp.argmin(x)
  jnp.nanargmax(z)
  jnp.nansum(z)
  jnp.nanmax(z)
  jnp.nanmean(z)
  jnp.any(p)
  jnp.all(p)
  jnp.any(x)
  ! lax.reduce_xor(k, (0,))
  lax.reduce_or(k, (0,))
  lax.reduce_and(k, (0,))
  jnp.count_nonzero(x)
  jnp.cumsum(z)
  jnp.cumprod(z)
  lax.cummax(x)
  lax.cummin(x)
  lax.cumsum(z, reverse=True)
  ! lax.cumlogsumexp(z)
  jnp.diff(z)
  jnp.trapezoid(z)
  jnp.outer(z, w).sum(0)
  jnp.outer(z, w).max((0, 1))
  jnp.zeros((0,)).sum() + z
  z @ w
  jnp.outer(z, w) @ z
  jnp.einsum("i,j,i->j", z, w, z)
  jnp.tensordot(jnp.outer(z, w), z, 1)
  jnp.cross(z[:3], w[:3])
  jnp.kron(z, w)
  ! jnp.convolve(z, w)
  jnp.linalg.norm(z)
  jnp.linalg.norm(z, 1)
  jnp.linalg.norm(z, jnp.inf)
  lax.reduce(x, -jnp.inf, lax.max, (0,))
  ! lax.reduce(z, jnp.zeros((), z.dtype), lambda a, b: a + 2 * b, (0,))
  ! lax.reduce(z, jnp.ones((), z.dtype), lambda a, b: jnp.hypot(a, b), (0,))
  ! lax.reduce_window(z, 0.0, lax.add, (2,), (1,), "VALID")
  ! lax.reduce_window(x, -jnp.inf, lax.max, (2,), (2,), "SAME")
  lax.associative_scan(jnp.add, z)
  lax.associative_scan(jnp.maximum, x)
  jnp.maximum.accumulate(x)
  ! jnp.correlate(z, w)
  jnp.histogram(w, bins=3, range=(-2.0, 2.0))[0]
  jnp.bincount(jnp.clip(i, 0, 3), length=4)
  jax.ops.segment_sum(z, jnp.arange(4) // 2, 2)
  jax.ops.segment_max(z, jnp.clip(i, 0, 3), 4)
  jax.ops.segment_prod(z, i, 4)

sorts
  jnp.sort(x)
  jnp.sort(z)[::-1]
  jnp.sort(x, descending=True)
  jnp.argsort(x)
  jnp.argsort(x, descending=True)
  jnp.argsort(x, stable=False)
  jnp.sort(jnp.outer(z, w), axis=0)
  lax.sort((x, y), num_keys=1)
  ! lax.sort((x, y), num_keys=2)
  lax.sort((p.astype(jnp.int32), x))
  lax.sort((k, x), num_keys=1)
  lax.sort(x, is_stable=False)
  ! jnp.lexsort((x, p))
  ! lax.top_k(x, 2)
  ! lax.top_k(k, 2)
  jnp.searchsorted(jnp.sort(w), z)
  jnp.searchsorted(jnp.sort(w), z, side="right")
  jnp.searchsorted(jnp.sort(w), z, method="compare_all")
  jnp.digitize(z, jnp.linspace(-1.0, 1.0, 5))
  jnp.interp(z, jnp.arange(-2.0, 2.0), w)
  jnp.interp(x, jnp.arange(-2.0, 2.0), jnp.arange(4.0) ** 2)
  jnp.interp(z, jnp.arange(-2.0, 2.0), w, left=7.0, right=-7.0)
  ! jnp.partition(x, 2)
  jnp.unique(x, size=4)
  jnp.nonzero(p, size=4)
  jnp.flatnonzero(x, size=4, fill_value=9)
  jnp.argwhere(p, size=2)
  jnp.extract(p, x, size=4, fill_value=0)

moves
  x[::-1]
  x[1:3]
  x[-1]
  x[::2]
  x.reshape(2, 2).T
  jnp.roll(x, 1)
  jnp.roll(x, s)
  jnp.pad(x, (1, 2))
  jnp.pad(x, 2, mode="edge")
  jnp.pad(x, 1, mode="reflect")
  lax.pad(x, 7.0, [(-1, 2, 1)])
  lax.pad(x, y[0], [(0, -2, 0)])
  jnp.concatenate([x, y])
  jnp.stack([x, y], 1)
  jnp.tile(x, 2)
  jnp.repeat(x, 2)
  jnp.flip(x)
  jnp.diag(x)
  jnp.tril(jnp.outer(z, w))
  jnp.triu(jnp.outer(x, y), 1)
  jnp.meshgrid(x, y)
  jnp.split(x, 2)
  jnp.swapaxes(jnp.outer(z, w), 0, 1)
  jnp.broadcast_to(x[:, None], (4, 2))
  jnp.arange(4) + x
  jnp.append(x, y)
  jnp.insert(x, 1, 5.0)
  jnp.delete(x, 1)
  jnp.vander(z)
  jnp.rot90(jnp.outer(x, y))
  jnp.ravel(jnp.outer(x, y))
  jnp.apply_along_axis(jnp.sum, 0, jnp.outer(z, w))

gathers
  x[i]
  x[s]
  jnp.take(x, i)
  jnp.take(x, i, mode="clip")
  jnp.take(x, i, mode="wrap")
  jnp.take(x, i, mode="fill", fill_value=9.0)
  jnp.take(k, i, mode="fill")
  jnp.take(u, i, mode="fill")
  jnp.take(p, i, mode="fill")
  x.at[i].get()
  x.at[i].get(mode="clip")
  x.at[i].get(mode="drop")
  x.at[i].get(mode="fill", fill_value=-1.0)
  x.at[i].get(wrap_negative_indices=False)
  x.at[jnp.clip(i, 0, 3)].get(indices_are_sorted=False, mode="promise_in_bounds")
  k.at[i].get(mode="fill")
  r[i, j]
  r[i]
  r[:, i]
  r[s]
  r[s, ::2]
  r[..., s]
  r[i[:, None], j]
  r[i, 1:]
  x[(k % 4).astype(jnp.uint8)]
  x[k.astype(jnp.int8)]
  x[u]
  x[k.astype(jnp.int64)]
  x[p.astype(jnp.int32)]
  jnp.take_along_axis(x, jnp.argsort(y), 0)
  jnp.take_along_axis(r, i[:3, None], 1)
  jnp.choose(i, [x, y], mode="clip")
  lax.dynamic_slice(x, (s,), (2,))
  lax.dynamic_slice(r, (s, i[0]), (2, 2))
  lax.dynamic_index_in_dim(x, s, keepdims=False)
  lax.dynamic_slice_in_dim(x, s, 3)
  jax.vmap(lambda a, b: a[b])(r, i[:3])
  jax.vmap(lambda b: lax.dynamic_slice(x, (b,), (2,)))(i)
  jnp.put_along_axis(r, i[:3, None], 2.0, 1, inplace=False)
  jnp.place(x, p, y[:1], inplace=False)

scatters
  x.at[0].set(y[1])
  x.at[i].set(y)
  x.at[i].set(3.0)
  x.at[i].set(y, mode="clip")
  x.at[i].set(y, mode="drop")
  x.at[i].set(y, wrap_negative_indices=False)
  x.at[::2].set(y[:2])
  x.at[s].set(1.0)
  z.at[i].add(w)
  z.at[i].add(w, mode="clip")
  z.at[i].subtract(w)
  z.at[s].subtract(2.0)
  z.at[i].multiply(w)
  z.at[i].mul(w, mode="clip")
  z.at[i].divide(w)
  z.at[s].divide(2.0)
  z.at[i].power(2.0)
  x.at[i].min(y)
  x.at[i].max(y)
  x.at[i].max(y, mode="clip")
  z.at[0].apply(jnp.sin)
  z.at[i].apply(jnp.sin)
  z.at[s].apply(jnp.cos)
  z.at[i].apply(lambda a: 2 * a + 1, mode="clip")
  z.at[1:3].apply(jnp.exp)
  k.at[i].add(l)
  k.at[i].max(l)
  k.at[s].apply(lambda a: a + 1)
  p.at[i].set(o)
  p.at[i].max(o)
  p.at[i].min(o)
  u.at[i].multiply(u)
  r.at[i[:3], j[:3]].set(z[:3])
  r.at[i[:3], j[:3]].add(z[:3])
  r.at[i[:3]].set(r[::-1])
  r.at[:, i[:3]].add(1.0)
  r.at[s].set(z[:3])
  r.at[s, 1].add(z[0])
  r.at[:, s].multiply(2.0)
  r.at[s].apply(jnp.tanh)
  r.at[i[:3], j[:3]].apply(lambda a: -a)
  lax.dynamic_update_slice(x, y[:2], (s,))
  lax.dynamic_update_slice(r, r[:2, :2], (s, i[0]))
  lax.dynamic_update_index_in_dim(x, 5.0, s, 0)
  jax.vmap(lambda a, b: a.at[b].set(7.0))(r, i[:3])
  jax.vmap(lambda a, b: a.at[b].apply(jnp.sin))(r, i[:3])
  jnp.zeros(4).at[i].add(1.0)
  jnp.zeros((5, 2)).at[i].set(w[:2])
  z.at[jnp.array([0, 0, 1])].add(w[:3])
  z.at[jnp.array([0, 2])].set(w[:2], unique_indices=True, indices_are_sorted=True)

control
  lax.cond(p[0], lambda a: 2 * a, lambda a: a - 1, z)
  lax.cond(z[0] > 0, jnp.sin, jnp.cos, z)
  lax.cond(k[0], lambda a: a, lambda a: -a, z)
  lax.switch(s, [lambda a: a, lambda a: 2 * a, lambda a: jnp.sin(a)], z)
  lax.switch(u[0].astype(jnp.int32), [lambda a: a, lambda a: 2 * a], z)
  lax.while_loop(lambda c: c[0] < jnp.minimum(s, 9), lambda c: (c[0] + 1, c[1] * 0.5), (jnp.int32(0), z))[1]
  lax.while_loop(lambda c: jnp.any(c > 1e-3), lambda c: c / 2, jnp.abs(y[:1]) % 1)
  lax.while_loop(lambda c: c[0] < jnp.minimum(u[0] % 7, 5), lambda c: (c[0] + 1, c[1] + 1), (u[0] % 3, w))[1]
  lax.while_loop(lambda c: False, lambda c: c + 1, z)
  lax.fori_loop(0, 3, lambda n, c: c * w + n, z)
  lax.fori_loop(jnp.maximum(s, -3), 3, lambda n, c: c + n, z)
  lax.fori_loop(3, jnp.minimum(s, 9), lambda n, c: c + 1, z)
  lax.fori_loop(jnp.int8(-3), jnp.clip(s, -3, 3).astype(jnp.int8), lambda n, c: c + n, z)
  lax.fori_loop(u[0] % 4, u[1] % 4, lambda n, c: c + n, w)
  lax.fori_loop(0, 0, lambda n, c: c + 1, z)
  lax.scan(lambda c, a: (c + a, c * a), w[0], z)
  lax.scan(lambda c, a: (c + a, c), w[0], z, reverse=True)
  lax.scan(lambda c, a: (jnp.sin(c), None), z, None, length=3)
  lax.scan(lambda c, a: (c, a), z, jnp.zeros((0, 2)))
  lax.scan(lambda c, a: (c + a, c), w[0], z, unroll=2)
  lax.scan(lambda c, a: (lax.cond(a > 0, jnp.sin, jnp.cos, c), c), w[0], z)
  lax.scan(lambda c, n: (c.at[n].add(1.0), c[n]), z, i)
  lax.map(jnp.sin, z)
  jax.checkpoint(jnp.sin)(z)
  lax.stop_gradient(z) * w
  jax.vmap(jnp.sin)(z)
  jax.jit(jnp.cos)(z)
  OWN_JVP(z)
  OWN_VJP(z)
  lax.custom_root(lambda a: a**3 - jnp.abs(w[0]), z[0] * 0 + 1.0, NEWTON, lambda g, b: b / g(1.0))
  lax.platform_dependent(z, cpu=jnp.sin, default=jnp.sin)
  lax.optimization_barrier(z) + 1
  ! jax.lax.linalg.tridiagonal_solve(jnp.zeros(3), 2 + jnp.zeros(3), jnp.zeros(3), z[:3, None])
  lax.custom_linear_solve(lambda a: 3 * a, z, lambda f, b: b / 3, symmetric=True)

algebra
  jnp.linalg.cholesky(c)
  jnp.linalg.cholesky(r)
  jnp.linalg.cholesky(r, symmetrize_input=False)
  lax.linalg.cholesky(r)
  jnp.linalg.cholesky(c, upper=True)
  jax.scipy.linalg.cho_factor(c)[0]
  jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(c), z[:3])
  jnp.linalg.inv(m)
  jnp.linalg.solve(m, z[:3])
  jnp.linalg.solve(jnp.where(jnp.isfinite(r), r, 0), z[:3])
  jnp.linalg.det(m)
  jnp.linalg.det(r)
  jnp.linalg.slogdet(m)
  jax.scipy.linalg.lu(m)
  lax.linalg.lu(jnp.where(jnp.isfinite(r), r, 0))
  jax.scipy.linalg.lu_factor(m)
  jax.scipy.linalg.solve_triangular(c, z[:3], lower=True)
  jax.scipy.linalg.solve_triangular(c, z[:3], trans=1)
  jax.scipy.linalg.solve_triangular(r, z[:3], lower=True)
  jax.scipy.linalg.solve(c, z[:3], assume_a="pos")
  jnp.linalg.eigvalsh(c)
  jnp.linalg.eigh(c)[0]
  jnp.linalg.eigvalsh(r)
  ! jnp.linalg.qr(m)
  ! jnp.linalg.svd(m)[1]
  ! jnp.linalg.lstsq(m, z[:3])[0]
  ! jnp.linalg.pinv(m)
  jnp.linalg.matrix_power(m, 3)
  ! jnp.linalg.cond(m)
  ! jnp.linalg.norm(m, 2)
  jnp.linalg.norm(m)
  jnp.trace(m)
  jax.scipy.linalg.expm(m / 8)
  jnp.linalg.multi_dot([m, c, m])
  m.T @ c @ z[:3]
  jnp.linalg.cholesky(jnp.stack([c, r]))
  jnp.linalg.solve(jnp.stack([c, m]), jnp.ones((2, 3, 1)))
  lax.linalg.triangular_solve(r, r, left_side=False, lower=True, transpose_a=True, unit_diagonal=True)
  ! jnp.fft.fft(z).real
  ! jax.random.uniform(jax.random.key(0), (2,)) + z[:2]
"""


@jax.custom_jvp
def OWN_JVP(z):
    return jnp.sin(z)


OWN_JVP.defjvp(lambda primals, tangents: (OWN_JVP(*primals), 3 * tangents[0]))


@jax.custom_vjp
def OWN_VJP(z):
    return jnp.sin(z)


OWN_VJP.defvjp(lambda z: (jnp.sin(z), z), lambda z, g: (5 * g * z,))


def NEWTON(f, start):
    return lax.fori_loop(0, 60, lambda _, a: a - f(a) / jax.grad(f)(a), start)


def families():
    """Expressions by family of primitives."""
    found = {}
    for block in TABLE.strip().split("\n\n"):
        name, *lines = block.splitlines()
        found[name] = [line.strip() for line in lines]
    return found


NAMES = ("x", "y", "z", "w", "k", "l", "u", "p", "o", "i", "j", "s", "m", "c", "r")
PLACES = {"jax": jax, "jnp": jnp, "lax": lax, "OWN_JVP": OWN_JVP, "OWN_VJP": OWN_VJP, "NEWTON": NEWTON}


def function(expression):
    """Function of all operands that evaluates an expression."""
    return eval(f"lambda {', '.join(NAMES)}: {expression}", dict(PLACES))


def operands(dtype):
    """Operands of all lanes; neither they nor most of their products are denormal, since XLA flushes denormals to zero."""
    info, random = np.finfo(dtype), np.random.default_rng(0)
    tiny, most = float(info.tiny) ** 0.94, info.max
    real = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 3.0, np.pi / 2, 1e4 / 3, -1e6 / 3, tiny, -tiny, most, -most, np.inf, -np.inf, np.nan,
            info.eps, 1 - info.eps, 0.3, 88.1, -104.2]  # fmt: skip
    pairs = np.array(list(product(real, real)), dtype)
    lanes = -(-len(pairs) // 4)
    pairs = np.resize(pairs, (lanes * 4, 2))
    x, y = pairs.T.reshape(2, lanes, 4)
    z, w = random.normal(size=(2, lanes, 4)).astype(dtype)
    odd = random.random((lanes, 4)) < 0.1
    z[odd] = random.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], odd.sum())
    whole = [0, 1, -1, 2, 3, -3, 7, 31, 32, 33, -8, 2**31 - 1, -(2**31), 12345, -99, 100]
    k, l = np.resize(np.array(list(product(whole, whole)), np.int32), (lanes * 4, 2)).T.reshape(2, lanes, 4)  # noqa: E741
    u = k.astype(np.uint32)
    p, o = random.random((2, lanes, 4)) < 0.5
    i, j = random.integers(-6, 8, (2, lanes, 4)).astype(np.int32)
    far = random.random((lanes, 4)) < 0.05
    i[far] = random.choice([2**31 - 1, -(2**31), 100, -100], far.sum())
    m = random.normal(size=(lanes, 3, 3))
    c = m @ m.swapaxes(1, 2) + 2 * np.eye(3)
    r = m + m.swapaxes(1, 2)
    r[::7] = 0
    r[3::7, 1, 1] = np.nan
    r[5::7, 0, 1] = np.inf
    r[2::7] = c[2::7]
    m, c, r = (a.astype(dtype) for a in (m + 4 * np.eye(3), c, r))
    return [x, y, z, w, k, l, u, p, o, i, j, i[:, 0], m, c, r]
