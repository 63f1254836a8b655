// Small kernels for the tests of the libraries that launch kernels; some break rules on purpose.
#include "common.cuh"

#define PROLOGUE()          \
    grid_dependency_wait(); \
    grid_launch_dependents()

// out[block] = sum of values[block * count ...], with dynamic shared memory as scratch.
extern "C" __global__ void __launch_bounds__(1024)
    sum_rows(const float* __restrict__ values, float* out, int count) {
    PROLOGUE();
    DYNAMIC_SHARED(float, scratch);
    float sum = 0.0f;
    for (int i = threadIdx.x; i < count; i += blockDim.x) sum += values[blockIdx.x * count + i];
    sum = block_sum(sum, scratch);
    const float largest = block_max(sum + threadIdx.x, scratch);
    if (threadIdx.x == 0) {
        out[2 * blockIdx.x] = sum;
        out[2 * blockIdx.x + 1] = largest;
    }
}

// Five shuffles, a ballot and two votes of one warp: out [8, 32].
extern "C" __global__ void shuffles(const int* values, int* out) {
    PROLOGUE();
    const int lane = threadIdx.x;
    const int value = values[lane];
    out[lane] = __shfl_sync(0xffffffffu, value, 5);
    out[32 + lane] = __shfl_xor_sync(0xffffffffu, value, 3);
    out[64 + lane] = __shfl_up_sync(0xffffffffu, value, 2);
    out[96 + lane] = __shfl_down_sync(0xffffffffu, value, 4, 16);
    out[128 + lane] = static_cast<int>(__ballot_sync(0xffffffffu, value % 3 == 0));
    out[160 + lane] = __any_sync(0xffffffffu, value == 7) + 2 * __all_sync(0xffffffffu, value >= 0);
    unsigned long long wide = (static_cast<unsigned long long>(value) << 32) | lane;
    if (lane < 16) wide = __shfl_xor_sync(0x0000ffffu, wide, 1);
    out[192 + lane] = static_cast<int>(wide >> 32);
    __syncwarp();
    out[224 + lane] = static_cast<int>(__shfl_sync(0xffffffffu, 0.5f * value, lane ^ 31) * 2.0f);
}

// d [16, 8] = a [16, 16] @ b [16, 8] with halves in memory, b column-major.
extern "C" __global__ void multiply(const unsigned* a, const unsigned* b, float* d) {
    PROLOGUE();
    const int group = threadIdx.x / 4, pair = threadIdx.x % 4;
    const unsigned a_part[4] = {a[group * 8 + pair], a[(group + 8) * 8 + pair],
                                a[group * 8 + pair + 4], a[(group + 8) * 8 + pair + 4]};
    const unsigned b_part[2] = {b[group * 8 + pair], b[group * 8 + pair + 4]};
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    mma_16x8x16(sums, a_part, b_part);
    for (int i = 0; i < 4; ++i) d[(group + 8 * (i / 2)) * 8 + 2 * pair + i % 2] = sums[i];
}

// A histogram, the extrema, and a compare-and-swap that exactly one thread wins.
extern "C" __global__ void count(const int* values, int* histogram, int* extrema,
                                 unsigned long long* total, int* winner, int size) {
    PROLOGUE();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= size) return;
    atomicAdd(&histogram[values[i]], 1);
    atomicMin(&extrema[0], values[i]);
    atomicMax(&extrema[1], values[i]);
    atomicAdd(total, static_cast<unsigned long long>(values[i]));
    atomicCAS(winner, -1, i);
}

// The last block to draw a ticket sums what the others left, in their order.
extern "C" __global__ void last_block(const float* values, float* partial, unsigned* ticket,
                                      float* out) {
    PROLOGUE();
    __shared__ float scratch[33];
    __shared__ bool last;
    const float sum = block_sum(values[blockIdx.x * blockDim.x + threadIdx.x], scratch);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
        __threadfence();
        last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    if (threadIdx.x == 0) {
        float all = 0.0f;
        for (unsigned i = 0; i < gridDim.x; ++i) all += partial[i];
        *out = all;
        *ticket = 0u;
    }
}

extern "C" __global__ void halves(const float* values, unsigned short* bits, float* back, int n) {
    PROLOGUE();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    bits[i] = float_to_half(values[i]);
    back[i] = half_to_float(bits[i]);
}

extern "C" __global__ void widen(float* halves, float* bfloats) {
    PROLOGUE();
    const unsigned bits = blockIdx.x * blockDim.x + threadIdx.x;
    const float2 both = half2_to_float2((bits ^ 1u) << 16 | bits);
    halves[bits] = both.x;
    if (both.y != half_to_float(static_cast<unsigned short>(bits ^ 1u)) && both.y == both.y)
        halves[bits] = 12345.0f;
    bfloats[bits] = bf16_to_float(static_cast<unsigned short>(bits));
}

// Shared memory of a template, filled before it is read through a barrier of 3-d blocks.
template <int N>
__device__ int rotate(int value) {
    __shared__ int cells[N];
    cells[value] = value;
    __syncthreads();
    return cells[(value + 33) % N];
}
extern "C" __global__ void three_dimensions(int* out, const int* addend, float scale) {
    PROLOGUE();
    const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const int add = addend == nullptr ? 0 : *addend;
    out[block * 64 + thread] = rotate<64>(thread) + add + static_cast<int>(scale * block);
}

extern "C" __global__ void copy_16(const unsigned char* from, unsigned char* to,
                                   unsigned long long offset) {
    PROLOGUE();
    store_16(to, load_16(from + offset));
}

// Wrong unless the launch before it is done: cells[i] = cells[i + 1] + 1, in a ring of the grid.
extern "C" __global__ void pass_on(const int* from, int* to, int size) {
    PROLOGUE();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < size) to[i] = from[(i + 1) % size] + 1;
}

extern "C" __global__ void unwritten_shared(float* out) {
    PROLOGUE();
    __shared__ float cells[32];
    DYNAMIC_SHARED(float, more);
    out[2 * threadIdx.x] = cells[threadIdx.x];
    out[2 * threadIdx.x + 1] = more[threadIdx.x];
    cells[threadIdx.x] = 1.0f;
    more[threadIdx.x] = 1.0f;
}

extern "C" __global__ void spin(int* flag) {
    PROLOGUE();
    while (atomicAdd(flag, 0) == 0) {
    }
}

#ifdef HUTONG_EMULATED
extern "C" __global__ void missing_barrier(int* out) {
    PROLOGUE();
    __shared__ int cell;
    if (threadIdx.x == 0) cell = 7;
    if (threadIdx.x == 32) *out = cell;
}

extern "C" __global__ void divergent_barrier() {
    PROLOGUE();
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
}

extern "C" __global__ void half_a_warp() {
    PROLOGUE();
    if (threadIdx.x < 16)
        __shfl_sync(0xffffffffu, 1, 0);
    else
        __syncthreads();
}

extern "C" __global__ void outside_mask(int* out) {
    PROLOGUE();
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0x0000ffffu, 1, 20);
}

extern "C" __global__ void no_wait(int* out) {
    if (threadIdx.x != 3) grid_dependency_wait();
}

extern "C" __global__ void overrun() {
    PROLOGUE();
    DYNAMIC_SHARED(float, cells);
    cells[threadIdx.x + 1] = 0.0f;
}
#endif
