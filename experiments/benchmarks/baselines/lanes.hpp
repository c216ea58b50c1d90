// Packs of lanes: the arithmetic of one trajectory, written once, for a scalar or for a SIMD register of trajectories.
//
// Pack<T, W> is T for W = 1 and a vector of W lanes beyond (GCC and Clang vector extensions); operators and ?: work
// lane by lane on both.

#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

template <class T> struct Bits;
template <> struct Bits<double> { typedef int64_t type; };
template <> struct Bits<float> { typedef int32_t type; };

template <class T, int W> struct Pack {
    typedef T real __attribute__((vector_size(W * sizeof(T))));
    typedef typename Bits<T>::type bits __attribute__((vector_size(W * sizeof(T))));
};
template <class T> struct Pack<T, 1> {
    typedef T real;
    typedef typename Bits<T>::type bits;
};

template <class V> static inline V larger(V a, V b) { return a > b ? a : b; }
template <class V> static inline V smaller(V a, V b) { return a < b ? a : b; }

static inline bool any(bool mask) { return mask; }
template <class M> static inline bool any(M mask) {
#ifdef __AVX512F__
    if constexpr (sizeof(M) == 64) return _mm512_test_epi64_mask((__m512i)mask, (__m512i)mask) != 0;
#endif
    int64_t found = 0, words[sizeof(M) / 8];
    memcpy(words, &mask, sizeof(M));
    for (int64_t word : words) found |= word;
    return found != 0;
}

template <class To, class From> static inline To as(From x) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To y;
    memcpy(&y, &x, sizeof(To));
    return y;
}

template <class T, int W> static inline typename Pack<T, W>::real magnitude(typename Pack<T, W>::real x) {
    typedef typename Pack<T, W>::bits I;
    return as<typename Pack<T, W>::real>(as<I>(x) & std::numeric_limits<typename Bits<T>::type>::max());
}

// Constants of sincos: Cody and Waite's split of pi/2, and polynomials in the Chebyshev nodes of [-pi/4, pi/4],
// sin r = r + r^3 S(r^2) and cos r = 1 - r^2/2 + r^4 C(r^2).
template <class T> struct Trig;
template <> struct Trig<double> {
    static constexpr double two_over_pi = 0x1.45f306dc9c883p-1;
    static constexpr double half_pi[] = {0x1.921fb54400000p+0, 0x1.0b4611a626331p-34};
    static constexpr double sine[] = {0x1.5e0b19f8b1451p-33,  -0x1.ae600b02b6262p-26, 0x1.71de37968a100p-19,
                                      -0x1.a01a019e83aaep-13, 0x1.1111111110bb2p-7,   -0x1.5555555555555p-3};
    static constexpr double cosine[] = {-0x1.907da367a37cbp-37, 0x1.1eeb68e93b64cp-29,  -0x1.27e4fa17da09ep-22,
                                        0x1.a01a019f4eb01p-16,  -0x1.6c16c16c16967p-10, 0x1.5555555555555p-5};
};
template <> struct Trig<float> {
    static constexpr float two_over_pi = 0.636619747f;
    static constexpr float half_pi[] = {1.5703125f, 4.83826795e-4f};
    static constexpr float sine[] = {-1.95878907e-4f, 8.33274797e-3f, -0.166666642f};
    static constexpr float cosine[] = {2.45479423e-5f, -1.38883025e-3f, 0.0416666642f};
};

// A polynomial in z, highest coefficient first, two terms at a time: half as long a chain as one by one.
template <class V, class T, int N> static inline V polynomial(const T (&a)[N], V z, V square) {
    constexpr int odd = N % 2;
    V p = odd ? z * 0 + a[0] : z * a[0] + a[1];
    for (int k = 2 - odd; k < N; k += 2) p = p * square + (z * a[k] + a[k + 1]);
    return p;
}

// Both sin x and cos x, to an error below the machine epsilon for |x| < 1e5 (float: 1e3).
template <class T, int W>
static inline void sincos(typename Pack<T, W>::real x, typename Pack<T, W>::real &sine, typename Pack<T, W>::real &cosine) {
    typedef typename Pack<T, W>::real V;
    typedef typename Pack<T, W>::bits I;
    typedef Trig<T> K;
    // adding 1.5 * 2^(digits - 1) leaves the nearest whole number in the lowest bits
    const T shift = T(1.5) / std::numeric_limits<T>::epsilon();
    const V shifted = x * K::two_over_pi + shift, n = shifted - shift;
    const V r = (x - n * K::half_pi[0]) - n * K::half_pi[1];
    const V z = r * r, square = z * z;
    const V s = r + (r * z) * polynomial<V>(K::sine, z, square);
    const V c = (1 - z * T(0.5)) + square * polynomial<V>(K::cosine, z, square);
    // odd quadrants swap the two, the second bit turns signs
    const int to_sign = 8 * sizeof(T) - 2;
    const auto sign_bit = std::numeric_limits<typename Bits<T>::type>::min();
    const I quadrant = as<I>(shifted);
    const auto odd = (quadrant & 1) != 0;
    sine = as<V>(as<I>(V(odd ? c : s)) ^ ((quadrant << to_sign) & sign_bit));
    cosine = as<V>(as<I>(V(odd ? s : c)) ^ (((quadrant + 1) << to_sign) & sign_bit));
}

// Calls advance(q, v) on blocks q[D][LANES], v[D][LANES] of arrays (D, lanes); the last block repeats its last lane.
template <int D, int LANES, class T, class Advance>
static void in_blocks(long lanes, int threads, T *q, T *v, Advance advance) {
    const long blocks = (lanes + LANES - 1) / LANES;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4) if (threads > 1)
    for (long block = 0; block < blocks; block++) {
        alignas(64) T x[D][LANES], u[D][LANES];
        const long first = block * LANES;
        const int count = lanes - first < LANES ? int(lanes - first) : LANES;
        for (int i = 0; i < D; i++)
            for (int l = 0; l < LANES; l++) {
                const long from = i * lanes + first + (l < count ? l : count - 1);
                x[i][l] = q[from];
                u[i][l] = v[from];
            }
        advance(x, u);
        for (int i = 0; i < D; i++) {
            memcpy(q + i * lanes + first, x[i], count * sizeof(T));
            memcpy(v + i * lanes + first, u[i], count * sizeof(T));
        }
    }
}
