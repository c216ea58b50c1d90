// A disk that bounces with spin, by steps of Moreau and Jean: theta = 1/2, e, Coulomb friction against the floor, unit mass.

#include "lanes.hpp"

struct Ball {
    double h, e, g, radius, inertia, mu;
};

template <class T, int W, int PACKS>
static void advance(const Ball &ball, long steps, T (*q)[W * PACKS], T (*v)[W * PACKS]) {
    typedef typename Pack<T, W>::real V;
    V x[3][PACKS], u[3][PACKS];
    memcpy(x, q, sizeof x);
    memcpy(u, v, sizeof u);
    const T h = T(ball.h), e = T(ball.e), kick = T(-ball.h * ball.g), r = T(ball.radius), mu = T(ball.mu);
    const T by_spin = T(ball.radius / ball.inertia), held = T(1 / (1 + ball.radius * ball.radius / ball.inertia));
    const V none = V{} + 0;
    for (long n = 0; n < steps; n++)
#pragma GCC unroll 16
        for (int k = 0; k < PACKS; k++) {
            const V fall = u[1][k] + kick, closed = x[1][k] - r + h / 2 * u[1][k];
            const V push = closed <= none ? larger<V>(-(fall + e * u[1][k]), none) : none;
            const V rub = smaller<V>(larger<V>(-(u[0][k] + r * u[2][k]) * held, -mu * push), mu * push);
            const V to[3] = {u[0][k] + rub, fall + push, u[2][k] + by_spin * rub};
            for (int i = 0; i < 3; i++) {
                x[i][k] += h / 2 * (u[i][k] + to[i]);
                u[i][k] = to[i];
            }
        }
    memcpy(q, x, sizeof x);
    memcpy(v, u, sizeof u);
}

// q and v (3, lanes), from the start to the end of the motion, in place
extern "C" void run_f64(const Ball *ball, long lanes, long steps, int threads, double *q, double *v) {
    constexpr int W = 8, PACKS = 4;
    in_blocks<3, W * PACKS>(lanes, threads, q, v, [&](double(*x)[W * PACKS], double(*u)[W * PACKS]) {
        advance<double, W, PACKS>(*ball, steps, x, u);
    });
}
