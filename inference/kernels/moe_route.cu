// Router of one layer on the device: the logits, and everything decided from them without the
// host. Knows slots by their number only; the arithmetic of experts is in moe_experts.cu.
#include "common.cuh"

typedef unsigned long long u64;

#define ROUTE_THREADS 256
#define ROUTE_ROWS 4      // router rows of one block, two warps each

// Logits of the router, of the shared expert's gate and of the next layer's router in one launch.
//
// x [batch, hidden]; router [experts, hidden], shared_gate [hidden] or null, next_router
// [next_experts, hidden] or null: fp32. Writes the normed rows as they are (`normed`) and in the
// order and scale in which moe_gate_up multiplies them with INT4 words (`packed`, see there).
extern "C" __global__ void __launch_bounds__(ROUTE_THREADS)
moe_route(const float* x, const float* norm, const float* router, const float* shared_gate,
          const float* next_router, float* normed, float* packed, float* logits,
          float* shared_logits, float* next_logits, int batch, int hidden, int experts,
          int next_experts, float eps, int zero_centred) {
    DYNAMIC_SHARED(float, row_shared);  // hidden floats
    __shared__ float scratch[33];
    __shared__ float halves[ROUTE_ROWS][2];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int local = warp / 2, half = warp % 2;
    const int gates = shared_gate != nullptr ? 1 : 0;
    const int row = blockIdx.x * ROUTE_ROWS + local;
    const int units = hidden / 4;
    const float* weights = nullptr;
    if (row < experts) weights = router + static_cast<u64>(row) * hidden;
    else if (row < experts + gates) weights = shared_gate;
    else if (row < experts + gates + next_experts)
        weights = next_router + static_cast<u64>(row - experts - gates) * hidden;

    // Constant weights: on their way before the kernel before this one is done.
    float4 first[8];
#pragma unroll
    for (int t = 0; t < 8; ++t) {
        const int unit = half * 32 + lane + t * 64;
        first[t] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (weights != nullptr && unit < units)
            first[t] = reinterpret_cast<const float4*>(weights)[unit];
    }
    const float offset = zero_centred != 0 ? 1.0f : 0.0f;
    float4 norms[2];
#pragma unroll
    for (int t = 0; t < 2; ++t) {
        const int unit = threadIdx.x + t * ROUTE_THREADS;
        norms[t] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (norm != nullptr && unit < units) norms[t] = reinterpret_cast<const float4*>(norm)[unit];
    }
    grid_dependency_wait();
    grid_launch_dependents();  // not before: moe_select relies on it

    for (int b = 0; b < batch; ++b) {
        const float4* source = reinterpret_cast<const float4*>(x + static_cast<u64>(b) * hidden);
        float squares = 0.0f;
        for (int unit = threadIdx.x; unit < units; unit += ROUTE_THREADS) {
            const float4 v = source[unit];
            squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        }
        float scale = 1.0f;
        if (norm != nullptr) {
            squares = block_sum(squares, scratch);
            scale = rsqrtf(squares / static_cast<float>(hidden) + eps);
        }
        __syncthreads();  // the row before may still be read
        for (int unit = threadIdx.x; unit < units; unit += ROUTE_THREADS) {
            float4 v = source[unit];
            if (norm != nullptr) {
                float4 n = unit < ROUTE_THREADS ? norms[0] : norms[1];
                if (unit >= 2 * ROUTE_THREADS) n = reinterpret_cast<const float4*>(norm)[unit];
                v.x = v.x * scale * (n.x + offset);
                v.y = v.y * scale * (n.y + offset);
                v.z = v.z * scale * (n.z + offset);
                v.w = v.w * scale * (n.w + offset);
            }
            reinterpret_cast<float4*>(row_shared)[unit] = v;
            if (blockIdx.x == 0) {
                float* plain = normed + static_cast<u64>(b) * hidden;
                float* order = packed + static_cast<u64>(b) * hidden;
                reinterpret_cast<float4*>(plain)[unit] = v;
                const int column = unit / 8, quarter = unit % 8;
                reinterpret_cast<float4*>(order)[quarter * (hidden / 32) + column] =
                    make_float4(v.x, v.y * 0.0625f, v.z * 0.00390625f, v.w * 0.000244140625f);
            }
        }
        __syncthreads();
        float sum = 0.0f;
        if (weights != nullptr) {
#pragma unroll
            for (int t = 0; t < 8; ++t) {
                const int unit = half * 32 + lane + t * 64;
                if (unit < units) {
                    const float4 v = reinterpret_cast<const float4*>(row_shared)[unit];
                    sum += first[t].x * v.x + first[t].y * v.y + first[t].z * v.z +
                           first[t].w * v.w;
                }
            }
            for (int unit = half * 32 + lane + 512; unit < units; unit += 64) {
                const float4 w = reinterpret_cast<const float4*>(weights)[unit];
                const float4 v = reinterpret_cast<const float4*>(row_shared)[unit];
                sum += w.x * v.x + w.y * v.y + w.z * v.z + w.w * v.w;
            }
        }
        sum = warp_sum(sum);
        if (lane == 0) halves[local][half] = sum;
        __syncthreads();
        if (weights != nullptr && half == 0 && lane == 0) {
            const float logit = halves[local][0] + halves[local][1];
            if (row < experts) logits[b * experts + row] = logit;
            else if (row < experts + gates) shared_logits[b] = logit;
            else next_logits[b * next_experts + row - experts - gates] = logit;
        }
    }
}
