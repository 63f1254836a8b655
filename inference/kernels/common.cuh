// What every kernel may use: conversions, reductions, 16-byte accesses, the tensor core, and the
// two calls of programmatic dependent launch. Needs no header of the CUDA toolkit. With
// HUTONG_EMULATED the same names come from a header that runs a kernel on the CPU.
#pragma once

#ifdef HUTONG_EMULATED
#include "emulation.h"
#else

// Names the dynamic shared memory of the block; 16-byte aligned.
#define DYNAMIC_SHARED(type, name)                                  \
    extern __shared__ __align__(16) unsigned char dynamic_shared[]; \
    type* name = reinterpret_cast<type*>(dynamic_shared)

// Waits until all kernels before this one in the stream are done and their writes are visible.
// Every thread calls it before it reads what they wrote and before it writes anything.
__device__ __forceinline__ void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Allows the next kernel to start what it does before its own grid_dependency_wait().
__device__ __forceinline__ void grid_launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ unsigned long long global_timer_ns() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

__device__ __forceinline__ float half_to_float(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// Rounds to the nearest half, ties to even.
__device__ __forceinline__ unsigned short float_to_half(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// 16 bytes from a 16-byte aligned address.
__device__ __forceinline__ uint4 load_16(const void* address) {
    return *reinterpret_cast<const uint4*>(address);
}

__device__ __forceinline__ void store_16(void* address, uint4 value) {
    *reinterpret_cast<uint4*>(address) = value;
}

// d += a @ b of one warp: a 16 x 16 (row-major) and b 16 x 8 (column-major) of halves, d fp32.
// With group = lane / 4 and pair = lane % 4, a lane holds
//   a[0], a[1]: rows group, group + 8 at columns 2 pair, 2 pair + 1 (low half first);
//   a[2], a[3]: the same rows at columns 2 pair + 8, 2 pair + 9;
//   b[0], b[1]: column group at rows 2 pair, 2 pair + 1 and 2 pair + 8, 2 pair + 9;
//   d[0], d[1]: row group, d[2], d[3]: row group + 8, at columns 2 pair, 2 pair + 1.
__device__ __forceinline__ void mma_16x8x16(float d[4], const unsigned a[4], const unsigned b[2]) {
#if __CUDA_ARCH__ >= 800
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]));
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[2]), "r"(a[3]), "r"(b[1]));
#endif
}

#endif  // HUTONG_EMULATED

__device__ __forceinline__ float2 half2_to_float2(unsigned bits) {
    return make_float2(half_to_float(static_cast<unsigned short>(bits & 0xffffu)),
                       half_to_float(static_cast<unsigned short>(bits >> 16)));
}

// `low` goes into the low half.
__device__ __forceinline__ unsigned float2_to_half2(float low, float high) {
    return static_cast<unsigned>(float_to_half(low)) |
           (static_cast<unsigned>(float_to_half(high)) << 16);
}

// a * b + c of two halves each.
__device__ __forceinline__ unsigned half2_fma(unsigned a, unsigned b, unsigned c) {
#ifdef HUTONG_EMULATED
    const float2 x = half2_to_float2(a), y = half2_to_float2(b), z = half2_to_float2(c);
    return float2_to_half2(x.x * y.x + z.x, x.y * y.y + z.y);
#else
    unsigned d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
#endif
}

// Word `i` of four.
__device__ __forceinline__ unsigned word_of(uint4 v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

__device__ __forceinline__ float bf16_to_float(unsigned short bits) {
    return __uint_as_float(static_cast<unsigned>(bits) << 16);
}

// Sum over the warp, the same in every lane.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

// Maximum over the warp, the same in every lane.
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}

// Sum over a one-dimensional block of a multiple of 32 threads, the same in every thread.
// `scratch` is shared memory of 33 floats; all threads of the block call it.
__device__ __forceinline__ float block_sum(float value, float* scratch) {
    const int lane = threadIdx.x % 32;
    const int warps = blockDim.x / 32;
    value = warp_sum(value);
    __syncthreads();  // scratch may still be read by the call before
    if (lane == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    return warp_sum(lane < warps ? scratch[lane] : 0.0f);
}

// Maximum over the block; like block_sum.
__device__ __forceinline__ float block_max(float value, float* scratch) {
    const int lane = threadIdx.x % 32;
    const int warps = blockDim.x / 32;
    value = warp_max(value);
    __syncthreads();  // scratch may still be read by the call before
    if (lane == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    return warp_max(scratch[lane < warps ? lane : 0]);
}

__device__ __forceinline__ float sigmoid(float value) { return 1.0f / (1.0f + expf(-value)); }

__device__ __forceinline__ float silu(float value) { return value / (1.0f + expf(-value)); }

// log(1 + exp(value)); as in torch, the value itself above 20.
__device__ __forceinline__ float softplus(float value) {
    return value > 20.0f ? value : log1pf(expf(value));
}
