// Products of packed weights and fp32 inputs, 16 bytes of weights at a time. Knows no shapes.
//
// INT4 as in inference/checkpoint/int4.py. A lane multiplies 32 columns at a time; for that a row
// of n*32 inputs lies "packed": the float4 of columns 32 c + 4 q ... + 3 is number q n + c, so that
// a warp reads it coalesced, and its elements are scaled by 1, 16^-1, 16^-2, 16^-3: the nibbles of
// a word are multiplied in place, without shifts.
#pragma once

#include "common.cuh"

typedef unsigned long long u64;

#define FP32 0
#define FP16 1
#define INT8 2
#define BY_FORMAT(format, function, ...)                       \
    if (format == FP32) function<FP32>(__VA_ARGS__);           \
    else if (format == FP16) function<FP16>(__VA_ARGS__);      \
    else function<INT8>(__VA_ARGS__)


// Value of nibble t (0..3) of the low half of `word`, times 16^t: exact.
template <int t>
__device__ __forceinline__ float nibble(unsigned word) {
    const unsigned bits = (word & (0xfu << (4 * t))) | 0x4b000000u;
    return __uint_as_float(bits) - (8388608.0f + static_cast<float>(8 << (4 * t)));
}

__device__ __forceinline__ float four(unsigned word, float4 x, float sum) {
    sum += nibble<0>(word) * x.x;
    sum += nibble<1>(word) * x.y;
    sum += nibble<2>(word) * x.z;
    return sum + nibble<3>(word) * x.w;
}

// 16 INT4 weights times 16 packed inputs, onto `sum`.
__device__ __forceinline__ float dot_16(unsigned first, unsigned second, const float4* x,
                                        float sum) {
    sum = four(first, x[0], sum);
    sum = four(first >> 16, x[1], sum);
    sum = four(second, x[2], sum);
    return four(second >> 16, x[3], sum);
}

// Half `half` (16 columns) of packed inputs of unit `column`.
__device__ __forceinline__ void load_packed(float4* x, const float* row, int n, int column,
                                            int half) {
#pragma unroll
    for (int q = 0; q < 4; ++q)
        x[q] = reinterpret_cast<const float4*>(row)[(half * 4 + q) * n + column];
}

// Where column `i` of a packed row of n*32 lies, and its factor.
__device__ __forceinline__ int packed_index(int i, int n) {
    return ((i % 32 / 4) * n + i / 32) * 4 + i % 4;
}
__device__ __forceinline__ float packed_factor(int i) {
    return __uint_as_float((127u - 4u * (i % 4)) << 23);  // 16^-(i % 4)
}

__device__ __forceinline__ float int8_at(unsigned word, int byte) {
    const unsigned biased = (word ^ 0x80808080u) >> (8 * byte) & 0xffu;
    return __uint_as_float(biased | 0x4b000000u) - 8388736.0f;
}

// 16 bytes of weights (4, 8 or 16 columns) times as many inputs.
template <int format>
__device__ __forceinline__ float dot_16_bytes(uint4 w, const float* x) {
    const float4* in = reinterpret_cast<const float4*>(x);
    const float4 a = in[0];
    float sum = 0.0f;
    if (format == FP32)
        return __uint_as_float(w.x) * a.x + __uint_as_float(w.y) * a.y +
               __uint_as_float(w.z) * a.z + __uint_as_float(w.w) * a.w;
    const float4 b = in[1];
    if (format == FP16) {
        const float2 p = half2_to_float2(w.x), q = half2_to_float2(w.y);
        const float2 r = half2_to_float2(w.z), s = half2_to_float2(w.w);
        sum = p.x * a.x + p.y * a.y + q.x * a.z + q.y * a.w;
        return sum + (r.x * b.x + r.y * b.y + s.x * b.z + s.y * b.w);
    }
    const float4 c = in[2], d = in[3];
    sum = int8_at(w.x, 0) * a.x + int8_at(w.x, 1) * a.y + int8_at(w.x, 2) * a.z +
          int8_at(w.x, 3) * a.w;
    sum += int8_at(w.y, 0) * b.x + int8_at(w.y, 1) * b.y + int8_at(w.y, 2) * b.z +
           int8_at(w.y, 3) * b.w;
    sum += int8_at(w.z, 0) * c.x + int8_at(w.z, 1) * c.y + int8_at(w.z, 2) * c.z +
           int8_at(w.z, 3) * c.w;
    return sum + (int8_at(w.w, 0) * d.x + int8_at(w.w, 1) * d.y + int8_at(w.w, 2) * d.z +
                  int8_at(w.w, 3) * d.w);
}
