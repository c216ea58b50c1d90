// Double pendulum with M(q) beside a wall that its joint and its tip hit, by the scheme of Paoli: explicit force, Taylor
// start, gradients at the projected point, the exact projection by successive linearisations.
//
//     W - U = s (c V_ + k a),   V = V_ + k a + M(U)^-1 G(Z)' L,   0 <= L _|_ f(Z) >= 0,   Z = W + s M^-1 G' L,   U+ = U + h V
//
// with s = h/(1 + e), c = 1 - e, k = h in a step and s = h, c = 1, k = h/2 in the first.

#include "lanes.hpp"

struct Pendulum {
    double h, e, m1, m2, l1, l2, g, wall;
};

template <class T, int W> struct Stepper {
    typedef typename Pack<T, W>::real V;

    const T h, e, l1, l2, wall, tolerance;
    const T first, second, coupling, weight1, weight2;

    static inline V abs(V x) { return magnitude<T, W>(x); }

    explicit Stepper(const Pendulum &p)
        : h(T(p.h)), e(T(p.e)), l1(T(p.l1)), l2(T(p.l2)), wall(T(p.wall)), tolerance(T(1e-12)),
          first(T((p.m1 + p.m2) * p.l1 * p.l1)), second(T(p.m2 * p.l2 * p.l2)), coupling(T(p.m2 * p.l1 * p.l2)),
          weight1(T((p.m1 + p.m2) * p.g * p.l1)), weight2(T(p.m2 * p.g * p.l2)) {}

    struct Inverse {
        V a, b, c;  // [[a, b], [b, c]]
    };

    // What project() solves: gaps as velocities, gradients (x, 0) and (x, y), M^-1 G' and the Delassus matrix there.
    struct Contacts {
        V gap[2], x, y, response[2][2], delassus[3];
    };

    Contacts linearise(const Inverse &inverse, const V *base, const V *increment, T scale, const V *jump) const {
        V s0, c0, s1, c1;
        sincos<T, W>(base[0] + (increment[0] + scale * jump[0]), s0, c0);
        sincos<T, W>(base[1] + (increment[1] + scale * jump[1]), s1, c1);
        Contacts k;
        const V joint = wall - l1 * s0;
        k.gap[0] = joint * (1 / scale);
        k.gap[1] = (joint - l2 * s1) * (1 / scale);
        k.x = -l1 * c0;
        k.y = -l2 * c1;
        k.response[0][0] = inverse.a * k.x;
        k.response[1][0] = inverse.b * k.x;
        k.response[0][1] = k.response[0][0] + inverse.b * k.y;
        k.response[1][1] = k.response[1][0] + inverse.c * k.y;
        k.delassus[0] = k.x * k.response[0][0];
        k.delassus[1] = k.x * k.response[0][1];
        k.delassus[2] = k.delassus[1] + k.y * k.response[1][1];
        return k;
    }

    // The active set of least violation among the four, impulses x of A x + b >= 0.
    static void solve(const V *a, V b0, V b1, V *impulse) {
        const V zero = b0 * 0;
        V best = larger<V>(-b0, -b1);
        V x0 = zero, x1 = zero;
        const auto consider = [&](V score, V y0, V y1) {
            const auto better = score < best;
            x0 = better ? y0 : x0;
            x1 = better ? y1 : x1;
            best = better ? score : best;
        };
        const V only0 = -b0 / a[0], only1 = -b1 / a[2];
        consider(larger<V>(b0, -(b1 + a[1] * only0)), only0, zero);
        consider(larger<V>(b1, -(b0 + a[1] * only1)), zero, only1);
        const V ratio = a[1] / a[0], pivot = a[2] - ratio * a[1];
        const auto regular = pivot > 64 * std::numeric_limits<T>::epsilon() * a[2];
        const V both1 = -(b1 - ratio * b0) / pivot, both0 = -(b0 + a[1] * both1) / a[0];
        const V worst = larger<V>(-a[0] * both0, -a[2] * both1);
        consider(regular ? worst : best, both0, both1);
        impulse[0] = larger<V>(x0, zero);
        impulse[1] = larger<V>(x1, zero);
    }

    // The velocity jump, from the point without one; lanes whose residual is small enough keep what they have.
    __attribute__((noinline)) void project(const Inverse &inverse, const V *base, const V *increment, T scale, V *jump) const {
        V impulse[2] = {base[0] * 0, base[0] * 0};
        jump[0] = jump[1] = base[0] * 0;
        Contacts k = linearise(inverse, base, increment, scale, jump);
        for (int iteration = 0; iteration < 50; iteration++) {
            const V mismatch = larger<V>(
                abs(k.response[0][0] * impulse[0] + k.response[0][1] * impulse[1] - jump[0]),
                abs(k.response[1][0] * impulse[0] + k.response[1][1] * impulse[1] - jump[1]));
            const V complementarity = larger<V>(abs(smaller<V>(k.gap[0], k.delassus[0] * impulse[0])),
                                                abs(smaller<V>(k.gap[1], k.delassus[2] * impulse[1])));
            const V sum0 = abs(k.x) * ((abs(base[0]) + abs(increment[0])) * (1 / scale) + abs(jump[0]));
            const V sum1 = abs(k.y) * ((abs(base[1]) + abs(increment[1])) * (1 / scale) + abs(jump[1]));
            const V size = larger<V>(sum0 + abs(k.gap[0]), sum0 + sum1 + abs(k.gap[1]));
            const V round_off = 32 * std::numeric_limits<T>::epsilon() * size;
            const auto open = larger<V>(mismatch, complementarity) > larger<V>(round_off, round_off * 0 + tolerance);
            if (!any(open)) return;
            V found[2];
            const V velocity = k.x * jump[0];
            solve(k.delassus, k.gap[0] - velocity, k.gap[1] - velocity - k.y * jump[1], found);
            for (int i = 0; i < 2; i++) {
                jump[i] = open ? k.response[i][0] * found[0] + k.response[i][1] * found[1] : jump[i];
                impulse[i] = open ? found[i] : impulse[i];
            }
            k = linearise(inverse, base, increment, scale, jump);
        }
    }

    inline void step(T scale, T keep, T kick, V *q, V *v) const {
        V s0, c0, s1, c1;
        sincos<T, W>(q[0], s0, c0);
        sincos<T, W>(q[1], s1, c1);
        const V off = coupling * (c0 * c1 + s0 * s1), coriolis = coupling * (s0 * c1 - c0 * s1);
        const V force0 = -coriolis * v[1] * v[1] - weight1 * s0, force1 = coriolis * v[0] * v[0] - weight2 * s1;
        const V inverse_determinant = 1 / (first * second - off * off), factor = kick * inverse_determinant;
        const V kick0 = factor * (second * force0 - off * force1), kick1 = factor * (first * force1 - off * force0);
        const V increment[2] = {scale * (keep * v[0] + kick0), scale * (keep * v[1] + kick1)};
        // sin is 1-Lipschitz: a gap larger than this cannot close
        const V reach = l1 * abs(increment[0]) + l2 * abs(increment[1]);
        const V joint = wall - l1 * s0;
        v[0] += kick0;
        v[1] += kick1;
        if (any(smaller<V>(joint, joint - l2 * s1) < reach)) {
            const Inverse inverse = {second * inverse_determinant, -off * inverse_determinant, first * inverse_determinant};
            V jump[2];
            project(inverse, q, increment, scale, jump);
            v[0] += jump[0];
            v[1] += jump[1];
        }
        q[0] += h * v[0];
        q[1] += h * v[1];
    }
};

template <class T, int W, int PACKS>
static void advance(const Pendulum &pendulum, long steps, T (*q)[W * PACKS], T (*v)[W * PACKS]) {
    typedef typename Pack<T, W>::real V;
    const Stepper<T, W> stepper(pendulum);
    V x[PACKS][2], u[PACKS][2];
    for (int k = 0; k < PACKS; k++)
        for (int i = 0; i < 2; i++) {
            memcpy(&x[k][i], q[i] + k * W, sizeof(V));
            memcpy(&u[k][i], v[i] + k * W, sizeof(V));
        }
    const T h = stepper.h, e = stepper.e;
    for (int k = 0; k < PACKS; k++) stepper.step(h, 1, h / 2, x[k], u[k]);
    for (long n = 1; n < steps; n++)
        for (int k = 0; k < PACKS; k++) stepper.step(h / (1 + e), 1 - e, h, x[k], u[k]);
    for (int k = 0; k < PACKS; k++)
        for (int i = 0; i < 2; i++) {
            memcpy(q[i] + k * W, &x[k][i], sizeof(V));
            memcpy(v[i] + k * W, &u[k][i], sizeof(V));
        }
}

template <class T> static void run(const Pendulum &pendulum, long lanes, long steps, int threads, T *q, T *v) {
    constexpr int W = 64 / sizeof(T), PACKS = 4;
    if (lanes == 1)
        advance<T, 1, 1>(pendulum, steps, (T(*)[1])q, (T(*)[1])v);
    else
        in_blocks<2, W * PACKS>(lanes, threads, q, v, [&](T(*x)[W * PACKS], T(*u)[W * PACKS]) {
            advance<T, W, PACKS>(pendulum, steps, x, u);
        });
}

// q and v (2, lanes), from the start to the end of the motion, in place
extern "C" void run_f64(const Pendulum *pendulum, long lanes, long steps, int threads, double *q, double *v) {
    run(*pendulum, lanes, steps, threads, q, v);
}
extern "C" void run_f32(const Pendulum *pendulum, long lanes, long steps, int threads, float *q, float *v) {
    run(*pendulum, lanes, steps, threads, q, v);
}
