// The two ends of a step: rows of the embedding table, and the candidates among the logits.
//
// A candidate is one 64-bit key, larger for a larger value and then for a lower id, so that no two
// are equal and an order never depends on which thread was first. top_local leaves the 64 largest
// keys of each 2048 logits in order; top_merge makes one list of these lists. Both find a lower
// bound of the 64th key from the maxima of groups, keep what reaches it, and count for each kept
// key how many are larger: that is its place.
#include "common.cuh"

namespace {

typedef unsigned long long Key;

constexpr int kTop = 64;
constexpr int kThreads = 256;
constexpr int kGroups = 128;
constexpr int kChunk = 2048;     // logits of one block
constexpr int kMaxLists = 256;
constexpr int kMaxKept = 4096;   // 64 lists of 64 keys reach the bound at most
constexpr int kFewKept = 256;

__device__ __forceinline__ Key key_of(float value, int id) {
    unsigned bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) bits = 0xff800000u;  // NaN counts as -inf
    if (bits == 0x80000000u) bits = 0;                           // -0 == 0
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return static_cast<Key>(bits) << 32 | ~static_cast<unsigned>(id);
}

__device__ __forceinline__ float value_of(Key key) {
    const unsigned bits = static_cast<unsigned>(key >> 32);
    return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

struct Shared {
    Key groups[kMaxLists];
    Key kept[kMaxKept];
    Key bound;
    int num_kept;
};

// The 64th largest of groups[0..num_groups), or 1 when fewer are not zero: every valid key is
// larger. Barriers at both ends.
__device__ __forceinline__ void find_bound(Shared& shared, int num_groups) {
    if (threadIdx.x == 0) {
        shared.bound = 1;
        shared.num_kept = 0;
    }
    __syncthreads();
    // Two threads count for one group, each half of the others.
    for (int i = threadIdx.x / 2; i < kMaxLists; i += kThreads / 2) {
        const bool real = i < num_groups && shared.groups[i] != 0;
        int larger = 0;
        if (real)
            for (int j = threadIdx.x % 2; j < num_groups; j += 2)
                larger += shared.groups[j] > shared.groups[i];
        larger += __shfl_xor_sync(0xffffffffu, larger, 1);
        if (real && larger == kTop - 1) shared.bound = shared.groups[i];
    }
    __syncthreads();
}

__device__ __forceinline__ void keep(Shared& shared, Key key) {
    if (key >= shared.bound) shared.kept[atomicAdd(&shared.num_kept, 1)] = key;
}

// Halves the kept keys or better while they are many: groups of them bound the 64th again.
__device__ __forceinline__ void reduce_kept(Shared& shared) {
    __syncthreads();
    for (int count = shared.num_kept; count > kFewKept; count = shared.num_kept) {
        constexpr int kMine = kMaxKept / kGroups;
        Key mine[kMine];
        Key largest = 0;
#pragma unroll
        for (int i = 0; i < kMine; ++i) {
            const int at = i * kGroups + threadIdx.x;
            mine[i] = threadIdx.x < kGroups && at < count ? shared.kept[at] : 0;
            largest = max(largest, mine[i]);
        }
        if (threadIdx.x < kGroups) shared.groups[threadIdx.x] = largest;
        __syncthreads();  // all have read num_kept and kept
        find_bound(shared, kGroups);
#pragma unroll
        for (int i = 0; i < kMine; ++i) keep(shared, mine[i]);
        __syncthreads();
    }
}

// Calls store(place, key) for the 64 largest of the kept keys, zeros where there are fewer.
template <typename Store>
__device__ __forceinline__ void store_in_order(const Shared& shared, Store store) {
    const int count = shared.num_kept;
    for (int i = threadIdx.x; i < count; i += kThreads) {
        const Key key = shared.kept[i];
        int larger = 0;
        for (int j = 0; j < count; ++j) larger += shared.kept[j] > key;
        if (larger < kTop) store(larger, key);
    }
    for (int place = count + threadIdx.x; place < kTop; place += kThreads) store(place, Key(0));
}

}  // namespace

// lists [batch, gridDim.x, 64]: keys of logits [batch, vocabulary], in descending order.
extern "C" __global__ void __launch_bounds__(kThreads)
    top_local(const float* logits, unsigned long long* lists, int vocabulary) {
    __shared__ Shared shared;
    grid_launch_dependents();
    grid_dependency_wait();
    const float* row = logits + static_cast<long long>(blockIdx.y) * vocabulary;
    constexpr int kMine = kChunk / kThreads;
    Key mine[kMine];
    Key largest = 0;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
        // Neighbours go to different blocks: large logits may lie together.
        const int id = (i * gridDim.x + blockIdx.x) * kThreads + threadIdx.x;
        mine[i] = id < vocabulary ? key_of(row[id], id) : 0;
        largest = max(largest, mine[i]);
    }
    largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    if (threadIdx.x % 2 == 0) shared.groups[threadIdx.x / 2] = largest;
    find_bound(shared, kGroups);
#pragma unroll
    for (int i = 0; i < kMine; ++i) keep(shared, mine[i]);
    reduce_kept(shared);
    unsigned long long* list =
        lists + (static_cast<long long>(blockIdx.y) * gridDim.x + blockIdx.x) * kTop;
    store_in_order(shared, [=](int place, Key key) { list[place] = key; });
}

// One block a row of the batch; num_lists <= 256. Missing candidates get -1 and -inf.
extern "C" __global__ void __launch_bounds__(kThreads)
    top_merge(const unsigned long long* lists, int* ids, float* values, int num_lists) {
    __shared__ Shared shared;
    grid_launch_dependents();
    grid_dependency_wait();
    lists += static_cast<long long>(blockIdx.x) * num_lists * kTop;
    if (static_cast<int>(threadIdx.x) < num_lists)
        shared.groups[threadIdx.x] = lists[threadIdx.x * kTop];
    find_bound(shared, num_lists);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int list = warp; list < num_lists; list += kThreads / 32) {
        if (shared.groups[list] < shared.bound) continue;
        const Key first = lists[list * kTop + lane], second = lists[list * kTop + 32 + lane];
        keep(shared, first);
        keep(shared, second);
    }
    reduce_kept(shared);
    ids += blockIdx.x * kTop;
    values += blockIdx.x * kTop;
    store_in_order(shared, [=](int place, Key key) {
        ids[place] = key == 0 ? -1 : static_cast<int>(~static_cast<unsigned>(key));
        values[place] = key == 0 ? __uint_as_float(0xff800000u) : value_of(key);
    });
}

// x [batch, columns] fp32 from rows of the table, which may lie in pinned host memory: one 16-byte
// read a thread, all at once. An id outside the table gives zeros. Grid (columns / chunk, batch).
extern "C" __global__ void embed_fp16(const int* token_ids, const unsigned char* table, float* x,
                                      int vocabulary, int columns) {
    grid_launch_dependents();
    grid_dependency_wait();
    const int column = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    const int id = token_ids[blockIdx.y];
    if (column >= columns) return;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (id >= 0 && id < vocabulary)
        v = load_16(table + (static_cast<unsigned long long>(id) * columns + column) * 2);
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
    float* to = x + blockIdx.y * columns + column;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const float2 a = half2_to_float2(words[i]), b = half2_to_float2(words[i + 1]);
        store_16(to + 2 * i, make_uint4(__float_as_uint(a.x), __float_as_uint(a.y),
                                        __float_as_uint(b.x), __float_as_uint(b.y)));
    }
}

extern "C" __global__ void embed_fp32(const int* token_ids, const unsigned char* table, float* x,
                                      int vocabulary, int columns) {
    grid_launch_dependents();
    grid_dependency_wait();
    const int column = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    const int id = token_ids[blockIdx.y];
    if (column >= columns) return;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (id >= 0 && id < vocabulary)
        v = load_16(table + (static_cast<unsigned long long>(id) * columns + column) * 4);
    store_16(x + blockIdx.y * columns + column, v);
}
