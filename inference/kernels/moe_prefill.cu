// The experts for many tokens at once: a grouped product over tokens sorted by expert. INT4
// weights become halves in shared memory and meet the activations in the tensor cores; models in
// fp32 (tests) take the kernels named _float. Knows nothing of routing, slots or staging: weights
// lie at `addresses[expert]`, laid out as moe_experts.cu says.
//
// `order` lists the pairs (token * k + rank) sorted by expert, `offsets[e]` is the first of expert
// e. `inner` is indexed by the place in `order`, `outputs` by pair.
#include "moe_dot.cuh"

#define THREADS 128
#define TILE 64    // tokens, and rows of weights, of one step
#define STEP 32    // columns that one step multiplies: one 16-byte load of INT4
#define CHUNK 8    // 16-byte loads of a row that are fetched together: 128 contiguous bytes
#define STRIDE 40  // halves of a row in shared memory; 20 words apart: no bank conflicts

// Eight INT4 weights as halves of (level * scale), rounded once.
__device__ __forceinline__ uint4 eight_halves(unsigned word, float scale) {
    const unsigned high = word >> 16;
    const float a = scale * 0.0625f, b = scale * 0.00390625f, c = scale * 0.000244140625f;
    return make_uint4(float2_to_half2(nibble<0>(word) * scale, nibble<1>(word) * a),
                      float2_to_half2(nibble<2>(word) * b, nibble<3>(word) * c),
                      float2_to_half2(nibble<0>(high) * scale, nibble<1>(high) * a),
                      float2_to_half2(nibble<2>(high) * b, nibble<3>(high) * c));
}

struct Tiles {
    uint4 words[TILE][CHUNK + 1];
    unsigned short tokens[TILE * STRIDE];
    unsigned short weights[TILE * STRIDE];
};

// One block: TILE rows of the weights of one expert times all its tokens. Row r of the tile is row
// row_of(r) of the matrix; for gate_up the second half of a tile are up rows.
template <bool gate_up>
__device__ __forceinline__ void multiply(const unsigned char* words, const unsigned short* scales,
                                         const unsigned short* inputs, unsigned short* outputs,
                                         const int* order, int begin, int end, int rows,
                                         int columns, int group_size, int k) {
    __shared__ Tiles tiles;
    DYNAMIC_SHARED(unsigned short, row_scales);  // [TILE][columns / group_size]
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int warp_tokens = warp % 2 * 32, warp_rows = warp / 2;
    const int group = lane / 4, pair = lane % 4;
    const int units = columns / STEP, groups = columns / group_size;
    const int first = blockIdx.x * (gate_up ? TILE / 2 : TILE);
    const int half_rows = gate_up ? TILE / 2 : TILE;
    // Row of the matrix of row r of the tile.
    auto row_of = [&](int r) { return first + r % half_rows + (r / half_rows) * rows; };
    for (int i = tid; i < TILE * groups; i += THREADS)
        row_scales[i] = scales[static_cast<u64>(row_of(i / groups)) * groups + i % groups];

    for (int base = begin; base < end; base += TILE) {
        float sums[2][4][4];
#pragma unroll
        for (int i = 0; i < 32; ++i) sums[i / 16][i / 4 % 4][i % 4] = 0.0f;
        for (int chunk = 0; chunk < units; chunk += CHUNK) {
            const int width = min(CHUNK, units - chunk);
            uint4 loaded[TILE * CHUNK / THREADS];
#pragma unroll
            for (int t = 0; t < TILE * CHUNK / THREADS; ++t) {
                const int row = (tid + t * THREADS) / CHUNK, unit = tid % CHUNK;
                if (unit < width)
                    loaded[t] = load_16(
                        words + (static_cast<u64>(row_of(row)) * units + chunk + unit) * 16);
            }
            __syncthreads();  // the chunk before is no longer read
#pragma unroll
            for (int t = 0; t < TILE * CHUNK / THREADS; ++t)
                if (tid % CHUNK < width)
                    tiles.words[(tid + t * THREADS) / CHUNK][tid % CHUNK] = loaded[t];
            for (int step = 0; step < width; ++step) {
                uint4 rows_in[2];
#pragma unroll
                for (int t = 0; t < 2; ++t) {
                    const int row = (tid + t * THREADS) / 4, place = base + row;
                    rows_in[t] = make_uint4(0, 0, 0, 0);
                    if (place < end) {
                        const int source = gate_up ? order[place] / k : place;
                        rows_in[t] = load_16(inputs + static_cast<u64>(source) * columns +
                                             (chunk + step) * STEP + tid % 4 * 8);
                    }
                }
                __syncthreads();  // words are there, the step before is multiplied
#pragma unroll
                for (int t = 0; t < 2; ++t)
                    store_16(tiles.tokens + (tid + t * THREADS) / 4 * STRIDE + tid % 4 * 8,
                             rows_in[t]);
                {
                    const int row = tid / 2;
                    const uint4 packed = tiles.words[row][step];
                    const float scale = half_to_float(
                        row_scales[row * groups + (chunk + step) * STEP / group_size]);
                    unsigned short* target = tiles.weights + row * STRIDE + tid % 2 * 16;
                    store_16(target, eight_halves(tid % 2 ? packed.z : packed.x, scale));
                    store_16(target + 8, eight_halves(tid % 2 ? packed.w : packed.y, scale));
                }
                __syncthreads();
#pragma unroll
                for (int part = 0; part < STEP; part += 16) {
                    unsigned a[2][4];
#pragma unroll
                    for (int m = 0; m < 2; ++m) {
                        const unsigned* row = reinterpret_cast<const unsigned*>(
                            tiles.tokens + (warp_tokens + m * 16 + group) * STRIDE + part);
                        a[m][0] = row[pair];
                        a[m][1] = row[8 * STRIDE / 2 + pair];
                        a[m][2] = row[pair + 4];
                        a[m][3] = row[8 * STRIDE / 2 + pair + 4];
                    }
#pragma unroll
                    for (int n = 0; n < 4; ++n) {
                        const int tile_row = gate_up ? n / 2 * 32 + warp_rows * 16 + n % 2 * 8
                                                     : warp_rows * 32 + n * 8;
                        const unsigned* row = reinterpret_cast<const unsigned*>(
                            tiles.weights + (tile_row + group) * STRIDE + part);
                        const unsigned b[2] = {row[pair], row[pair + 4]};
                        mma_16x8x16(sums[0][n], a[0], b);
                        mma_16x8x16(sums[1][n], a[1], b);
                    }
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int m = i / 2, upper = i % 2 * 2;
            const int place = base + warp_tokens + m * 16 + i % 2 * 8 + group;
            if (place >= end) continue;
            const u64 target = static_cast<u64>(gate_up ? place : order[place]) * rows;
#pragma unroll
            for (int n = 0; n < (gate_up ? 2 : 4); ++n) {
                float low = sums[m][n][upper], high = sums[m][n][upper + 1];
                if (gate_up) {
                    low = silu(low) * sums[m][n + 2][upper];
                    high = silu(high) * sums[m][n + 2][upper + 1];
                }
                const int column = first + (gate_up ? warp_rows * 16 : warp_rows * 32) + n * 8;
                reinterpret_cast<unsigned*>(outputs + target + column)[pair] =
                    float2_to_half2(low, high);
            }
        }
    }
}

// inner half [pairs, intermediate] = silu(gate) * up. Grid: (intermediate / 32, experts).
extern "C" __global__ void __launch_bounds__(THREADS)
prefill_gate_up(const u64* addresses, const int* offsets, const int* order,
                const unsigned short* hidden_states, unsigned short* inner, int first_expert,
                int k, int hidden, int intermediate, int group_size) {
    grid_launch_dependents();
    grid_dependency_wait();
    const int expert = first_expert + blockIdx.y;
    const int begin = offsets[expert], end = offsets[expert + 1];
    if (begin == end) return;
    const unsigned char* blob = reinterpret_cast<const unsigned char*>(addresses[blockIdx.y]);
    const unsigned char* scales = blob + static_cast<u64>(intermediate) * hidden;
    multiply<true>(blob, reinterpret_cast<const unsigned short*>(scales), hidden_states, inner,
                   order, begin, end, intermediate, hidden, group_size, k);
}

// outputs half [pairs, hidden] = down_proj inner. Grid: (hidden / 64, experts).
extern "C" __global__ void __launch_bounds__(THREADS)
prefill_down(const u64* addresses, const int* offsets, const int* order,
             const unsigned short* inner, unsigned short* outputs, int first_expert, int k,
             int hidden, int intermediate, int group_size) {
    grid_launch_dependents();
    grid_dependency_wait();
    const int expert = first_expert + blockIdx.y;
    const int begin = offsets[expert], end = offsets[expert + 1];
    if (begin == end) return;
    const unsigned char* blob = reinterpret_cast<const unsigned char*>(addresses[blockIdx.y]);
    const unsigned char* words = blob + static_cast<u64>(intermediate) * hidden +
                                 4ull * intermediate * (hidden / group_size);
    const unsigned char* scales = words + static_cast<u64>(intermediate) * hidden / 2;
    multiply<false>(words, reinterpret_cast<const unsigned short*>(scales), inner, outputs, order,
                    begin, end, hidden, intermediate, group_size, k);
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
prefill_gate_up_float(const u64* addresses, const int* offsets, const int* order,
                      const float* hidden_states, float* inner, int first_expert, int k,
                      int hidden, int intermediate, int group_size) {
    grid_launch_dependents();
    grid_dependency_wait();
    const int expert = first_expert + blockIdx.y, row = blockIdx.x * THREADS + threadIdx.x;
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
prefill_down_float(const u64* addresses, const int* offsets, const int* order, const float* inner,
                   float* outputs, int first_expert, int k, int hidden, int intermediate,
                   int group_size) {
    grid_launch_dependents();
    grid_dependency_wait();
    const int expert = first_expert + blockIdx.y, row = blockIdx.x * THREADS + threadIdx.x;
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
