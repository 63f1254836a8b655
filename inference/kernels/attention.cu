// One decode step of grouped-query attention over paged keys and values, in two launches.
//
// attend: a block takes one key-value head (up to eight of its query heads), one split of the
// tokens and one row. It norms and rotates the queries, the block of the newest token does the
// same to the key and writes key and value into their page; every group of lanes then runs an
// online softmax over its own tokens, and the block merges them into one partial result.
// combine: merges the splits in order and applies the output gate.
//
// Positions and block tables are inputs of the whole step and pages of earlier tokens were
// written by earlier steps, so they are read before grid_dependency_wait().
#include "attention_pages.cuh"
#include "common.cuh"

constexpr int WARPS = 8;
constexpr int HEADS = 8;        // query heads of one block
constexpr int MERGE_HEADS = 4;  // heads merged at a time, bounded by shared memory
constexpr float LOWEST = -1.0e30f;

struct Step {
    const float* projected;
    const float* q_norm;
    const float* k_norm;
    float eps;
    int zero_centred;
    int gated;
    const float* cosine;
    const float* sine;
    int half_rotary;
    const int* positions;
    const int* tables;
    int table_width;
    char* keys;
    char* values;
    float* key_scales;
    float* value_scales;
    int num_heads;
    int num_kv_heads;
    int head_dim;
    int page_shift;
    int splits;
    int min_tokens;
    float* partial;
    float* stats;
};

// Tokens of one split: a multiple of 4, so that four tokens of a lane share a page.
__device__ __forceinline__ int tokens_per_split(int length, int splits, int min_tokens) {
    const int share = max((length + splits - 1) / splits, min_tokens);
    return (share + 3) & ~3;
}

// One warp: row[head_dim] = rotate(norm(x)), in shared memory.
__device__ void head_row(const Step& s, const float* x, const float* norm, int position,
                         bool is_value, float* row) {
    const int lane = threadIdx.x % 32;
    float v[8];
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int j = lane + 32 * i;
        v[i] = j < s.head_dim ? x[j] : 0.0f;
        squares += v[i] * v[i];
    }
    if (norm != nullptr && !is_value) {
        const float scale = rsqrtf(warp_sum(squares) / s.head_dim + s.eps);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int j = lane + 32 * i;
            if (j < s.head_dim) v[i] *= scale * (s.zero_centred ? 1.0f + norm[j] : norm[j]);
        }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
        if (lane + 32 * i < s.head_dim) row[lane + 32 * i] = v[i];
    __syncwarp();
    if (!is_value) {
        const long long angles = static_cast<long long>(position) * s.half_rotary;
        for (int j = lane; j < s.half_rotary; j += 32) {
            const float c = s.cosine[angles + j], n = s.sine[angles + j];
            const float a = row[j], b = row[j + s.half_rotary];
            row[j] = a * c - b * n;
            row[j + s.half_rotary] = b * c + a * n;
        }
    }
    __syncwarp();
}

// Sums eight values over LANES lanes; each lane is left with the sum of one of them, value
// (lane & LANES/2 ? 4 : 0) + (lane & LANES/4 ? 2 : 0) + (lane & LANES/8 ? 1 : 0).
template <int LANES>
__device__ __forceinline__ float sum_of_my_head(float* v) {
    const int lane = threadIdx.x % 32;
    int live = HEADS;
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2) {
        if (live > 1) {
            const bool upper = (lane & offset) != 0;
            live /= 2;
#pragma unroll
            for (int i = 0; i < HEADS / 2; ++i) {
                if (i >= live) continue;
                const float sent = upper ? v[i] : v[i + live];
                const float kept = upper ? v[i + live] : v[i];
                v[i] = kept + __shfl_xor_sync(0xffffffffu, sent, offset);
            }
        } else {
            v[0] += __shfl_xor_sync(0xffffffffu, v[0], offset);
        }
    }
    return v[0];
}

template <int LANES>
__device__ __forceinline__ int lane_of_head(int head) {
    return (head & 4 ? LANES / 2 : 0) | (head & 2 ? LANES / 4 : 0) | (head & 1 ? LANES / 8 : 0);
}

// The online softmax of one group of lanes; maximum and sum belong to the lane's own head.
struct Softmax {
    float sums[HEADS][8];
    float maximum;
    float total;
};

template <int KIND, int LANES, int TILE>
__device__ __forceinline__ void score_tile(const Tile<KIND, LANES, TILE>& keys,
                                           const float (&query)[HEADS][8], float* scores) {
#pragma unroll
    for (int t = 0; t < TILE; ++t) {
        float key[8];
        keys.data[t].unpack(key);
        float dots[HEADS];
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            dots[h] = query[h][0] * key[0];
#pragma unroll
            for (int i = 1; i < 8; ++i) dots[h] += query[h][i] * key[i];
        }
        scores[t] = sum_of_my_head<LANES>(dots) * keys.scale(t);
    }
}

template <int LANES, int TILE>
__device__ __forceinline__ void weigh_tile(Softmax& state, float* scores, int count) {
    const int base = threadIdx.x % 32 & ~(LANES - 1);
    float maximum = state.maximum;
#pragma unroll
    for (int t = 0; t < TILE; ++t)
        if (t < count) maximum = fmaxf(maximum, scores[t]);
    const float shrink = expf(state.maximum - maximum);
    state.maximum = maximum;
    state.total *= shrink;
#pragma unroll
    for (int t = 0; t < TILE; ++t) {
        scores[t] = t < count ? expf(scores[t] - maximum) : 0.0f;
        state.total += scores[t];
    }
    if (__ballot_sync(0xffffffffu, shrink != 1.0f) == 0) return;
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        const float factor = __shfl_sync(0xffffffffu, shrink, base | lane_of_head<LANES>(h));
#pragma unroll
        for (int i = 0; i < 8; ++i) state.sums[h][i] *= factor;
    }
}

template <int KIND, int LANES, int TILE>
__device__ __forceinline__ void add_tile(Softmax& state, const Tile<KIND, LANES, TILE>& values,
                                         const float* weights) {
    const int base = threadIdx.x % 32 & ~(LANES - 1);
#pragma unroll
    for (int t = 0; t < TILE; ++t) {
        float value[8];
        values.data[t].unpack(value);
        const float weight = weights[t] * values.scale(t);
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            const float w = __shfl_sync(0xffffffffu, weight, base | lane_of_head<LANES>(h));
#pragma unroll
            for (int i = 0; i < 8; ++i) state.sums[h][i] += w * value[i];
        }
    }
}

// Merges the groups of lanes of the block and writes the partial result of its split.
template <int LANES>
__device__ __forceinline__ void merge_block(const Step& s, Softmax& state, int first_head,
                                            int heads, float* merged, float* factors) {
    constexpr int WRITERS = WARPS * 32 / LANES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = lane % LANES;
    const int writer = threadIdx.x / LANES;
    float* totals = factors + HEADS * WRITERS;
    const long long out_row =
        (static_cast<long long>(blockIdx.z) * s.num_heads + first_head) * s.splits + blockIdx.y;
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        if (part != lane_of_head<LANES>(h)) continue;
        factors[h * WRITERS + writer] = state.maximum;
        totals[h * WRITERS + writer] = state.total;
    }
    __syncthreads();
    {  // warp h works out the factors of head h; the writers are at most 32
        const bool mine = lane < WRITERS;
        const int slot = warp * WRITERS + lane;
        const float own = mine ? factors[slot] : LOWEST;
        const float maximum = warp_max(own);
        const float factor = expf(own - maximum);
        const float total = warp_sum(mine ? totals[slot] * factor : 0.0f);
        if (mine) factors[slot] = factor;
        if (lane == 0 && warp < heads) {
            float* stats = s.stats + (out_row + static_cast<long long>(warp) * s.splits) * 2;
            stats[0] = maximum;
            stats[1] = total;
        }
    }
    constexpr int ROW = LANES * 8;
#pragma unroll
    for (int first = 0; first < HEADS; first += MERGE_HEADS) {
        __syncthreads();
#pragma unroll
        for (int h = 0; h < MERGE_HEADS; ++h) {
            const float factor = factors[(first + h) * WRITERS + writer];
            float* slot = merged + (writer * MERGE_HEADS + h) * ROW + part * 8;
#pragma unroll
            for (int i = 0; i < 8; ++i) slot[i] = state.sums[first + h][i] * factor;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < MERGE_HEADS * ROW; i += WARPS * 32) {
            const int h = i / ROW, dim = i % ROW;
            if (dim >= s.head_dim || first + h >= heads) continue;
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < WRITERS; ++w) sum += merged[w * MERGE_HEADS * ROW + i];
            s.partial[(out_row + static_cast<long long>(first + h) * s.splits) * s.head_dim +
                      dim] = sum;
        }
    }
}

template <int KIND, int LANES, int TILE>
__device__ void attend(const Step& s) {
    constexpr int WRITERS = WARPS * 32 / LANES;
    DYNAMIC_SHARED(float, shared);
    float* rows = shared;    // [10, head_dim]: queries, key, value; later the merge
    float* factors = shared + WARPS * 32 * 8 * MERGE_HEADS;
    int* table = reinterpret_cast<int*>(factors + 2 * HEADS * WRITERS);
    grid_launch_dependents();

    const int group = s.num_heads / s.num_kv_heads;
    const int head_blocks = (group + HEADS - 1) / HEADS;
    const int kv_head = blockIdx.x / head_blocks;
    const int first_in_group = blockIdx.x % head_blocks * HEADS;
    const int first_head = kv_head * group + first_in_group;
    const int heads = min(HEADS, group - first_in_group);
    const int position = s.positions[blockIdx.z];
    const int share = tokens_per_split(position + 1, s.splits, s.min_tokens);
    const int start = blockIdx.y * share;
    if (position < 0 || start > position) {
        grid_dependency_wait();
        return;
    }
    const int end = min(start + share, position + 1);
    const bool owner = end == position + 1;  // writes the newest token and takes it last
    const int stored = end - (owner ? 1 : 0);
    const int first_page = start >> s.page_shift;
    const int page_mask = (1 << s.page_shift) - 1;
    for (int i = threadIdx.x; i <= ((end - 1) >> s.page_shift) - first_page; i += WARPS * 32)
        table[i] = s.tables[blockIdx.z * s.table_width + first_page + i];
    __syncthreads();

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int writer = threadIdx.x / LANES;
    const int passes = (stored - start + WRITERS * TILE - 1) / (WRITERS * TILE) + (owner ? 1 : 0);
    const int own_pass = owner ? passes - 1 : passes;
    const auto token_row = [&](int token) {
        const long long page = table[(token >> s.page_shift) - first_page];
        return ((page * s.num_kv_heads + kv_head) << s.page_shift) + (token & page_mask);
    };
    const auto first_token = [&](int pass) {
        return pass == own_pass ? position : start + (pass * WRITERS + writer) * TILE;
    };
    const auto count_of = [&](int pass) {
        if (pass == own_pass) return writer == 0 ? 1 : 0;
        return max(0, min(TILE, stored - first_token(pass)));
    };
    Tile<KIND, LANES, TILE> keys, values;
    const auto load = [&](Tile<KIND, LANES, TILE>& tile, const char* pages, const float* scales,
                          int pass) {
        const int count = count_of(pass);
        const long long row = count > 0 ? token_row(first_token(pass)) : 0;
        tile.load(pages, scales, row, count, s.head_dim);
    };
    if (own_pass > 0) {
        load(keys, s.keys, s.key_scales, 0);
        load(values, s.values, s.value_scales, 0);
    }

    grid_dependency_wait();
    const int query_stride = s.gated ? 2 * s.head_dim : s.head_dim;
    const int kv_columns = s.num_kv_heads * s.head_dim;
    const float* key_input = s.projected + s.num_heads * query_stride + kv_head * s.head_dim +
                             static_cast<long long>(blockIdx.z) *
                                 (s.num_heads * query_stride + 2 * kv_columns);
    const float* query_input = key_input - s.num_heads * query_stride - kv_head * s.head_dim;
    for (int task = warp; task < HEADS + (owner ? 2 : 0); task += WARPS) {
        float* row = rows + task * s.head_dim;
        if (task < heads) {
            head_row(s, query_input + (first_head + task) * query_stride, s.q_norm, position, false,
                     row);
        } else if (task < HEADS) {
            for (int j = lane; j < s.head_dim; j += 32) row[j] = 0.0f;
        } else if (task == HEADS) {
            head_row(s, key_input, s.k_norm, position, false, row);
            store_row<KIND>(s.keys, s.key_scales, token_row(position), s.head_dim, row);
        } else {
            head_row(s, key_input + kv_columns, nullptr, position, true, row);
            store_row<KIND>(s.values, s.value_scales, token_row(position), s.head_dim, row);
        }
    }
    __syncthreads();

    float query[HEADS][8];
    const int dim = threadIdx.x % LANES * 8;
    const float query_scale = rsqrtf(static_cast<float>(s.head_dim));
#pragma unroll
    for (int h = 0; h < HEADS; ++h)
#pragma unroll
        for (int i = 0; i < 8; ++i)
            query[h][i] =
                dim < s.head_dim ? rows[h * s.head_dim + dim + i] * query_scale : 0.0f;
    if (own_pass == 0) {
        load(keys, s.keys, s.key_scales, 0);
        load(values, s.values, s.value_scales, 0);
    }
    Softmax state;
    state.maximum = LOWEST;
    state.total = 0.0f;
#pragma unroll
    for (int h = 0; h < HEADS; ++h)
#pragma unroll
        for (int i = 0; i < 8; ++i) state.sums[h][i] = 0.0f;
    for (int pass = 0; pass < passes; ++pass) {
        float scores[TILE];
        score_tile(keys, query, scores);
        if (pass + 1 < passes) load(keys, s.keys, s.key_scales, pass + 1);
        weigh_tile<LANES, TILE>(state, scores, count_of(pass));
        add_tile(state, values, scores);
        if (pass + 1 < passes) load(values, s.values, s.value_scales, pass + 1);
    }
    merge_block<LANES>(s, state, first_head, heads, shared, factors);
}

#define ATTEND(NAME, KIND, LANES, TILE)                                                          \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 1)                                  \
        NAME(const float* projected, const float* q_norm, const float* k_norm, float eps,        \
             int zero_centred, int gated, const float* cosine, const float* sine,                \
             int half_rotary, const int* positions, const int* tables, int table_width,          \
             char* keys, char* values, float* key_scales, float* value_scales, int num_heads,    \
             int num_kv_heads, int head_dim, int page_shift, int splits, int min_tokens,         \
             float* partial, float* stats) {                                                     \
        const Step step = {projected,    q_norm,       k_norm,       eps,      zero_centred,     \
                           gated,        cosine,       sine,         half_rotary, positions,     \
                           tables,       table_width,  keys,         values,   key_scales,       \
                           value_scales, num_heads,    num_kv_heads, head_dim, page_shift,       \
                           splits,       min_tokens,   partial,      stats};                     \
        attend<KIND, LANES, TILE>(step);                                                         \
    }

ATTEND(attend_fp32, FP32, 32, 1)
ATTEND(attend_fp16_64, FP16, 8, 4)
ATTEND(attend_fp16_128, FP16, 16, 4)
ATTEND(attend_fp16_256, FP16, 32, 4)
ATTEND(attend_fp8_128, FP8, 16, 4)
ATTEND(attend_fp8_256, FP8, 32, 4)

constexpr int COMBINE_COLUMNS = 64;
constexpr int COMBINE_LANES = 16;
constexpr int MAX_SPLITS = COMBINE_COLUMNS / 4 * COMBINE_LANES;

// Grid (num_heads, head_dim / 64 rounded up, rows), 256 threads: 16 threads of 4 columns, 16 ways
// over the splits.
extern "C" __global__ void __launch_bounds__(256)
    combine(const float* partial, const float* stats, const float* projected, const int* positions,
            int gated, int num_heads, int num_kv_heads, int head_dim, int splits, int min_tokens,
            float* out) {
    __shared__ float weights[MAX_SPLITS];
    __shared__ float scratch[33];
    __shared__ float sums[COMBINE_LANES * COMBINE_COLUMNS];
    grid_launch_dependents();
    const int tid = threadIdx.x, head = blockIdx.x, row = blockIdx.z;
    const int column = blockIdx.y * COMBINE_COLUMNS;
    const int position = positions[row];
    const int share = tokens_per_split(position + 1, splits, min_tokens);
    const int active = position < 0 ? 0 : position / share + 1;
    const long long first = (static_cast<long long>(row) * num_heads + head) * splits;
    const int stride = gated ? 2 * head_dim : head_dim;
    const long long width = num_heads * stride + 2 * num_kv_heads * head_dim;
    grid_dependency_wait();

    const float maximum = tid < active ? stats[(first + tid) * 2] : LOWEST;
    const float highest = block_max(maximum, scratch);
    const float factor = tid < active ? expf(maximum - highest) : 0.0f;
    weights[tid] = factor;
    const float total =
        block_sum(tid < active ? factor * stats[(first + tid) * 2 + 1] : 0.0f, scratch);
    const int my_column = column + tid % COMBINE_LANES * 4;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (my_column < head_dim) {
#pragma unroll 4
        for (int i = tid / COMBINE_LANES; i < active; i += COMBINE_LANES) {
            const uint4 bits = load_16(partial + (first + i) * head_dim + my_column);
            sum.x += weights[i] * __uint_as_float(bits.x);
            sum.y += weights[i] * __uint_as_float(bits.y);
            sum.z += weights[i] * __uint_as_float(bits.z);
            sum.w += weights[i] * __uint_as_float(bits.w);
        }
    }
    float* slot = sums + tid / COMBINE_LANES * COMBINE_COLUMNS + tid % COMBINE_LANES * 4;
    slot[0] = sum.x, slot[1] = sum.y, slot[2] = sum.z, slot[3] = sum.w;
    __syncthreads();
    if (tid >= COMBINE_COLUMNS || column + tid >= head_dim) return;
    float value = 0.0f;
#pragma unroll
    for (int i = 0; i < COMBINE_LANES; ++i) value += sums[i * COMBINE_COLUMNS + tid];
    value = active > 0 ? value / total : 0.0f;
    if (gated)
        value *= sigmoid(projected[row * width + head * stride + head_dim + column + tid]);
    out[(static_cast<long long>(row) * num_heads + head) * head_dim + column + tid] = value;
}
