// What a layer does with its router logits, decided by one block without the host: top-k and
// weights, hits and misses, victims, what to prefetch, and the counters. Knows experts by number
// and weights by address only.
#include "moe_top_k.cuh"

typedef unsigned long long u64;

#define MAX_COPIES 8
#define COMBINATION_INTS 18  // MAX_WORDS of the set, repeats, position

// Indices of `counters`; inference/moe/router_counters.py has the same names.
enum {
    HITS, MISSES, BYTES_READ, PREFETCHED, PREFETCH_USEFUL, PREFETCH_WASTED, PREDICTED_RIGHT,
    PREDICTED_TOTAL, RIGHT_ON_MISSES, MISSES_WITH_PREDICTION, EVICTIONS, LATE, REPEATED,
    UNFILLED, TIMED_COUNTERS, HIT_NS = TIMED_COUNTERS, HIT_LAYERS, MISS_NS, MISS_LAYERS,
    NUM_COUNTERS
};

// One step of one layer. Tables over layers are indexed by `layer`; see ExpertSlots for each.
//
// A record of `jobs` is [source, host, fill, rows | (arrival + 1) << 32]: where the expert's blob
// is read, where it lies in host memory, the slot to fill while reading (0: none), how many rows
// of the batch use it, and which prefetch of this layer brought it (arrival -1: none). Misses come
// first, then hits, each by expert.
extern "C" __global__ void __launch_bounds__(SELECT_THREADS, 1)
moe_select(const float* logits, const float* next_logits, const int* positions,
           const int* sequence_slots, u64* addresses, const u64* host_layers, int* slot_of,
           int* expert_of, const int* slot_begin, u64 pool, int blob_bytes, float* frequency,
           unsigned* predicted, u64* copies, int* copy_experts, int* copy_counts,
           unsigned* arrived, int* combinations, u64* jobs, int* job_pairs, int* num_jobs,
           int* topk_ids, float* topk_weights, u64* counters, u64* uses, u64* timer, u64* steps,
           const u64* overrides, int layer, int model_layer, int num_layers, int batch,
           int experts, int k, int normalise, int predict, int width, int max_copies,
           int num_sequences, int repeats, int seed, float decay, float temperature,
           float penalty) {
    __shared__ int row_bits[MAX_EXPERTS];   // rows of the batch that use the expert
    __shared__ int next_bits[MAX_EXPERTS];  // rows predicted to use it in the next layer
    __shared__ __align__(16) float values[MAX_EXPERTS];  // by slot, for the choice of victims
    __shared__ int residents[MAX_EXPERTS];  // expert by slot
    __shared__ int next_residents[MAX_EXPERTS];
    __shared__ float frequencies[MAX_EXPERTS];
    __shared__ unsigned current[8][MAX_WORDS];  // what was predicted for this layer
    __shared__ int ids[MAX_PAIRS], next_ids[MAX_PAIRS], next_slots[MAX_PAIRS];
    __shared__ int victims[MAX_PAIRS], chosen[MAX_COPIES];
    __shared__ int segments[2][MAX_WORDS];
    __shared__ int deltas[TIMED_COUNTERS];
    __shared__ int num_chosen, in_flight_count;
    __shared__ int in_flight[MAX_COPIES];
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int words = (experts + 31) / 32;
    const int table = layer * experts, next_table = table + experts;
    const bool has_next = predict != 0 && layer + 1 < num_layers;
    grid_launch_dependents();

    // Before the wait: everything but the logits. moe_route lets this kernel start after its own
    // wait, so all kernels before it are complete; past the first-level cache all the same.
    for (int e = tid; e < MAX_EXPERTS; e += SELECT_THREADS) row_bits[e] = next_bits[e] = 0;
    if (tid < TIMED_COUNTERS) deltas[tid] = 0;
    if (tid < MAX_COPIES) in_flight[tid] = __ldcg(copy_experts + layer * MAX_COPIES + tid);
    if (tid == 0) in_flight_count = __ldcg(copy_counts + layer);
    if (tid < 8 * MAX_WORDS)
        current[tid / MAX_WORDS][tid % MAX_WORDS] =
            __ldcg(predicted + layer * 8 * MAX_WORDS + tid);
    const u64 step = layer == 0 ? __ldcg(steps) : __ldcg(steps) - 1;
    const int begin = slot_begin[layer], num_slots = slot_begin[layer + 1] - begin;
    const int next_begin = begin + num_slots;
    const int next_count = has_next ? slot_begin[layer + 2] - next_begin : 0;
    bool active = false;
    for (int b = 0; b < batch; ++b) active = active || __ldcg(positions + b) >= 0;
    int slots[2];
    float previous[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int e = i * SELECT_THREADS + tid;
        slots[i] = e < experts ? __ldcg(slot_of + table + e) : -1;
        previous[i] = e < experts ? __ldcg(frequency + table + e) : 0.0f;
        if (e < num_slots) residents[e] = __ldcg(expert_of + begin + e);
        if (e < next_count) next_residents[e] = __ldcg(expert_of + next_begin + e);
    }
    // A copy of the step before that never arrived: its slot holds nothing.
    int lost_expert = 0, lost_slot = -1;
    if (has_next && tid < __ldcg(copy_counts + layer + 1)) {
        const int entry = (layer + 1) * MAX_COPIES + tid;
        lost_expert = __ldcg(copy_experts + entry);
        if (__ldcg(arrived + entry) != static_cast<unsigned>(blob_bytes))
            lost_slot = __ldcg(slot_of + next_table + lost_expert);
    }
    // A warp decides row `warp`, and predicts one more: its tasks are `warp` and `warp + 8`.
    int forced[2] = {-1, -1};
#pragma unroll
    for (int t = 0; t < 2; ++t) {
        const int task = warp + t * (SELECT_THREADS / 32);
        const int ahead = task >= batch ? 1 : 0;
        const u64 override_table = __ldcg(overrides + ahead);
        if (override_table == 0 || task >= 2 * batch || lane >= k || (ahead && !has_next)) continue;
        const unsigned at =
            static_cast<unsigned>(step) % static_cast<unsigned>(__ldcg(overrides + 2));
        forced[t] = __ldcg(reinterpret_cast<const int*>(override_table) +
                           (at * num_layers + layer + ahead) * __ldcg(overrides + 3) +
                           task % batch * k + lane);
    }
    const int own = min(warp, batch - 1), position = __ldcg(positions + own);
    const int sequence = sequence_slots != nullptr ? __ldcg(sequence_slots + own) : own;
    int* record = combinations + (layer * num_sequences + sequence) * COMBINATION_INTS;
    unsigned last = 0;
    int run = 0;
    if (position >= 0) {
        if (lane < MAX_WORDS) last = static_cast<unsigned>(__ldcg(record + lane));
        // A sequence that does not go on where the record ends is another one.
        const int repeated = __ldcg(record + MAX_WORDS);
        if (__ldcg(record + MAX_WORDS + 1) == position) run = repeated;
    }
    const u64 start = __ldcg(timer), end = __ldcg(timer + 1), kind = __ldcg(timer + 2);
    __syncthreads();
    grid_dependency_wait();
    if (lost_slot >= 0) {
        next_residents[lost_slot] = -1;
        slot_of[next_table + lost_expert] = -1;
        expert_of[next_begin + lost_slot] = -1;
        addresses[next_table + lost_expert] =
            host_layers[layer + 1] + static_cast<u64>(lost_expert) * blob_bytes;
    }
    if (has_next) __syncthreads();

#pragma unroll 1
    for (int task = warp; task < 2 * batch; task += SELECT_THREADS / 32) {
        const int row = task % batch;
        const bool next = task >= batch;
        if (next && !has_next) continue;
        const int forced_id = task == warp ? forced[0] : forced[1];
        const bool is_forced = __ballot_sync(0xffffffffu, forced_id >= 0) != 0u;
        const bool padding = positions[row] < 0;
        const float* source = next ? next_logits : logits;
        float v[MAX_WORDS];
#pragma unroll
        for (int i = 0; i < MAX_WORDS; ++i) {
            const int e = i * 32 + lane;
            v[i] = e < experts ? bounded(source[row * experts + e]) : 0.0f;
        }
        int id = 0;
        float value = 0.0f;
        if (next) {
            warp_top_k(v, words, experts, k, &id, &value);
            if (is_forced && lane < k) id = forced_id;
            unsigned word = words_of(id, k);
            if (padding) word = 0;
            if (lane < MAX_WORDS)
                predicted[((layer + 1) * 8 + row) * MAX_WORDS + lane] = word;
            if (lane < k) {
                next_ids[row * k + lane] = padding ? -1 : id;
                if (!padding) {
                    next_slots[row * k + lane] = slot_of[next_table + id];
                    atomicAdd(&next_bits[id], 1 << row);
                }
            }
            continue;
        }
        if (padding) {
            if (lane < k) {
                ids[row * k + lane] = -1;
                topk_ids[row * k + lane] = -1;
                topk_weights[row * k + lane] = 0.0f;
            }
            continue;
        }
        if (temperature > 0.0f) {
#pragma unroll
            for (int i = 0; i < MAX_WORDS; ++i)
                if (i * 32 + lane < experts)
                    v[i] += temperature * gumbel(seed, model_layer, position, i * 32 + lane);
        }
        if (penalty != 0.0f && run >= repeats) {
#pragma unroll
            for (int i = 0; i < MAX_WORDS; ++i)
                if (__shfl_sync(0xffffffffu, last, i) >> lane & 1u) v[i] -= penalty;
        }
        warp_top_k(v, words, experts, k, &id, &value);
        float most = __shfl_sync(0xffffffffu, value, 0);
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < MAX_WORDS; ++i)
            if (i * 32 + lane < experts) sum += expf(v[i] - most);
        sum = warp_sum(sum);
        if (is_forced) {
            // Weights of the forced ids are the router's own, noise and fatigue left out.
            if (lane < k) {
                id = forced_id;
                value = bounded(logits[row * experts + id]);
            }
        }
        float weight = lane < k ? expf(value - most) / sum : 0.0f;
        if (normalise != 0) {
            float total = 0.0f;
            for (int r = 0; r < k; ++r) total += __shfl_sync(0xffffffffu, weight, r);
            weight = weight / total;
        }
        const unsigned word = words_of(id, k);
        const bool same = __ballot_sync(0xffffffffu, lane < MAX_WORDS && word != last) == 0u;
        __syncwarp();
        if (lane < MAX_WORDS) record[lane] = static_cast<int>(word);
        if (lane == 0) {
            record[MAX_WORDS] = same && run > 0 ? run + 1 : 1;
            record[MAX_WORDS + 1] = position + 1;
            if (same && run > 0) atomicAdd(&deltas[REPEATED], 1);
        }
        if (lane < k) {
            ids[row * k + lane] = id;
            topk_ids[row * k + lane] = id;
            topk_weights[row * k + lane] = weight;
            atomicAdd(&row_bits[id], 1 << row);
            if (predict != 0 && layer > 0) {
                atomicAdd(&deltas[PREDICTED_TOTAL], 1);
                if (current[row][id / 32] >> (id % 32) & 1u)
                    atomicAdd(&deltas[PREDICTED_RIGHT], 1);
            }
        }
    }
    __syncthreads();

    // Decayed frequencies, hits and misses. A hit that a prefetch of this step brought would have
    // been a miss without it.
    int arrivals[2], places[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int e = i * SELECT_THREADS + tid;
        const bool used = e < experts && row_bits[e] != 0;
        const bool miss = used && slots[i] < 0;
        arrivals[i] = -1;
        const unsigned misses = __ballot_sync(0xffffffffu, miss);
        const unsigned hits = __ballot_sync(0xffffffffu, used && !miss);
        if (lane == 0) {
            segments[0][i * 8 + warp] = __popc(misses);
            segments[1][i * 8 + warp] = __popc(hits);
        }
        places[i] = __popc((miss ? misses : hits) & ((1u << lane) - 1u));
        if (e >= experts) continue;
        // Rounded twice on every machine: the choice of victims can be replayed. A step of nothing
        // but padding does not count.
        const float next = __fadd_rn(__fmul_rn(previous[i], decay), used ? 1.0f : 0.0f);
        const float now = active ? next : previous[i];
        frequencies[e] = now;
        frequency[table + e] = now;
        if (!used) continue;
        atomicAdd(&uses[table + e], static_cast<u64>(__popc(row_bits[e])));
        for (int c = 0; c < in_flight_count; ++c)
            if (in_flight[c] == e) arrivals[i] = c;
        if (predict != 0 && layer > 0 && (miss || arrivals[i] >= 0)) {
            bool right = false;
            for (int b = 0; b < batch; ++b)
                if (row_bits[e] >> b & 1)
                    right = right || (current[b][e / 32] >> (e % 32) & 1u) != 0u;
            atomicAdd(&deltas[MISSES_WITH_PREDICTION], 1);
            if (right) atomicAdd(&deltas[RIGHT_ON_MISSES], 1);
        }
    }
    __syncthreads();
    int total_misses = 0, total_hits = 0;
    int misses_before[2] = {0, 0}, hits_before[2] = {0, 0};
    for (int s = 0; s < MAX_WORDS; ++s) {
        if (s == warp) misses_before[0] = total_misses, hits_before[0] = total_hits;
        if (s == warp + 8) misses_before[1] = total_misses, hits_before[1] = total_hits;
        total_misses += segments[0][s];
        total_hits += segments[1][s];
    }
    if (total_misses > 0) {
        for (int s = tid; s < (num_slots + 3) / 4 * 4; s += SELECT_THREADS) {
            const int e = s < num_slots ? residents[s] : -1;
            float value = s < num_slots ? -1.0f : INELIGIBLE;
            if (e >= 0) {
                value = row_bits[e] != 0 ? INELIGIBLE : frequencies[e];
                // What is in flight was predicted.
                for (int b = 0; b < batch; ++b)
                    if (current[b][e / 32] >> (e % 32) & 1u) value = INELIGIBLE;
            }
            values[s] = value;
        }
        __syncthreads();
        least_slots(values, num_slots, total_misses, victims);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int e = i * SELECT_THREADS + tid;
        if (e >= experts || row_bits[e] == 0) continue;
        const bool miss = slots[i] < 0;
        const int job = places[i] + (miss ? misses_before[i] : total_misses + hits_before[i]);
        const u64 host = host_layers[layer] + static_cast<u64>(e) * blob_bytes;
        u64 source = host, fill = 0;
        if (!miss) source = pool + static_cast<u64>(begin + slots[i]) * blob_bytes;
        const int victim = miss ? victims[job] : -1;
        if (victim >= 0) {
            const int evicted = residents[victim];
            if (evicted >= 0) {
                slot_of[table + evicted] = -1;
                addresses[table + evicted] =
                    host_layers[layer] + static_cast<u64>(evicted) * blob_bytes;
                atomicAdd(&deltas[EVICTIONS], 1);
            }
            fill = pool + static_cast<u64>(begin + victim) * blob_bytes;
            expert_of[begin + victim] = e;
            slot_of[table + e] = victim;
            addresses[table + e] = fill;
        }
        if (miss && victim < 0) atomicAdd(&deltas[UNFILLED], 1);
        const u64 rows = __popc(row_bits[e]);
        jobs[job * 4] = source;
        jobs[job * 4 + 1] = host;
        jobs[job * 4 + 2] = fill;
        jobs[job * 4 + 3] = rows | static_cast<u64>(arrivals[i] + 1) << 32;
        int* pairs = job_pairs + job * 8;
        for (int b = 0; b < batch; ++b)
            if (row_bits[e] >> b & 1)
                for (int r = 0; r < k; ++r)
                    if (ids[b * k + r] == e) *pairs++ = b * k + r;
    }
    if (tid < in_flight_count)
        atomicAdd(&deltas[row_bits[in_flight[tid]] != 0 ? PREFETCH_USEFUL : PREFETCH_WASTED], 1);
    if (batch == 1 && warp == 1) {
        // As below for one row, all ranks at once.
        bool wanted = has_next && lane < min(width, k);
        wanted = wanted && next_ids[lane] >= 0 && next_slots[lane] < 0;
        const unsigned all = __ballot_sync(0xffffffffu, wanted);
        const int place = __popc(all & ((1u << lane) - 1u));
        if (wanted && place < max_copies) chosen[place] = next_ids[lane];
        if (lane == 0) num_chosen = min(max_copies, __popc(all));
    }
    if (tid == 0) {
        num_jobs[0] = total_misses + total_hits;
        atomicAdd(&deltas[HITS], total_hits);
        atomicAdd(&deltas[MISSES], total_misses);
        if (batch > 1) num_chosen = 0;
        if (has_next && batch > 1)
            // Best rank first; rows take turns.
            for (int r = 0; r < min(width, k); ++r)
                for (int b = 0; b < batch; ++b) {
                    const int e = next_ids[b * k + r];
                    if (e < 0 || next_slots[b * k + r] >= 0 || num_chosen == max_copies) continue;
                    bool known = false;
                    for (int c = 0; c < num_chosen; ++c) known = known || chosen[c] == e;
                    if (!known) chosen[num_chosen++] = e;
                }
    }
    __syncthreads();

    if (has_next) {
        if (num_chosen > 0) {
            for (int s = tid; s < (next_count + 3) / 4 * 4; s += SELECT_THREADS) {
                const int e = s < next_count ? next_residents[s] : -1;
                float value = s < next_count ? -1.0f : INELIGIBLE;
                if (e >= 0) value = next_bits[e] != 0 ? INELIGIBLE : frequency[next_table + e];
                values[s] = value;
            }
            __syncthreads();
            least_slots(values, next_count, num_chosen, victims);
        }
        if (tid < num_chosen && victims[tid] >= 0) {
            const int e = chosen[tid], victim = victims[tid];
            const int evicted = next_residents[victim];
            if (evicted >= 0) {
                slot_of[next_table + evicted] = -1;
                addresses[next_table + evicted] =
                    host_layers[layer + 1] + static_cast<u64>(evicted) * blob_bytes;
                atomicAdd(&deltas[EVICTIONS], 1);
            }
            const u64 target = pool + static_cast<u64>(next_begin + victim) * blob_bytes;
            expert_of[next_begin + victim] = e;
            slot_of[next_table + e] = victim;
            addresses[next_table + e] = target;
            const int entry = (layer + 1) * MAX_COPIES + tid;
            copies[entry * 2] = host_layers[layer + 1] + static_cast<u64>(e) * blob_bytes;
            copies[entry * 2 + 1] = target;
            copy_experts[entry] = e;
            arrived[entry] = 0;
            atomicAdd(&deltas[PREFETCHED], 1);
        }
        // Victims are found for the first copies first: those without one are the last.
        if (tid == 0) {
            int count = 0;
            while (count < num_chosen && victims[count] >= 0) ++count;
            copy_counts[layer + 1] = count;
        }
    }
    __syncthreads();
    if (tid < TIMED_COUNTERS && deltas[tid] != 0) {
        atomicAdd(&counters[tid], static_cast<u64>(deltas[tid]));
        if (tid == MISSES || tid == PREFETCHED)
            atomicAdd(&counters[BYTES_READ], static_cast<u64>(deltas[tid]) * blob_bytes);
    }
    if (tid == 64) num_jobs[1] = total_misses - deltas[UNFILLED];
    if (tid == 32) {
        // Time of the layer before: [start, end, kind] were left by its kernels.
        if (start != 0 && end > start && kind != 0) {
            atomicAdd(&counters[kind], end - start);
            atomicAdd(&counters[kind + 1], 1ull);
        }
        timer[0] = timer[1] = 0;
        timer[2] = total_misses > 0 ? MISS_NS : total_hits > 0 ? HIT_NS : 0;
        if (layer == 0 && active) steps[0] = step + 1;
    }
}
