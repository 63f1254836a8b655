// One decode step of a gated DeltaNet layer: short convolution over a ring of inputs, silu,
// l2-normed query and key, decay, delta rule and the gated norm, in one launch.
//
// A block owns one value head of one row and keeps its whole state [head_k_dim, head_v_dim] in
// registers: four columns (16 bytes) a thread, the rows dealt out in turn. State and ring were
// written by the step before; slots and positions are inputs of the whole step. So all of them
// are read before grid_dependency_wait(), only `projected` after it. Position 0 starts from zeros.
#include "common.cuh"

constexpr int THREADS = 256;
constexpr int ROWS = 16;     // rows of the state a thread holds, at most
constexpr int CHANNELS = 2;  // channels of the convolution a thread takes, at most

__device__ __forceinline__ float4 as_floats(uint4 bits) {
    return make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                       __uint_as_float(bits.w));
}

__device__ __forceinline__ float entry(const float4& ring, int index) {
    const float low = index & 1 ? ring.y : ring.x;
    const float high = index & 1 ? ring.w : ring.z;
    return index & 2 ? high : low;
}

// Grid (num_v_heads, rows). Columns of projected: q and k [num_k_heads, head_k_dim] each, v and z
// [num_v_heads, head_v_dim] each, b and a [num_v_heads] each.
// Two blocks share a multiprocessor where the compiler then needs no spills.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 860
#define BLOCKS 1
#else
#define BLOCKS 2
#endif
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    gdn_step(const float* projected, const float* conv_weight, const float* a_log,
             const float* dt_bias, const float* norm, float eps, float* conv_states,
             float* recurrent_states, const int* state_slots, const int* positions,
             int num_k_heads, int num_v_heads, int head_k_dim, int head_v_dim, float* out) {
    DYNAMIC_SHARED(float, shared);
    float* query = shared;
    float* key = query + head_k_dim;
    float* value = key + head_k_dim;
    float* delta = value + head_v_dim;
    float* dots = delta + head_v_dim;  // q.q, k.k, q.k
    float* squares = dots + 4;         // one a warp
    float* memory = squares + THREADS / 32;
    grid_launch_dependents();

    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    const int head = blockIdx.x, row = blockIdx.y;
    const int group = num_v_heads / num_k_heads, k_head = head / group;
    const int channels = 2 * num_k_heads * head_k_dim + num_v_heads * head_v_dim;
    const long long width = channels + num_v_heads * (head_v_dim + 2);
    const float* inputs = projected + row * width;
    const int position = positions[row];
    float* out_row = out + (static_cast<long long>(row) * num_v_heads + head) * head_v_dim;
    if (position < 0) {
        grid_dependency_wait();
        for (int j = tid; j < head_v_dim; j += THREADS) out_row[j] = 0.0f;
        return;
    }
    const long long slot = state_slots[row];

    // Everything that does not depend on this step's input.
    const int columns = head_v_dim / 4;
    const int ways = min(THREADS / columns, head_k_dim);
    const int way = tid / columns, column = tid % columns * 4;
    float* state = recurrent_states + (slot * num_v_heads + head) * head_k_dim * head_v_dim;
    float4 held[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int r = way + i * ways;
        held[i] = way < ways && r < head_k_dim && position > 0
                      ? as_floats(load_16(state + static_cast<long long>(r) * head_v_dim + column))
                      : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    const int mine = 2 * head_k_dim + head_v_dim;  // channels of this head
    int channel[CHANNELS];
    float4 ring[CHANNELS], taps[CHANNELS];
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
        const int i = tid + c * THREADS;
        if (i >= mine) continue;
        channel[c] = k_head * head_k_dim + i;
        if (i >= head_k_dim) channel[c] += (num_k_heads - 1) * head_k_dim;
        if (i >= 2 * head_k_dim)
            channel[c] = 2 * num_k_heads * head_k_dim + head * head_v_dim + i - 2 * head_k_dim;
        ring[c] = position > 0
                      ? as_floats(load_16(conv_states + (slot * channels + channel[c]) * 4))
                      : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        taps[c] = as_floats(load_16(conv_weight + channel[c] * 4));
    }
    const float rate = -expf(a_log[head]), bias = dt_bias[head];

    grid_dependency_wait();
    const float* gates = inputs + channels + num_v_heads * head_v_dim;
    const float beta = sigmoid(gates[head]);
    const float decay = expf(rate * softplus(gates[num_v_heads + head] + bias));
    const float z = tid < head_v_dim ? inputs[channels + head * head_v_dim + tid] : 0.0f;
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
        const int i = tid + c * THREADS;
        if (i >= mine) continue;
        const float newest = inputs[channel[c]];
        const float sum = taps[c].x * entry(ring[c], position + 1) +
                          taps[c].y * entry(ring[c], position + 2) +
                          taps[c].z * entry(ring[c], position + 3) + taps[c].w * newest;
        shared[i] = silu(sum);  // query, key and value lie one after the other
        // Heads that share a key head share its channels: the first of them writes. A new
        // sequence clears the entries that lie before it.
        if (i < 2 * head_k_dim && head % group != 0) continue;
        float* entries = conv_states + (slot * channels + channel[c]) * 4;
        if (position == 0)
            store_16(entries, make_uint4(__float_as_uint(newest), 0, 0, 0));
        else
            entries[position % 4] = newest;
    }
    __syncthreads();

    if (warp < 3) {
        const float* left = warp == 1 ? key : query;
        const float* right = warp == 0 ? query : key;
        float dot = 0.0f;
        for (int i = lane; i < head_k_dim; i += 32) dot += left[i] * right[i];
        dot = warp_sum(dot);
        if (lane == 0) dots[warp] = dot;
    }
    // state^T k and state^T q before decay and update, for the unscaled k and q.
    float4 by_key = make_float4(0.0f, 0.0f, 0.0f, 0.0f), by_query = by_key;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int r = way + i * ways;
        if (way >= ways || r >= head_k_dim) continue;
        const float k = key[r], q = query[r];
        by_key.x += held[i].x * k, by_key.y += held[i].y * k;
        by_key.z += held[i].z * k, by_key.w += held[i].w * k;
        by_query.x += held[i].x * q, by_query.y += held[i].y * q;
        by_query.z += held[i].z * q, by_query.w += held[i].w * q;
    }
    float* recalled = memory + ways * head_v_dim;
    if (way < ways) {
        float* key_part = memory + way * head_v_dim + column;
        float* query_part = recalled + way * head_v_dim + column;
        key_part[0] = by_key.x, key_part[1] = by_key.y;
        key_part[2] = by_key.z, key_part[3] = by_key.w;
        query_part[0] = by_query.x, query_part[1] = by_query.y;
        query_part[2] = by_query.z, query_part[3] = by_query.w;
    }
    __syncthreads();

    const float query_scale = rsqrtf(dots[0] + 1.0e-6f) * rsqrtf(static_cast<float>(head_k_dim));
    const float key_scale = rsqrtf(dots[1] + 1.0e-6f);
    float output = 0.0f;
    if (tid < head_v_dim) {
        float from_key = 0.0f, from_query = 0.0f;
#pragma unroll 8
        for (int w = 0; w < ways; ++w) {
            from_key += memory[w * head_v_dim + tid];
            from_query += recalled[w * head_v_dim + tid];
        }
        const float change = (value[tid] - decay * key_scale * from_key) * beta;
        delta[tid] = key_scale * change;
        output = query_scale * (decay * from_query + key_scale * dots[2] * change);
    }
    const float square = warp_sum(output * output);
    if (lane == 0) squares[warp] = square;
    __syncthreads();

    // decay * state + k delta^T
    if (way < ways) {
        const float4 d = as_floats(load_16(delta + column));
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const int r = way + i * ways;
            if (r >= head_k_dim) continue;
            const float k = key[r];
            store_16(state + static_cast<long long>(r) * head_v_dim + column,
                     make_uint4(__float_as_uint(held[i].x * decay + k * d.x),
                                __float_as_uint(held[i].y * decay + k * d.y),
                                __float_as_uint(held[i].z * decay + k * d.z),
                                __float_as_uint(held[i].w * decay + k * d.w)));
        }
    }
    const float sum = warp_sum(lane < THREADS / 32 ? squares[lane] : 0.0f);
    if (tid < head_v_dim)
        out_row[tid] = output * rsqrtf(sum / head_v_dim + eps) * norm[tid] * silu(z);
}
