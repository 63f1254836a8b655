// Orders that moe_select needs: top-k of one row by one warp, with the noise that may be added
// before, and the least valued slots by the block. Knows no tables.
#pragma once

#include "common.cuh"

#define MAX_EXPERTS 512
#define MAX_WORDS 16  // 32 experts each
#define SELECT_THREADS 256
#define MAX_PAIRS 128  // (row of the batch, rank)
#define INELIGIBLE 3.0e38f

__device__ __forceinline__ unsigned mixed(unsigned hash, unsigned value) {
    hash ^= value * 0x9e3779b9u + 0x7f4a7c15u;
    hash ^= hash >> 16;
    hash *= 0x85ebca6bu;
    hash ^= hash >> 13;
    hash *= 0xc2b2ae35u;
    return hash ^ (hash >> 16);
}

// Gumbel noise of one logit, that of inference/moe/router.py: it depends on the arguments only, so
// a token gets the same alone and in a batch.
__device__ __forceinline__ float gumbel(unsigned seed, int layer, int position, int expert) {
    const unsigned hash = mixed(mixed(mixed(seed, layer), position), expert);
    const float uniform = (static_cast<float>(hash >> 9) + 0.5f) * 1.1920928955078125e-07f;
    return -logf(-logf(uniform));
}

// Maximum and minimum over the warp in one instruction where there is one.
__device__ __forceinline__ unsigned warp_max_bits(unsigned value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    unsigned result;
    asm("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(result) : "r"(value));
    return result;
#else
    for (int offset = 16; offset > 0; offset /= 2)
        value = max(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
#endif
}
__device__ __forceinline__ unsigned warp_min_bits(unsigned value) {
    return ~warp_max_bits(~value);
}

// Integers in the order of the floats, all above 0, and back.
__device__ __forceinline__ unsigned ordered_bits(float value) {
    const unsigned bits = __float_as_uint(value + 0.0f);  // -0 equals 0
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered_bits(unsigned bits) {
    return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

// Lane r of the warp gets the r-th largest logit and its id, lowest id first among equals.
// Lane j holds the logits of experts 32 i + j in `v[i]`; there are at least k experts.
__device__ __forceinline__ void warp_top_k(const float* v, int words, int experts, int k, int* id,
                                           float* value) {
    const int lane = threadIdx.x % 32;
    unsigned bits[MAX_WORDS];  // 0: chosen already, or no expert
#pragma unroll
    for (int i = 0; i < MAX_WORDS; ++i)
        bits[i] = i * 32 + lane < experts ? ordered_bits(v[i]) : 0u;
    // What is left of a lane: its largest, and where. Only the lane that gave one looks again.
    unsigned most = 0;
    int word = 0;
#pragma unroll
    for (int i = MAX_WORDS - 1; i >= 0; --i)
        if (i < words && bits[i] >= most) most = bits[i], word = i;
    for (int r = 0; r < k; ++r) {
        const unsigned best = warp_max_bits(most);
        const unsigned best_id = warp_min_bits(most == best ? word * 32 + lane : MAX_EXPERTS);
        if (best_id % 32 == static_cast<unsigned>(lane)) {
            const int taken = word;
            most = 0, word = 0;
#pragma unroll
            for (int i = MAX_WORDS - 1; i >= 0; --i) {
                if (i == taken) bits[i] = 0;
                if (i < words && bits[i] >= most) most = bits[i], word = i;
            }
        }
        if (lane == r) {
            *id = static_cast<int>(best_id);
            *value = from_ordered_bits(best);
        }
    }
}

// Bits of the chosen experts: lane i gets word i.
__device__ __forceinline__ unsigned words_of(int id, int k) {
    const int lane = threadIdx.x % 32;
    unsigned word = 0;
    for (int r = 0; r < k; ++r) {
        const int other = __shfl_sync(0xffffffffu, id, r);
        if (other / 32 == lane) word |= 1u << (other % 32);
    }
    return word;
}

// Finite logits whatever the weights gave, so that k experts are always found.
__device__ __forceinline__ float bounded(float logit) {
    return logit >= -1.0e38f ? fminf(logit, 1.0e38f) : -1.0e38f;
}

// The `wanted` slots of least value, least first and by number among equals, into `victims`;
// -1 where there is none. `values` goes on with INELIGIBLE to a multiple of four. All threads of
// the block call it.
__device__ __forceinline__ void least_slots(const float* values, int count, int wanted,
                                            int* victims) {
    if (threadIdx.x < MAX_PAIRS) victims[threadIdx.x] = -1;
    __syncthreads();
    for (int slot = threadIdx.x; slot < count; slot += SELECT_THREADS) {
        const float value = values[slot];
        if (value >= INELIGIBLE) continue;
        int rank = 0;
        for (int four = 0; four < (count + 3) / 4; ++four) {
            const float4 theirs = reinterpret_cast<const float4*>(values)[four];
            const int to_slot = slot - four * 4;
            rank += theirs.x < value || (theirs.x == value && 0 < to_slot) ? 1 : 0;
            rank += theirs.y < value || (theirs.y == value && 1 < to_slot) ? 1 : 0;
            rank += theirs.z < value || (theirs.z == value && 2 < to_slot) ? 1 : 0;
            rank += theirs.w < value || (theirs.w == value && 3 < to_slot) ? 1 : 0;
        }
        if (rank < wanted) victims[rank] = slot;
    }
    __syncthreads();
}
