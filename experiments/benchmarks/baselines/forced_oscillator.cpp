// Oscillator x'' = cos(w t) - x - 2 z x' beside a wall, by the scheme of Paoli and Schatzman: explicit force, Taylor start, x >= wall, unit mass.
//
//     V = V_ + k a + max(0, -(U/s + c V_ + k a)),    U+ = U + h V,    a = cos(w t) - x - 2 z V_,
//
// with U = x - wall, s = h/(1 + e), c = 1 - e, k = h in a step and s = h, c = 1, k = h/2 in the first. The shaking force is computed once for
// all lanes.

#include <cmath>
#include <vector>

#include "lanes.hpp"

struct Oscillator {
    double h, e, frequency, damping, wall;
};

template <class T, int W, int PACKS>
static void advance(const Oscillator &o, const T *kicks, long steps, T (*q)[W * PACKS], T (*v)[W * PACKS]) {
    typedef typename Pack<T, W>::real V;
    V x[PACKS], u[PACKS];
    memcpy(x, q, sizeof x);
    memcpy(u, v, sizeof u);
    const T h = T(o.h), e = T(o.e), wall = T(o.wall), slow = T(2 * o.damping);
    for (int k = 0; k < PACKS; k++) {
        x[k] -= wall;
        u[k] = larger<V>(u[k] + (kicks[0] - h * (x[k] + slow * u[k])) / 2, -x[k] / h);
        x[k] += h * u[k];
    }
    // with w = U/s:  V = max(V_ + h a, e V_ - w),  w+ = w + (1 + e) V,  h a = kick - h s w - 2 z h V_
    const T scale = T(o.h / (1 + o.e)), rebound = T(1 + o.e), stiff = T(o.h) * scale, keep = 1 - h * slow;
    for (int k = 0; k < PACKS; k++) x[k] /= scale;
    for (long n = 1; n < steps; n++) {
        const V kick = kicks[n] - V{};
#pragma GCC unroll 16
        for (int k = 0; k < PACKS; k++) {
            u[k] = larger<V>(keep * u[k] + (kick - stiff * x[k]), e * u[k] - x[k]);
            x[k] += rebound * u[k];
        }
    }
    for (int k = 0; k < PACKS; k++) x[k] = x[k] * scale + wall;
    memcpy(q, x, sizeof x);
    memcpy(v, u, sizeof u);
}

template <class T> static void run(const Oscillator &o, long lanes, long steps, int threads, T *q, T *v) {
    constexpr int W = 64 / sizeof(T), PACKS = 12;
    std::vector<T> kicks(steps);
    for (long n = 0; n < steps; n++) kicks[n] = T(o.h * (std::cos(o.frequency * (n * o.h)) - o.wall));
    if (lanes == 1)
        advance<T, 1, 1>(o, kicks.data(), steps, (T(*)[1])q, (T(*)[1])v);
    else
        in_blocks<1, W * PACKS>(lanes, threads, q, v, [&](T(*x)[W * PACKS], T(*u)[W * PACKS]) {
            advance<T, W, PACKS>(o, kicks.data(), steps, x, u);
        });
}

// q and v (1, lanes), from the start to the end of the motion, in place
extern "C" void run_f64(const Oscillator *o, long lanes, long steps, int threads, double *q, double *v) {
    run(*o, lanes, steps, threads, q, v);
}
extern "C" void run_f32(const Oscillator *o, long lanes, long steps, int threads, float *q, float *v) {
    run(*o, lanes, steps, threads, q, v);
}
