// The experts for many tokens at once: a grouped product over tokens sorted by expert. INT4
// weights become halves in the registers of the lane that multiplies them in the tensor cores;
// models in fp32 (tests) take the kernels named _float. Also the copies of the experts that few
// tokens touch. Knows nothing of routing or slots: the weights of expert `experts[i]` lie at
// `addresses[i]`, laid out as moe_experts.cu says; a negative number stands for no expert.
//
// `order` lists the pairs (token * k + rank) sorted by expert, `offsets[e]` is the first of expert
// e. `inner` is indexed by the place in `order`, `outputs` by pair.
#include "moe_dot.cuh"

#define THREADS 128
#define TILE 64    // tokens of one pass over the weights
#define CHUNK 128  // columns that are multiplied between two barriers: 32 by each lane of a row
#define PIECES (TILE * CHUNK / 8 / THREADS)  // 16-byte pieces of a tile that a thread brings
#define MAX_EXPERTS 512

// Eight INT4 weights as halves of (level * scale), rounded once; in pairs of columns (0, 4),
// (1, 5), (2, 6), (3, 7). A nibble under the exponent of 1024 is 1024 + nibble, or + 16 nibble.
__device__ __forceinline__ void widen(unsigned word, unsigned scale, unsigned w[4]) {
    const unsigned both = scale | scale << 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const unsigned low = (word & 0x000f000fu) | 0x64006400u;
        const unsigned high = (word & 0x00f000f0u) | 0x64006400u;
        w[2 * i] = half2_fma(half2_fma(low, 0x3c003c00u, 0xe408e408u), both, 0);       // 1, -1032
        w[2 * i + 1] = half2_fma(half2_fma(high, 0x2c002c00u, 0xd480d480u), both, 0);  // 1/16, -72
        word >>= 8;
    }
}

// Eight inputs in the order of the columns that widen() gives.
__device__ __forceinline__ uint4 by_pairs(uint4 v) {
    return make_uint4((v.x & 0xffffu) | v.z << 16, v.x >> 16 | (v.z & 0xffff0000u),
                      (v.y & 0xffffu) | v.w << 16, v.y >> 16 | (v.w & 0xffff0000u));
}

// Where one lane finds its weights: rows 2 group and 2 group + 1 of two tiles of 16 rows. The
// lanes `pair` of a row own 32 columns each of a chunk, one 16-byte load.
struct LaneRows {
    const unsigned char* words;
    const unsigned short* scales;
    int row, step;  // the first row; from a row of the first tile to that of the second
    int units, groups, units_per_group;

    __device__ __forceinline__ void fetch(int unit, uint4 values[4], unsigned factors[4]) const {
        const bool inside = unit < units;
        const int group = unit / units_per_group;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = row + i % 2 + i / 2 * step;
            values[i] = inside ? load_16(words + (at * units + unit) * 16) : make_uint4(0, 0, 0, 0);
            factors[i] = inside ? scales[at * groups + group] : 0;
        }
    }
};

// Inputs of TILE tokens at CHUNK columns, twice: one is multiplied while the other is filled.
// Piece (p, w), the w-th 8 columns of the 32 of lanes p, of token t is number 4 (w ^ t % 2) + p
// of the token's 16: eight lanes that read together meet all banks.
struct Inputs {
    uint4 pieces[2][TILE * CHUNK / 8];
    int sources[TILE];  // row of the inputs, negative: none
};

__device__ __forceinline__ int piece_at(int token, int p, int w) {
    return token * (CHUNK / 8) + (w ^ (token & 1)) * 4 + p;
}

__device__ __forceinline__ void fetch_inputs(const Inputs& tile, const unsigned short* inputs,
                                             int columns, int chunk, int count,
                                             uint4 pieces[PIECES]) {
    const int column = chunk * CHUNK + threadIdx.x % 16 * 8;
#pragma unroll
    for (int t = 0; t < PIECES; ++t) {
        if (t / 2 * 16 >= count) break;
        const int source = tile.sources[t * 8 + threadIdx.x / 16];
        pieces[t] = make_uint4(0, 0, 0, 0);
        if (source >= 0 && column < columns)
            pieces[t] = load_16(inputs + static_cast<u64>(source) * columns + column);
    }
}

__device__ __forceinline__ void keep_inputs(uint4* tile, int count, const uint4 pieces[PIECES]) {
    const int piece = threadIdx.x % 16;
#pragma unroll
    for (int t = 0; t < PIECES; ++t) {
        if (t / 2 * 16 >= count) break;
        tile[piece_at(t * 8 + threadIdx.x / 16, piece / 4, piece % 4)] = by_pairs(pieces[t]);
    }
}

// sums[m][n] += the lane's rows of tile m times tokens 8 n ..., over one chunk. Tokens go by 16:
// what lies behind the last is zero.
__device__ __forceinline__ void multiply_chunk(const uint4 words[4], const unsigned scales[4],
                                               const uint4* tile, int count, float sums[2][8][4]) {
    const int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        unsigned rows[4][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) widen(word_of(words[i], w), scales[i], rows[i]);
#pragma unroll
        for (int n = 0; n < TILE / 8; n += 2) {
            if (n * 8 >= count) break;
            uint4 in[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) in[i] = tile[piece_at((n + i) * 8 + group, pair, w)];
            // Products onto the same sums lie far apart: each waits for the one before.
#pragma unroll
            for (int part = 0; part < 4; part += 2) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const unsigned* even = rows[i / 2 * 2] + part;
                    const unsigned* odd = rows[i / 2 * 2 + 1] + part;
                    const unsigned a[4] = {even[0], odd[0], even[1], odd[1]};
                    const unsigned b[2] = {word_of(in[i % 2], part), word_of(in[i % 2], part + 1)};
                    mma_16x8x16(sums[i / 2][n + i % 2], a, b);
                }
            }
        }
    }
}

// One block: rows of the weights of one expert times its tokens, TILE at a time; blocks of other
// z take other tiles. A warp multiplies 32 rows: of gate_up 16 gate rows and their up rows.
template <bool gate_up>
__device__ __forceinline__ void multiply(const unsigned char* words, const unsigned short* scales,
                                         const unsigned short* inputs, unsigned short* outputs,
                                         const int* order, int begin, int end, int rows,
                                         int columns, int group_size, int k) {
    __shared__ Inputs tile;
    const int tid = threadIdx.x, group = tid % 32 / 4, pair = tid % 4;
    const int wanted = (blockIdx.x * (THREADS / 32) + tid / 32) * (gate_up ? 16 : 32);
    const int first = min(wanted, rows - (gate_up ? 16 : 32));  // past the end: once more, unused
    const LaneRows lane = {words, scales, first + 2 * group, gate_up ? rows : 16, columns / 32,
                           columns / group_size, group_size / 32};
    const int chunks = (columns + CHUNK - 1) / CHUNK;

    for (int base = begin + blockIdx.z * TILE; base < end; base += gridDim.z * TILE) {
        const int count = min(end - base, TILE);
        uint4 now[4], next[4], pieces[PIECES];
        unsigned factors[4], next_factors[4];
        lane.fetch(pair, now, factors);
        if (tid < TILE) {
            const int place = base + tid;
            tile.sources[tid] = place >= end ? -1 : gate_up ? order[place] / k : place;
        }
        __syncthreads();
        fetch_inputs(tile, inputs, columns, 0, count, pieces);
        keep_inputs(tile.pieces[0], count, pieces);
        __syncthreads();
        float sums[2][8][4];
#pragma unroll
        for (int i = 0; i < 64; ++i) sums[i / 32][i / 4 % 8][i % 4] = 0.0f;
        for (int chunk = 0; chunk < chunks; ++chunk) {
            const bool more = chunk + 1 < chunks;
            if (more) {
                lane.fetch((chunk + 1) * 4 + pair, next, next_factors);
                fetch_inputs(tile, inputs, columns, chunk + 1, count, pieces);
            }
            multiply_chunk(now, factors, tile.pieces[chunk % 2], count, sums);
            if (!more) break;
            keep_inputs(tile.pieces[(chunk + 1) % 2], count, pieces);
            __syncthreads();
#pragma unroll
            for (int i = 0; i < 4; ++i) now[i] = next[i], factors[i] = next_factors[i];
        }
        if (first != wanted) continue;
#pragma unroll
        for (int i = 0; i < TILE / 4; ++i) {
            const int n = i / 2, which = i % 2, place = base + n * 8 + 2 * pair + which;
            if (place >= end) continue;
            const u64 target = static_cast<u64>(gate_up ? place : order[place]) * rows + first;
            unsigned* out = reinterpret_cast<unsigned*>(outputs + target) + group;
            float even = sums[0][n][which], odd = sums[0][n][which + 2];
            if (gate_up) {
                even = silu(even) * sums[1][n][which];
                odd = silu(odd) * sums[1][n][which + 2];
            } else {
                out[8] = float2_to_half2(sums[1][n][which], sums[1][n][which + 2]);
            }
            out[0] = float2_to_half2(even, odd);
        }
    }
}

// inner half [pairs, intermediate] = silu(gate) * up. Grid: (ceil(intermediate / 64), experts, z).
extern "C" __global__ void __launch_bounds__(THREADS)
prefill_gate_up(const u64* addresses, const int* experts, const int* offsets, const int* order,
                const unsigned short* hidden_states, unsigned short* inner, int k, int hidden,
                int intermediate, int group_size) {
    grid_launch_dependents();
    grid_dependency_wait();
    const int expert = experts[blockIdx.y];
    if (expert < 0) return;
    const int begin = offsets[expert], end = offsets[expert + 1];
    if (begin == end) return;
    const unsigned char* blob = reinterpret_cast<const unsigned char*>(addresses[blockIdx.y]);
    const unsigned char* scales = blob + static_cast<u64>(intermediate) * hidden;
    multiply<true>(blob, reinterpret_cast<const unsigned short*>(scales), hidden_states, inner,
                   order, begin, end, intermediate, hidden, group_size, k);
}

// outputs half [pairs, hidden] = down_proj inner. Grid: (ceil(hidden / 128), experts, z).
extern "C" __global__ void __launch_bounds__(THREADS)
prefill_down(const u64* addresses, const int* experts, const int* offsets, const int* order,
             const unsigned short* inner, unsigned short* outputs, int k, int hidden,
             int intermediate, int group_size) {
    grid_launch_dependents();
    grid_dependency_wait();
    const int expert = experts[blockIdx.y];
    if (expert < 0) return;
    const int begin = offsets[expert], end = offsets[expert + 1];
    if (begin == end) return;
    const unsigned char* blob = reinterpret_cast<const unsigned char*>(addresses[blockIdx.y]);
    const unsigned char* words = blob + static_cast<u64>(intermediate) * hidden +
                                 4ull * intermediate * (hidden / group_size);
    const unsigned char* scales = words + static_cast<u64>(intermediate) * hidden / 2;
    multiply<false>(words, reinterpret_cast<const unsigned short*>(scales), inner, outputs, order,
                    begin, end, hidden, intermediate, group_size, k);
}

// Of the experts with tokens: `missing` lists those without a slot, then -1; `resident[e]` is e
// for those with one, else -1. One block.
extern "C" __global__ void __launch_bounds__(THREADS)
prefill_sort_experts(const int* offsets, const int* slot_of, int* missing, int* resident,
                     int num_experts) {
    __shared__ int is_missing[MAX_EXPERTS];
    grid_launch_dependents();
    grid_dependency_wait();
    for (int e = threadIdx.x; e < num_experts; e += THREADS) {
        const bool touched = offsets[e + 1] > offsets[e], has_slot = slot_of[e] >= 0;
        is_missing[e] = touched && !has_slot;
        resident[e] = touched && has_slot ? e : -1;
        missing[e] = -1;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < num_experts; e += THREADS) {
        int before = 0;
        for (int i = 0; i < e; ++i) before += is_missing[i];
        if (is_missing[e]) missing[before] = e;
    }
}

// Copies each expert of a layer that is listed to its target. Grid: (blocks an expert, experts).
extern "C" __global__ void __launch_bounds__(256)
prefill_gather(const int* experts, const u64* targets, u64 layer, int blob_bytes) {
    grid_launch_dependents();
    grid_dependency_wait();
    const int expert = experts[blockIdx.y];
    if (expert < 0) return;
    const unsigned char* source = reinterpret_cast<const unsigned char*>(
        layer + static_cast<u64>(expert) * blob_bytes);
    unsigned char* target = reinterpret_cast<unsigned char*>(targets[blockIdx.y]);
    const int units = blob_bytes / 16, stride = gridDim.x * blockDim.x;
    for (int base = blockIdx.x * blockDim.x + threadIdx.x; base < units; base += 8 * stride) {
        uint4 part[8];
#pragma unroll
        for (int t = 0; t < 8; ++t)
            if (base + t * stride < units) part[t] = load_16(source + (base + t * stride) * 16ull);
#pragma unroll
        for (int t = 0; t < 8; ++t)
            if (base + t * stride < units) store_16(target + (base + t * stride) * 16ull, part[t]);
    }
}

// One row of INT4 weights times fp32 inputs, column after column.
__device__ __forceinline__ float dot_row(const unsigned* words, const unsigned short* scales,
                                         const float* x, int columns, int group_size) {
    float sum = 0.0f;
    for (int column = 0; column < columns; ++column) {
        const int level = static_cast<int>(words[column / 8] >> (column % 8 * 4) & 15u) - 8;
        sum += static_cast<float>(level) * half_to_float(scales[column / group_size]) * x[column];
    }
    return sum;
}

// As prefill_gate_up in fp32. Grid: (ceil(intermediate / 128), experts).
extern "C" __global__ void __launch_bounds__(THREADS)
prefill_gate_up_float(const u64* addresses, const int* experts, const int* offsets,
                      const int* order, const float* hidden_states, float* inner, int k,
                      int hidden, int intermediate, int group_size) {
    grid_launch_dependents();
    grid_dependency_wait();
    const int expert = experts[blockIdx.y], row = blockIdx.x * THREADS + threadIdx.x;
    if (expert < 0) return;
    const unsigned* words = reinterpret_cast<const unsigned*>(addresses[blockIdx.y]);
    const unsigned short* scales =
        reinterpret_cast<const unsigned short*>(words + static_cast<u64>(intermediate) * hidden / 4);
    const int n = hidden / 8, groups = hidden / group_size;
    for (int i = offsets[expert]; i < offsets[expert + 1] && row < intermediate; ++i) {
        const float* x = hidden_states + static_cast<u64>(order[i] / k) * hidden;
        const u64 up = static_cast<u64>(intermediate) + row;
        const float gate_value = dot_row(words + static_cast<u64>(row) * n,
                                         scales + static_cast<u64>(row) * groups, x, hidden,
                                         group_size);
        inner[static_cast<u64>(i) * intermediate + row] =
            silu(gate_value) * dot_row(words + up * n, scales + up * groups, x, hidden, group_size);
    }
}

// As prefill_down in fp32. Grid: (ceil(hidden / 128), experts).
extern "C" __global__ void __launch_bounds__(THREADS)
prefill_down_float(const u64* addresses, const int* experts, const int* offsets, const int* order,
                   const float* inner, float* outputs, int k, int hidden, int intermediate,
                   int group_size) {
    grid_launch_dependents();
    grid_dependency_wait();
    const int expert = experts[blockIdx.y], row = blockIdx.x * THREADS + threadIdx.x;
    if (expert < 0) return;
    const unsigned char* blob = reinterpret_cast<const unsigned char*>(addresses[blockIdx.y]);
    const unsigned char* begin = blob + static_cast<u64>(intermediate) * hidden +
                                 4ull * intermediate * (hidden / group_size);
    const unsigned* words = reinterpret_cast<const unsigned*>(begin);
    const unsigned short* scales = reinterpret_cast<const unsigned short*>(
        begin + static_cast<u64>(intermediate) * hidden / 2);
    for (int i = offsets[expert]; i < offsets[expert + 1] && row < hidden; ++i)
        outputs[static_cast<u64>(order[i]) * hidden + row] =
            dot_row(words + static_cast<u64>(row) * (intermediate / 8),
                    scales + static_cast<u64>(row) * (intermediate / group_size),
                    inner + static_cast<u64>(i) * intermediate, intermediate, group_size);
}

// result[token] = sum over ranks of weight * outputs[token, rank], in rank order. Grid: (tokens).
extern "C" __global__ void __launch_bounds__(THREADS)
prefill_combine(const unsigned short* outputs, const float* weights, unsigned short* result, int k,
                int hidden) {
    grid_launch_dependents();
    grid_dependency_wait();
    const u64 token = blockIdx.x;
    for (int i = threadIdx.x; i < hidden / 2; i += THREADS) {
        float low = 0.0f, high = 0.0f;
        for (int r = 0; r < k; ++r) {
            const float2 value = half2_to_float2(
                reinterpret_cast<const unsigned*>(outputs + (token * k + r) * hidden)[i]);
            low += weights[token * k + r] * value.x;
            high += weights[token * k + r] * value.y;
        }
        reinterpret_cast<unsigned*>(result + token * hidden)[i] = float2_to_half2(low, high);
    }
}

// As prefill_combine in fp32.
extern "C" __global__ void __launch_bounds__(THREADS)
prefill_combine_float(const float* outputs, const float* weights, float* result, int k,
                      int hidden) {
    grid_launch_dependents();
    grid_dependency_wait();
    const u64 token = blockIdx.x;
    for (int i = threadIdx.x; i < hidden; i += THREADS) {
        float sum = 0.0f;
        for (int r = 0; r < k; ++r)
            sum += weights[token * k + r] * outputs[(token * k + r) * hidden + i];
        result[token * hidden + i] = sum;
    }
}
