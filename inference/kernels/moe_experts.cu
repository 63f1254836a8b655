// The experts of one decode step: gate and up with SiLU, down with the weighted sum, and the copy
// of prefetched experts. Weights are read through addresses that moe_select left on the device:
// a slot, or pinned host memory at the speed of the link. Knows nothing of routing.
//
// A blob is: gate_up words [2I, H/8] | gate_up scales [2I, H/G] | down words [H, I/8] | down scales
// [H, I/G].
#include "moe_shared.cuh"

#define UP_THREADS 128
#define UP_TILE 8  // pairs of a gate and an up row of one block, two a warp
#define SHARED_TILE 4  // pairs of the shared expert
#define COPY_LOADS 10  // 16-byte loads of a thread in flight while it copies for moe_down
#define DOWN_WARPS 8
#define DOWN_UNITS 128  // 16-byte loads of a warp in flight together
enum { BYTES_READ = 2, LATE = 11 };  // of `counters`, see moe_select.cu

// A record of moe_select, in two loads. Read past the first-level cache: moe_down reads them before
// its wait.
struct Job {
    const unsigned char* source;
    const unsigned char* host;
    unsigned char* fill;  // null: none
    int rows, arrival;    // arrival: 0 where no prefetch brought it
};
__device__ __forceinline__ u64 address_of(unsigned low, unsigned high) {
    return low | static_cast<u64>(high) << 32;
}
__device__ __forceinline__ Job load_job(const u64* jobs, int job) {
    const uint4* record = reinterpret_cast<const uint4*>(jobs) + job * 2;
    const uint4 first = __ldcg(record), second = __ldcg(record + 1);
    Job result;
    result.source = reinterpret_cast<const unsigned char*>(address_of(first.x, first.y));
    result.host = reinterpret_cast<const unsigned char*>(address_of(first.z, first.w));
    result.fill = reinterpret_cast<unsigned char*>(address_of(second.x, second.y));
    result.rows = static_cast<int>(second.z);
    result.arrival = static_cast<int>(second.w);
    return result;
}

// Copies 16-byte units from..to of the blob at `source` into the slot `fill`, by the whole block.
__device__ __forceinline__ void copy_units(const unsigned char* source, unsigned char* fill,
                                           int from, int to) {
    for (int i = from + threadIdx.x; i < to; i += COPY_LOADS * UP_THREADS) {
        uint4 part[COPY_LOADS];
#pragma unroll
        for (int t = 0; t < COPY_LOADS; ++t)
            if (i + t * UP_THREADS < to) part[t] = load_16(source + (i + t * UP_THREADS) * 16);
#pragma unroll
        for (int t = 0; t < COPY_LOADS; ++t)
            if (i + t * UP_THREADS < to) store_16(fill + (i + t * UP_THREADS) * 16, part[t]);
    }
}

// inner[pair] = silu(gate_proj x) * (up_proj x) for every (row, rank), packed for moe_down, and for
// the shared expert in plain order. First come `side_blocks`: some make the shared expert, all
// together then copy the down parts of the jobs with a slot to fill. The blocks after them belong
// to a job each, UP_TILE pairs of rows, and write what they read into such a slot. So everything
// that comes over the link is asked for at once.
//
// The next kernel is allowed to start after the wait for moe_select: moe_down relies on that.
extern "C" __global__ void __launch_bounds__(UP_THREADS, 5)
moe_gate_up(const u64* jobs, const int* job_pairs, const int* num_jobs, const unsigned* arrived,
            const float* packed, const float* normed, const int* positions, float* inner,
            float* shared_inner, const unsigned char* shared_weight, const float* shared_scales,
            u64* counters, u64* timer, int shared_format, int shared_size, int shared_blocks,
            int side_blocks, int blob_bytes, int batch, int hidden, int intermediate,
            int group_size, int num_experts_per_tok) {
    DYNAMIC_SHARED(unsigned short, scales);  // [2][UP_TILE][hidden / group_size]
    __shared__ float sums[UP_THREADS / 32][8][4];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block = blockIdx.x, tiles = intermediate / UP_TILE;
    const int down_begin =
        intermediate * hidden + 4 * intermediate * (hidden / group_size);  // in a blob
    if (block < shared_blocks) {
        BY_FORMAT(shared_format, shared_gate_up, shared_weight, shared_scales,
                  block * SHARED_TILE + warp, shared_size, normed, positions, shared_inner, batch,
                  hidden, reinterpret_cast<float (*)[2]>(sums[warp]));
    }
    grid_dependency_wait();
    grid_launch_dependents();
    if (block < side_blocks) {
        const int filled = num_jobs[1];  // they come first
        const int parts = max(1, side_blocks / max(1, filled)), part = block % parts;
        const int from = down_begin / 16, units = blob_bytes / 16 - from;
        const int share = (units + parts - 1) / parts;
        for (int job = block / parts; job < filled; job += side_blocks / parts) {
            const Job record = load_job(jobs, job);
            copy_units(record.source, record.fill, from + part * share,
                       from + min(units, (part + 1) * share));
        }
        return;
    }
    const int job = (block - side_blocks) / tiles, tile = (block - side_blocks) % tiles;
    if (block == side_blocks && threadIdx.x == 0) timer[0] = global_timer_ns();
    // All at once: there are records beyond the number of jobs too.
    const Job record = load_job(jobs, job);
    const int pairs = __ldcg(job_pairs + job * 8 + lane % 8);
    if (job >= __ldcg(num_jobs)) return;
    const unsigned char* source = record.source;
    unsigned char* fill = record.fill;
    const int rows = record.rows;
    const bool late = record.arrival > 0 &&
                      arrived[record.arrival - 1] != static_cast<unsigned>(blob_bytes);
    if (late) {
        // The prefetch did not bring all bytes: its slot is worth nothing, fill it as a miss would.
        fill = const_cast<unsigned char*>(source);
        source = record.host;
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
        }
        if (base == 0) __syncthreads();
        for (int j = 0; j < rows; ++j) {
            const int b = __shfl_sync(0xffffffffu, pairs, j) / num_experts_per_tok;
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
    const int j = lane / 2 % 8, pair = __shfl_sync(0xffffffffu, pairs, j);
    if (lane < rows * 2) {
        const int row = first + lane % 2;
        const float value = silu(sums[warp][j][lane % 2]) * sums[warp][j][2 + lane % 2];
        inner[static_cast<u64>(pair) * intermediate + packed_index(row, intermediate / 32)] =
            value * packed_factor(row);
    }
    if (late) {
        const int from = down_begin / 16, units = blob_bytes / 16 - from;
        const int share = (units + tiles - 1) / tiles;
        copy_units(source, fill, from + tile * share, from + min(units, (tile + 1) * share));
    }
}

// x[b] += sum over ranks of weight * down_proj inner[b, rank], in rank order, plus
// sigmoid(shared gate) * the shared expert. A block makes DOWN_TILE rows of the output of all
// experts: its first warps take a job each, four more (if any) the shared expert. Nothing is
// written for rows with a negative position.
//
// Starts when every block of moe_gate_up is past its wait for moe_select. Hence the jobs are
// complete, and experts in a slot may be read before the wait; those being filled may not.
extern "C" __global__ void __launch_bounds__(32 * (DOWN_WARPS + 4), 2)
moe_down(const u64* jobs, const int* job_pairs, const int* num_jobs, const unsigned* arrived,
         const float* topk_weights, const float* inner, const float* shared_inner,
         const float* shared_logits, const int* positions, const unsigned char* shared_weight,
         const float* shared_scales, float* x, u64* timer, int shared_format, int shared_size,
         int blob_bytes, int batch, int hidden, int intermediate, int group_size,
         int num_experts_per_tok) {
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
        const int n = intermediate / 32, units = DOWN_TILE * n, groups = intermediate / group_size;
        const u64 words_begin =
            static_cast<u64>(intermediate) * hidden + 4ull * intermediate * (hidden / group_size);
        const u64 scales_begin = words_begin + static_cast<u64>(intermediate) * hidden / 2;
        const uint4 zero = make_uint4(0, 0, 0, 0);
        Job record = load_job(jobs, warp);
        int pairs = __ldcg(job_pairs + warp * 8 + lane % 8);
        const int count = __ldcg(num_jobs);
        bool waited = false;
        for (int job = warp; job < count; job += DOWN_WARPS) {
            if (job != warp) {
                record = load_job(jobs, job);
                pairs = __ldcg(job_pairs + job * 8 + lane % 8);
            }
            const bool late = record.arrival > 0 && __ldcg(arrived + record.arrival - 1) !=
                                                        static_cast<unsigned>(blob_bytes);
            if (!waited && (record.fill != nullptr || late)) {
                grid_dependency_wait();
                waited = true;
            }
            const unsigned char* source = record.fill != nullptr ? record.fill : record.source;
            const unsigned char* words = source + words_begin + static_cast<u64>(first) * n * 16;
            const unsigned short* scales =
                reinterpret_cast<const unsigned short*>(source + scales_begin) +
                static_cast<u64>(first) * groups;
            const int rows = record.rows;
            for (int base = 0; base < units; base += DOWN_UNITS) {
                uint4 w[4];
                float scale[4];
#pragma unroll
                for (int t = 0; t < 4; ++t) {
                    const int unit = base + t * 32 + lane;
                    w[t] = zero;
                    if (unit < units) w[t] = __ldcg(reinterpret_cast<const uint4*>(words) + unit);
                    scale[t] = unit < units
                                   ? half_to_float(__ldcg(scales + unit / n * groups +
                                                          unit % n * 32 / group_size))
                                   : 0.0f;
                }
                if (!waited) {
                    grid_dependency_wait();
                    waited = true;
                }
                for (int j = 0; j < rows; ++j) {
                    const int pair = __shfl_sync(0xffffffffu, pairs, j);
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
        grid_dependency_wait();
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
                if (base + t * stride < units)
                    part[t] = load_16(source + (base + t * stride) * 16ull);
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
