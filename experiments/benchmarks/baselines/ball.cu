// Bouncing ball by the scheme of Paoli and Schatzman, as ball.cpp: a thread of an NVIDIA GPU for each lane, all steps in it.

#include <cuda_runtime.h>

template <class T> __global__ void advance(T h, T e, T g, long lanes, long steps, T *q, T *v) {
    const long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i >= lanes) return;
    T x = q[i], u = v[i];
    const T kick = -h * g, scale = h / (1 + e), rebound = 1 + e;
    u = max(u + kick / 2, -x / h);
    x = (x + h * u) / scale;
    for (long n = 1; n < steps; n++) {
        u = max(u + kick, e * u - x);
        x += rebound * u;
    }
    q[i] = x * scale;
    v[i] = u;
}

// q and v (lanes,) of the host, from the start to the end of the motion, in place; the time of the kernel alone [ms], negative
// where it failed
template <class T> static float run(const double *ball, long lanes, long steps, T *q, T *v) {
    const size_t size = lanes * sizeof(T);
    T *x, *u;
    cudaEvent_t begin, end;
    float time = -1;
    cudaMalloc(&x, size), cudaMalloc(&u, size);
    cudaMemcpy(x, q, size, cudaMemcpyHostToDevice), cudaMemcpy(u, v, size, cudaMemcpyHostToDevice);
    cudaEventCreate(&begin), cudaEventCreate(&end);
    cudaEventRecord(begin);
    advance<T><<<(lanes + 127) / 128, 128>>>(T(ball[0]), T(ball[1]), T(ball[2]), lanes, steps, x, u);
    cudaEventRecord(end), cudaEventSynchronize(end);
    cudaMemcpy(q, x, size, cudaMemcpyDeviceToHost), cudaMemcpy(v, u, size, cudaMemcpyDeviceToHost);
    if (cudaGetLastError() == cudaSuccess) cudaEventElapsedTime(&time, begin, end);
    cudaFree(x), cudaFree(u);
    cudaEventDestroy(begin), cudaEventDestroy(end);
    return time;
}

// ball: h, e, g
extern "C" float run_f64(const double *ball, long lanes, long steps, double *q, double *v) { return run(ball, lanes, steps, q, v); }
extern "C" float run_f32(const double *ball, long lanes, long steps, float *q, float *v) { return run(ball, lanes, steps, q, v); }
