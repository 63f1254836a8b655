// The expert every token goes to: its parts of the blocks of moe_gate_up and moe_down. Its weights
// are constant and loaded before the wait for the kernel before.
#pragma once

#include "moe_dot.cuh"

#define DOWN_TILE 8  // output rows of one block of moe_down

// gate_up of the shared expert for one pair of rows: inner[b] = silu(gate) * up.
template <int format>
__device__ __forceinline__ void shared_gate_up(const unsigned char* weight, const float* scales,
                                               int pair, int size, const float* normed,
                                               const int* positions, float* inner, int batch,
                                               int hidden, float (*sums)[2]) {
    const int lane = threadIdx.x % 32;
    constexpr int columns = format == FP32 ? 4 : format == FP16 ? 8 : 16;
    constexpr int loads = 4;
    const int n = hidden / columns;
    const bool live = pair < size;
    const unsigned char* gate = weight + static_cast<u64>(pair) * n * 16;
    const unsigned char* up = weight + static_cast<u64>(size + pair) * n * 16;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    for (int base = 0; base < n; base += 32 * loads) {
        uint4 w[2][loads];
#pragma unroll
        for (int c = 0; c < loads; ++c) {
            const int unit = base + c * 32 + lane;
            w[0][c] = live && unit < n ? load_16(gate + unit * 16) : zero;
            w[1][c] = live && unit < n ? load_16(up + unit * 16) : zero;
        }
        if (base == 0) {
            grid_dependency_wait();  // constant weights: loaded before
            grid_launch_dependents();
        }
        for (int b = 0; b < batch; ++b) {
            float sum[2] = {0.0f, 0.0f};
#pragma unroll
            for (int c = 0; c < loads; ++c) {
                const int unit = base + c * 32 + lane;
                if (unit >= n) continue;
                const float* x = normed + static_cast<u64>(b) * hidden + unit * columns;
                sum[0] += dot_16_bytes<format>(w[0][c], x);
                sum[1] += dot_16_bytes<format>(w[1][c], x);
            }
            sum[0] = warp_sum(sum[0]);
            sum[1] = warp_sum(sum[1]);
            if (lane == 0) {
                sums[b][0] = base == 0 ? sum[0] : sums[b][0] + sum[0];
                sums[b][1] = base == 0 ? sum[1] : sums[b][1] + sum[1];
            }
        }
    }
    __syncwarp();
    if (live && lane < batch && positions[lane] >= 0) {
        const float gate_scale = format == INT8 ? scales[pair] : 1.0f;
        const float up_scale = format == INT8 ? scales[size + pair] : 1.0f;
        inner[lane * size + pair] = silu(sums[lane][0] * gate_scale) * (sums[lane][1] * up_scale);
    }
}

// The shared expert's part of one block of moe_down: two output rows, half a warp each.
template <int format>
__device__ __forceinline__ void shared_down(const unsigned char* weight, const float* scales,
                                            int first, int size, const float* inner, int batch,
                                            float* outputs) {
    const int lane = threadIdx.x % 16, row = first + threadIdx.x % 32 / 16;
    constexpr int columns = format == FP32 ? 4 : format == FP16 ? 8 : 16;
    constexpr int loads = format == INT8 ? 2 : 4;
    const int n = size / columns;
    const unsigned char* source = weight + static_cast<u64>(row) * n * 16;
    for (int base = 0; base < n; base += 16 * loads) {
        uint4 w[loads];
#pragma unroll
        for (int c = 0; c < loads; ++c) {
            const int unit = base + c * 16 + lane;
            w[c] = unit < n ? load_16(source + unit * 16) : make_uint4(0, 0, 0, 0);
        }
        if (base == 0) grid_dependency_wait();  // constant weights: loaded before
        for (int b = 0; b < batch; ++b) {
            float sum = 0.0f;
#pragma unroll
            for (int c = 0; c < loads; ++c) {
                const int unit = base + c * 16 + lane;
                if (unit < n)
                    sum += dot_16_bytes<format>(
                        w[c], inner + static_cast<u64>(b) * size + unit * columns);
            }
#pragma unroll
            for (int offset = 8; offset > 0; offset /= 2)
                sum += __shfl_xor_sync(0xffffffffu, sum, offset);
            if (format == INT8) sum *= scales[row];
            float* output = outputs + b * DOWN_TILE + row % DOWN_TILE;
            if (lane == 0) *output = base == 0 ? sum : *output + sum;
        }
    }
}
