// What linear.cu and linear_rows.cu share: the arguments of a product and the end of one output.
#pragma once

#include "common.cuh"

constexpr int kMaxBatch = 8;

struct Problem {
    const float* x;               // [batch, columns]
    const float* norm;            // [columns], or null: x as it is
    const unsigned char* weight;  // [rows, columns] in the format
    const void* scales;           // int8: fp32 [rows]; int4: fp16 [rows, columns / group_size]
    const int* mask;              // [batch, ceil(rows / 32)], a zero bit gives -inf; or null
    float* out;                   // [batch, rows]
    int batch, rows, columns, group_size;
    float eps;
    int zero_centred, accumulate;
};

// What one output needs besides its sum: out = previous + sum * scale. Fetched while the products
// run. Masked out, `previous` is -inf.
template <bool kRowScales>
struct Output {
    float previous, scale;

    __device__ __forceinline__ void fetch(const Problem& p, int b, int row) {
        previous = p.accumulate ? p.out[b * p.rows + row] : 0.0f;
        if (kRowScales) scale = static_cast<const float*>(p.scales)[row];
        if (p.mask == nullptr) return;
        if (p.mask[b * ((p.rows + 31) / 32) + row / 32] >> (row % 32) & 1) return;
        previous = __uint_as_float(0xff800000u);
    }
    __device__ __forceinline__ void store(const Problem& p, int b, int row, float sum,
                                          float squares) const {
        if (p.norm != nullptr) sum *= rsqrtf(squares / static_cast<float>(p.columns) + p.eps);
        p.out[b * p.rows + row] = previous + (kRowScales ? sum * scale : sum);
    }
};

// Defines a kernel with the arguments of a Problem, for blocks of up to `threads`.
#define KERNEL(name, threads, body)                                                              \
    extern "C" __global__ void __launch_bounds__(threads, 1) name(                                \
        const float* x, const float* norm, const unsigned char* weight, const void* scales,      \
        const int* mask, float* out, int batch, int rows, int columns, int group_size, float eps, \
        int zero_centred, int accumulate) {                                                      \
        const Problem problem = {x,    norm, weight,  scales,     mask, out,          batch,      \
                                 rows, columns, group_size, eps,  zero_centred, accumulate};     \
        body(problem);                                                                           \
    }
