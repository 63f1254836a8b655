// The experts of one decode step: gate and up with SiLU, down with the weighted sum, and the copy
// of prefetched experts. Weights are read through addresses that moe_select left on the device:
// a slot, or pinned host memory at the speed of the link. Knows nothing of routing.
//
// A blob is: gate_up words [2I, H/8] | gate_up scales [2I, H/G] | down words [H, I/8] | down scales
// [H, I/G].
#include "moe_dot.cuh"

#define UP_THREADS 128
#define UP_TILE 8  // pairs of a gate and an up row of one block, two a warp
#define SHARED_TILE 4
#define DOWN_TILE 8  // output rows of one block
#define DOWN_WARPS 8
#define DOWN_UNITS 128  // 16-byte loads of a warp in flight together
enum { BYTES_READ = 2, LATE = 11 };  // of `counters`, see moe_select.cu

// gate_up of the shared expert for one pair of rows: inner[b] = silu(gate) * up.
template <int format>
__device__ __forceinline__ void shared_gate_up(const unsigned char* weight, const float* scales,
                                               int pair, int size, const float* normed, const int* positions,
                                               float* inner, int batch, int hidden,
                                               float (*sums)[2]) {
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
        if (base == 0) grid_dependency_wait();  // constant weights: loaded before
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

// inner[pair] = silu(gate_proj x) * (up_proj x) for every (row, rank), packed for moe_down, and for
// the shared expert in plain order. The first blocks are the shared expert's, then come those of
// each job: UP_TILE pairs of rows. A job with a slot to fill writes what it reads into it, its
// blocks copy the down part as well, so that the link never waits between the two kernels.
extern "C" __global__ void __launch_bounds__(UP_THREADS, 5)
moe_gate_up(const u64* jobs, const int* job_pairs, const int* num_jobs, const unsigned* arrived,
            const float* packed, const float* normed, const int* positions, float* inner,
            float* shared_inner, const unsigned char* shared_weight, const float* shared_scales,
            u64* counters, u64* timer, int shared_format, int shared_size, int shared_blocks,
            int blob_bytes, int batch, int hidden, int intermediate, int group_size,
            int num_experts_per_tok) {
    DYNAMIC_SHARED(unsigned short, scales);  // [2][UP_TILE][hidden / group_size]
    __shared__ float sums[UP_THREADS / 32][8][4];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    grid_launch_dependents();
    const int block = blockIdx.x;
    if (block < shared_blocks) {
        BY_FORMAT(shared_format, shared_gate_up, shared_weight, shared_scales,
                  block * SHARED_TILE + warp, shared_size, normed, positions, shared_inner, batch,
                  hidden, reinterpret_cast<float (*)[2]>(sums[warp]));
        return;
    }
    grid_dependency_wait();
    const int tiles = intermediate / UP_TILE;
    const int job = (block - shared_blocks) / tiles, tile = (block - shared_blocks) % tiles;
    if (block == shared_blocks && threadIdx.x == 0) timer[0] = global_timer_ns();
    if (job >= num_jobs[0]) return;
    const u64* record = jobs + job * 4;
    const unsigned char* source = reinterpret_cast<const unsigned char*>(record[0]);
    unsigned char* fill = reinterpret_cast<unsigned char*>(record[2]);
    const int rows = static_cast<int>(record[3] & 0xffffffffu);
    const int arrival = static_cast<int>(record[3] >> 32) - 1;
    if (arrival >= 0 && arrived[arrival] != static_cast<unsigned>(blob_bytes)) {
        // The prefetch did not bring all bytes: its slot is worth nothing, fill it as a miss would.
        fill = const_cast<unsigned char*>(source);
        source = reinterpret_cast<const unsigned char*>(record[1]);
        if (tile == 0 && threadIdx.x == 0) {
            atomicAdd(&counters[LATE], 1ull);
            atomicAdd(&counters[BYTES_READ], static_cast<u64>(blob_bytes));
        }
    }

    const int n = hidden / 32, groups = hidden / group_size;
    const unsigned scale_begin = static_cast<unsigned>(intermediate) * hidden;
    const int first = tile * UP_TILE + warp * 2;
    // Bytes from the first gate row of this warp to the first up row.
    const unsigned to_up = static_cast<unsigned>(intermediate) * n * 16;
    const unsigned begin = static_cast<unsigned>(first) * n * 16 + lane * 16;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    for (int base = 0; base < n; base += 64) {
        uint4 w[4][2];  // gate, gate, up, up: everything of a row of 2,048 columns in flight
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const unsigned offset = begin + r % 2 * n * 16 + (r / 2 ? to_up : 0u) + base * 16;
#pragma unroll
            for (int c = 0; c < 2; ++c)
                w[r][c] = base + c * 32 + lane < n ? load_16(source + offset + c * 512) : zero;
        }
        if (base == 0) {
            // UP_TILE rows of scales are contiguous: 16 bytes for each group of columns.
            for (int i = threadIdx.x; i < 2 * groups; i += UP_THREADS) {
                const int part = i / groups, unit = i % groups;
                const unsigned offset =
                    scale_begin + (tile * UP_TILE + part * intermediate) * groups * 2 + unit * 16;
                const uint4 value = load_16(source + offset);
                store_16(reinterpret_cast<unsigned char*>(scales + part * UP_TILE * groups) +
                             unit * 16, value);
                if (fill != nullptr) store_16(fill + offset, value);
            }
        }
        if (fill != nullptr) {
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const unsigned offset = begin + r % 2 * n * 16 + (r / 2 ? to_up : 0u) + base * 16;
#pragma unroll
                for (int c = 0; c < 2; ++c)
                    if (base + c * 32 + lane < n) store_16(fill + offset + c * 512, w[r][c]);
            }
            if (base == 0) {
                const unsigned down_begin = scale_begin + 4u * intermediate * groups;
                const int units = static_cast<int>(blob_bytes - down_begin) / 16;
                const int share = (units + tiles - 1) / tiles;
                const int from = share * tile, to = min(units, from + share);
                for (int i = from + threadIdx.x; i < to; i += 4 * UP_THREADS) {
                    uint4 part[4];
#pragma unroll
                    for (int t = 0; t < 4; ++t)
                        if (i + t * UP_THREADS < to)
                            part[t] = load_16(source + down_begin + (i + t * UP_THREADS) * 16);
#pragma unroll
                    for (int t = 0; t < 4; ++t)
                        if (i + t * UP_THREADS < to)
                            store_16(fill + down_begin + (i + t * UP_THREADS) * 16, part[t]);
                }
            }
        }
        if (base == 0) __syncthreads();
        for (int j = 0; j < rows; ++j) {
            const int b = job_pairs[job * 8 + j] / num_experts_per_tok;
            const float* row = packed + static_cast<u64>(b) * hidden;
            float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const int unit = base + c * 32 + lane;
                if (unit >= n) continue;
                float4 x[4];
                float dot[4];
                load_packed(x, row, n, unit, 0);
#pragma unroll
                for (int r = 0; r < 4; ++r) dot[r] = dot_16(w[r][c].x, w[r][c].y, x, 0.0f);
                load_packed(x, row, n, unit, 1);
                const int group = unit * 32 / group_size;
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    const int scale = ((r / 2) * UP_TILE + warp * 2 + r % 2) * groups + group;
                    dot[r] = dot_16(w[r][c].z, w[r][c].w, x, dot[r]);
                    sum[r] += half_to_float(scales[scale]) * dot[r];
                }
            }
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                sum[r] = warp_sum(sum[r]);
                if (lane == r)
                    sums[warp][j][r] = base == 0 ? sum[r] : sums[warp][j][r] + sum[r];
            }
        }
    }
    __syncwarp();
    for (int i = lane; i < rows * 2; i += 32) {
        const int j = i / 2, row = first + i % 2;
        const float value = silu(sums[warp][j][i % 2]) * sums[warp][j][2 + i % 2];
        inner[static_cast<u64>(job_pairs[job * 8 + j]) * intermediate +
              packed_index(row, intermediate / 32)] = value * packed_factor(row);
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

// x[b] += sum over ranks of weight * down_proj inner[b, rank], in rank order, plus
// sigmoid(shared gate) * the shared expert. A block makes DOWN_TILE rows of the output of all
// experts: its first warps take a job each, four more (if any) the shared expert. Nothing is
// written for rows with a negative position.
extern "C" __global__ void __launch_bounds__(32 * (DOWN_WARPS + 4), 2)
moe_down(const u64* jobs, const int* job_pairs, const int* num_jobs, const float* topk_weights,
         const float* inner, const float* shared_inner, const float* shared_logits,
         const int* positions, const unsigned char* shared_weight, const float* shared_scales,
         float* x, u64* timer, int shared_format, int shared_size, int batch, int hidden,
         int intermediate, int group_size, int num_experts_per_tok) {
    // products [pairs][DOWN_TILE] | shared products [batch][DOWN_TILE]
    DYNAMIC_SHARED(float, products);
    __shared__ float partial[DOWN_WARPS][DOWN_UNITS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first = blockIdx.x * DOWN_TILE;
    float* shared_products = products + batch * num_experts_per_tok * DOWN_TILE;
    grid_launch_dependents();
    if (warp >= DOWN_WARPS) {
        BY_FORMAT(shared_format, shared_down, shared_weight, shared_scales,
                  first + 2 * (warp - DOWN_WARPS), shared_size, shared_inner, batch,
                  shared_products);
    } else {
        grid_dependency_wait();
        const int n = intermediate / 32, units = DOWN_TILE * n, groups = intermediate / group_size;
        const u64 words_begin =
            static_cast<u64>(intermediate) * hidden + 4ull * intermediate * (hidden / group_size);
        const u64 scales_begin = words_begin + static_cast<u64>(intermediate) * hidden / 2;
        const uint4 zero = make_uint4(0, 0, 0, 0);
        const int count = num_jobs[0];
        for (int job = warp; job < count; job += DOWN_WARPS) {
            const u64* record = jobs + job * 4;
            // A filled slot holds the down part by now, a prefetched one all of it.
            const unsigned char* source = reinterpret_cast<const unsigned char*>(
                record[2] != 0 ? record[2] : record[0]);
            const unsigned char* words = source + words_begin + static_cast<u64>(first) * n * 16;
            const unsigned short* scales =
                reinterpret_cast<const unsigned short*>(source + scales_begin) +
                static_cast<u64>(first) * groups;
            const int rows = static_cast<int>(record[3] & 0xffffffffu);
            for (int base = 0; base < units; base += DOWN_UNITS) {
                uint4 w[4];
                float scale[4];
#pragma unroll
                for (int t = 0; t < 4; ++t) {
                    const int unit = base + t * 32 + lane;
                    w[t] = unit < units ? load_16(words + unit * 16) : zero;
                    scale[t] = unit < units
                                   ? half_to_float(scales[unit / n * groups +
                                                          unit % n * 32 / group_size])
                                   : 0.0f;
                }
                for (int j = 0; j < rows; ++j) {
                    const int pair = job_pairs[job * 8 + j];
                    const float* row = inner + static_cast<u64>(pair) * intermediate;
                    float dot[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        float4 in[4];
                        int loaded = -1;
#pragma unroll
                        for (int t = 0; t < 4; ++t) {
                            const int unit = base + t * 32 + lane;
                            if (unit >= units) continue;
                            if (unit % n != loaded) {
                                loaded = unit % n;
                                load_packed(in, row, n, loaded, half);
                            }
                            dot[t] = half == 0 ? dot_16(w[t].x, w[t].y, in, 0.0f)
                                               : dot_16(w[t].z, w[t].w, in, dot[t]);
                        }
                    }
#pragma unroll
                    for (int t = 0; t < 4; ++t) partial[warp][t * 32 + lane] = scale[t] * dot[t];
                    __syncwarp();
                    // Four lanes sum the parts of one output row.
                    float sum = 0.0f;
                    for (int c = lane % 4; c < n; c += 4) {
                        const int unit = lane / 4 * n + c - base;
                        if (unit >= 0 && unit < DOWN_UNITS) sum += partial[warp][unit];
                    }
                    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
                    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
                    float* product = products + pair * DOWN_TILE + lane / 4;
                    if (lane % 4 == 0) *product = base == 0 ? sum : *product + sum;
                    __syncwarp();
                }
            }
        }
    }
    __syncthreads();
    if (threadIdx.x < batch * DOWN_TILE) {
        const int b = threadIdx.x / DOWN_TILE, row = threadIdx.x % DOWN_TILE;
        if (positions[b] >= 0) {
            float sum = 0.0f;
            for (int r = 0; r < num_experts_per_tok; ++r) {
                const int pair = b * num_experts_per_tok + r;
                sum += topk_weights[pair] * products[pair * DOWN_TILE + row];
            }
            if (shared_weight != nullptr)
                sum += sigmoid(shared_logits[b]) * shared_products[b * DOWN_TILE + row];
            x[static_cast<u64>(b) * hidden + first + row] += sum;
        }
    }
    if (threadIdx.x == 0) atomicMax(&timer[1], global_timer_ns());
}

// Copies each (source, target) of `copies` by all blocks together and counts the bytes in
// `arrived`, so that the reader can tell a finished copy from one that is late.
extern "C" __global__ void __launch_bounds__(256)
moe_copy(const u64* copies, const int* count, unsigned* arrived, int blob_bytes) {
    grid_launch_dependents();
    grid_dependency_wait();
    const int units = blob_bytes / 16, stride = gridDim.x * blockDim.x;
    const int number = count[0];
    for (int copy = 0; copy < number; ++copy) {
        const unsigned char* source = reinterpret_cast<const unsigned char*>(copies[copy * 2]);
        unsigned char* target = reinterpret_cast<unsigned char*>(copies[copy * 2 + 1]);
        unsigned bytes = 0;
        // A block takes runs of blockDim.x * 16 bytes: contiguous reads, 8 in flight a thread.
        for (int base = blockIdx.x * blockDim.x + threadIdx.x; base < units; base += 8 * stride) {
            uint4 part[8];
#pragma unroll
            for (int t = 0; t < 8; ++t)
                if (base + t * stride < units) part[t] = load_16(source + (base + t * stride) * 16ull);
#pragma unroll
            for (int t = 0; t < 8; ++t)
                if (base + t * stride < units) {
                    store_16(target + (base + t * stride) * 16ull, part[t]);
                    bytes += 16;
                }
        }
        __threadfence();
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2)
            bytes += __shfl_xor_sync(0xffffffffu, bytes, offset);
        if (threadIdx.x % 32 == 0) atomicAdd(&arrived[copy], bytes);
    }
}
