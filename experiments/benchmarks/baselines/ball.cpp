// Bouncing ball by the scheme of Paoli and Schatzman: explicit force, Taylor start, q >= 0, unit mass.
//
//     V = V_ - k g + max(0, -(U/s + c V_ - k g)),    U+ = U + h V,
//
// with s = h/(1 + e), c = 1 - e, k = h in a step and s = h, c = 1, k = h/2 in the first.

#include "lanes.hpp"

struct Ball {
    double h, e, g;
};

template <class T, int W, int PACKS>
static void advance(const Ball &ball, long steps, T (*q)[W * PACKS], T (*v)[W * PACKS]) {
    typedef typename Pack<T, W>::real V;
    V x[PACKS], u[PACKS];
    memcpy(x, q, sizeof x);
    memcpy(u, v, sizeof u);
    const T h = T(ball.h), e = T(ball.e), kick = T(-ball.h * ball.g);
    for (int k = 0; k < PACKS; k++) {
        u[k] = larger<V>(u[k] + kick / 2, -x[k] / h);
        x[k] += h * u[k];
    }
    // with w = U/s:  V = max(V_ - h g, e V_ - w),  w+ = w + (1 + e) V
    const T scale = T(ball.h / (1 + ball.e)), rebound = T(1 + ball.e);
    for (int k = 0; k < PACKS; k++) x[k] /= scale;
    for (long n = 1; n < steps; n++)
#pragma GCC unroll 16
        for (int k = 0; k < PACKS; k++) {
            u[k] = larger<V>(u[k] + kick, e * u[k] - x[k]);
            x[k] += rebound * u[k];
        }
    for (int k = 0; k < PACKS; k++) x[k] *= scale;
    memcpy(q, x, sizeof x);
    memcpy(v, u, sizeof u);
}

template <class T> static void run(const Ball &ball, long lanes, long steps, int threads, T *q, T *v) {
    constexpr int W = 64 / sizeof(T), PACKS = 12;
    if (lanes == 1)
        advance<T, 1, 1>(ball, steps, (T(*)[1])q, (T(*)[1])v);
    else
        in_blocks<1, W * PACKS>(lanes, threads, q, v, [&](T(*x)[W * PACKS], T(*u)[W * PACKS]) {
            advance<T, W, PACKS>(ball, steps, x, u);
        });
}

// q and v (1, lanes), from the start to the end of the motion, in place
extern "C" void run_f64(const Ball *ball, long lanes, long steps, int threads, double *q, double *v) {
    run(*ball, lanes, steps, threads, q, v);
}
extern "C" void run_f32(const Ball *ball, long lanes, long steps, int threads, float *q, float *v) {
    run(*ball, lanes, steps, threads, q, v);
}
