// Products of a few activation rows with a weight matrix: out = rms_norm(x) @ W^T.
//
// Every weight is read once for up to eight rows, at the speed of the memory. A block's warps
// share the columns, 256 each, and a block takes tiles of eight weight rows. The product runs on
// the tensor cores with the roles swapped: the activations are the 16-row operand, rows 0..7 their
// leading 11 bits and rows 8..15 the next 11, so that an fp32 activation keeps 22 bits, and any
// batch of up to eight costs the same and sums in the same order.
#include "linear.cuh"

namespace {

constexpr int kSlice = 256;        // columns of one warp
constexpr int kTileRows = 8;       // weight rows of one tensor core product
constexpr int kRoundOutputs = 64;  // outputs between two barriers, one thread each
constexpr float kLowScale = 2048.0f;

// Weights never change, so they may be read before earlier kernels are done; and only once, so
// they need not stay in L1.
__device__ __forceinline__ uint4 stream_16(const unsigned char* address) {
#ifdef HUTONG_EMULATED
    return load_16(address);
#else
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address));
    return v;
#endif
}

// Bytes 2 part and 2 part + 1 of `word`, each under the byte 0x64: as halves, 1024 + byte.
__device__ __forceinline__ unsigned bytes_over_1024(unsigned word, int part) {
#ifdef HUTONG_EMULATED
    const unsigned pair = word >> (16 * part);
    return (pair & 0xffu) | ((pair & 0xff00u) << 8) | 0x64006400u;
#else
    unsigned d;
    asm("prmt.b32 %0, %1, %2, %3;"
        : "=r"(d)
        : "r"(word), "r"(0x64646464u), "r"(part == 0 ? 0x4140u : 0x4342u));
    return d;
#endif
}

constexpr unsigned kOne = 0x3c003c00u;           // {1, 1}
constexpr unsigned kMinus1152 = 0xe480e480u;     // {-1152, -1152}
constexpr unsigned kMinus1032 = 0xe408e408u;     // {-1032, -1032}
constexpr unsigned kSixteenth = 0x2c002c00u;     // {1/16, 1/16}
constexpr unsigned kMinus72 = 0xd480d480u;       // {-72, -72}
constexpr unsigned kBits1024 = 0x64006400u;      // {1024, 1024}

// A format says what a lane loads at once (kColumns columns), how many tiles are on their way
// (kStages), and how eight columns become four pairs of halves. kNibbles: a pair is columns p and
// p + 4 of the eight, otherwise 2 p and 2 p + 1; and scales hold for groups of columns.
struct Fp16 {
    using Vector = uint4;
    static constexpr int kColumns = 8, kStages = 1;
    static constexpr bool kNibbles = false, kRowScales = false;
    static __device__ __forceinline__ Vector zero() { return make_uint4(0, 0, 0, 0); }
    static __device__ __forceinline__ Vector load(const unsigned char* at) { return stream_16(at); }
    static __device__ __forceinline__ void widen(Vector v, int, unsigned w[4]) {
        w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
    }
};

struct Int8 {
    using Vector = uint4;
    static constexpr int kColumns = 16, kStages = 2;
    static constexpr bool kNibbles = false, kRowScales = true;
    static __device__ __forceinline__ Vector zero() { return make_uint4(0, 0, 0, 0); }
    static __device__ __forceinline__ Vector load(const unsigned char* at) { return stream_16(at); }
    static __device__ __forceinline__ void widen(Vector v, int eight, unsigned w[4]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const unsigned word = word_of(v, 2 * eight + i) ^ 0x80808080u;  // byte + 128
            w[2 * i] = half2_fma(bytes_over_1024(word, 0), kOne, kMinus1152);
            w[2 * i + 1] = half2_fma(bytes_over_1024(word, 1), kOne, kMinus1152);
        }
    }
};

__device__ __forceinline__ void widen_nibbles(unsigned word, unsigned w[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const unsigned low = (word & 0x000f000fu) | kBits1024;   // 1024 + nibble
        const unsigned high = (word & 0x00f000f0u) | kBits1024;  // 1024 + 16 nibble
        w[2 * i] = half2_fma(low, kOne, kMinus1032);
        w[2 * i + 1] = half2_fma(high, kSixteenth, kMinus72);
        word >>= 8;
    }
}

// Groups of a multiple of 128 columns.
struct Int4 {
    using Vector = uint4;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    static constexpr int kColumns = 32, kStages = 2;  // a third would not fit the registers
#else
    static constexpr int kColumns = 32, kStages = 3;
#endif
    static constexpr bool kNibbles = true, kRowScales = false;
    static __device__ __forceinline__ Vector zero() { return make_uint4(0, 0, 0, 0); }
    static __device__ __forceinline__ Vector load(const unsigned char* at) { return stream_16(at); }
    static __device__ __forceinline__ void widen(Vector v, int eight, unsigned w[4]) {
        widen_nibbles(word_of(v, eight), w);
    }
};

// Groups of a multiple of 32 columns.
struct Int4Narrow {
    using Vector = unsigned;
    static constexpr int kColumns = 8, kStages = 1;
    static constexpr bool kNibbles = true, kRowScales = false;
    static __device__ __forceinline__ Vector zero() { return 0; }
    static __device__ __forceinline__ Vector load(const unsigned char* at) {
        return *reinterpret_cast<const unsigned*>(at);
    }
    static __device__ __forceinline__ void widen(Vector v, int, unsigned w[4]) {
        widen_nibbles(v, w);
    }
};

// What a lane of the fast family keeps: its columns of the activation row `group` as two halves
// each, and where it reads. A lane's 64 columns are kLoads runs of kColumns.
template <typename Format, bool kWhole>
struct Lane {
    static constexpr int kColumns = Format::kColumns, kLoads = 64 / kColumns;
    static constexpr int kVectorBytes = sizeof(typename Format::Vector);
    using Vector = typename Format::Vector;

    const Problem& problem;
    const int slice, group, pair;  // first column of the warp; lane / 4, lane % 4
    const int left;                // columns from this lane's first to the end of the row
    const unsigned char* origin;   // this lane's first weight in row 0
    unsigned high[32], low[32];
    float unscale;  // undoes what brought the halves into range
    float squares;  // sum of x^2 over the columns of the warp, for row `group`

    __device__ __forceinline__ Lane(const Problem& p)
        : problem(p),
          slice(static_cast<int>(threadIdx.x) / 32 * kSlice),
          group(threadIdx.x % 32 / 4),
          pair(threadIdx.x % 4),
          left(p.columns - slice - pair * kColumns) {
        origin = p.weight + (slice / kColumns + pair) * kVectorBytes;
    }

    // First of the eight columns `eight` (0..7) of this lane, counted from the lane's first.
    static __device__ __forceinline__ constexpr int column(int eight) {
        return 4 * (eight * 8 / kColumns) * kColumns + eight * 8 % kColumns;
    }

    __device__ __forceinline__ const unsigned char* row_of(int tile) const {
        const int row = min(tile * kTileRows + group, problem.rows - 1);
        const int row_bytes = problem.columns / kColumns * kVectorBytes;
        return origin + static_cast<unsigned long long>(row) * row_bytes;
    }

    __device__ __forceinline__ Vector load(const unsigned char* row, int load) const {
        if (!kWhole && column(load * (kColumns / 8)) >= left) return Format::zero();
        return Format::load(row + load * 4 * kVectorBytes);
    }

    // Scales of two neighbouring loads of weight row `group`, as two halves: the only two of Int4,
    // loads 2 pair and 2 pair + 1 of Int4Narrow.
    __device__ __forceinline__ unsigned load_scales(int tile) const {
        if (!Format::kNibbles) return 0;
        const int row = min(tile * kTileRows + group, problem.rows - 1);
        const int groups = problem.columns / problem.group_size;
        const unsigned short* scales = static_cast<const unsigned short*>(problem.scales) +
                                       static_cast<unsigned long long>(row) * groups;
        const int first = slice + (kLoads > 2 ? 2 * pair * 4 * kColumns : 0);
        if (kWhole && problem.group_size == 4 * kColumns)
            return *reinterpret_cast<const unsigned*>(scales + first / (4 * kColumns));
        const int last = groups - 1;
        const unsigned a = scales[min(first / problem.group_size, last)];
        const unsigned b = scales[min((first + 4 * kColumns) / problem.group_size, last)];
        return a | b << 16;
    }

    // `norm` is the warp's slice of the norm in shared memory. Scaling by a power of two keeps
    // the halves of any fp32 row within range.
    __device__ __forceinline__ void take_activations(const float* norm) {
        float v[64];
        const float* x = problem.x + group * problem.columns + slice + pair * kColumns;
#pragma unroll
        for (int eight = 0; eight < 8; ++eight)
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                uint4 bits = make_uint4(0, 0, 0, 0);
                if (group < problem.batch && (kWhole || column(eight) < left))
                    bits = load_16(x + column(eight) + 4 * part);
                v[8 * eight + 4 * part] = __uint_as_float(bits.x);
                v[8 * eight + 4 * part + 1] = __uint_as_float(bits.y);
                v[8 * eight + 4 * part + 2] = __uint_as_float(bits.z);
                v[8 * eight + 4 * part + 3] = __uint_as_float(bits.w);
            }
        float largest = 0.0f;
        squares = 0.0f;
#pragma unroll
        for (int i = 0; i < 64; i += 4) {
            const uint4 weights = load_16(norm + pair * kColumns + column(i / 8) + i % 8);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                squares += v[i + j] * v[i + j];
                v[i + j] *= __uint_as_float(word_of(weights, j));
                largest = fmaxf(largest, fabsf(v[i + j]));
            }
        }
#pragma unroll
        for (int offset = 1; offset < 4; offset *= 2) {
            squares += __shfl_xor_sync(0xffffffffu, squares, offset);
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
        }
        const int exponent = min(max(static_cast<int>(__float_as_uint(largest) >> 23), 14), 254);
        const float scale = __uint_as_float(static_cast<unsigned>(267 - exponent) << 23);
        unscale = __uint_as_float(static_cast<unsigned>(exponent - 13) << 23);
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            const int eight = i / 4 * 8, p = i % 4;
            const float a = v[eight + (Format::kNibbles ? p : 2 * p)] * scale;
            const float b = v[eight + (Format::kNibbles ? p + 4 : 2 * p + 1)] * scale;
            high[i] = float2_to_half2(a, b);
            const float2 kept = half2_to_float2(high[i]);
            low[i] = float2_to_half2((a - kept.x) * kLowScale, (b - kept.y) * kLowScale);
        }
    }

    // Sums of row `group` of x with weight rows 2 pair and 2 pair + 1 of the tile in `loaded`,
    // over the columns of the warp, to be multiplied by `unscale`; meanwhile the vectors are replaced by those of `next_tile`
    // (-1: none).
    __device__ __forceinline__ float2 multiply(Vector loaded[kLoads], unsigned& scales,
                                               int next_tile) const {
        const unsigned char* next = row_of(max(next_tile, 0));
        float d[2][4] = {};
        float2 total = make_float2(0.0f, 0.0f);
        const unsigned these_scales = scales;
        unsigned first = 0, second = 0;  // scales of rows 2 pair and 2 pair + 1
        if (next_tile >= 0) scales = load_scales(next_tile);
#pragma unroll
        for (int load = 0; load < kLoads; ++load) {
#pragma unroll
            for (int part = 0; part < kColumns / 8; ++part) {
                const int i = 4 * (load * (kColumns / 8) + part);
                unsigned w[4];
                Format::widen(loaded[load], part, w);
                const unsigned a[4] = {high[i], low[i], high[i + 1], low[i + 1]};
                const unsigned b[4] = {high[i + 2], low[i + 2], high[i + 3], low[i + 3]};
                mma_16x8x16(d[0], a, w);
                mma_16x8x16(d[1], b, w + 2);
            }
            if (next_tile >= 0) loaded[load] = this->load(next, load);
            if (!Format::kNibbles && load + 1 < kLoads) continue;
            float scale_0 = 1.0f, scale_1 = 1.0f;
            if (Format::kNibbles) {
                if (load % 2 == 0) {
                    first = __shfl_sync(0xffffffffu, these_scales, 8 * pair + load / 2);
                    second = __shfl_sync(0xffffffffu, these_scales, 8 * pair + 4 + load / 2);
                }
                scale_0 = half_to_float(static_cast<unsigned short>(first >> (load % 2 * 16)));
                scale_1 = half_to_float(static_cast<unsigned short>(second >> (load % 2 * 16)));
            }
            total.x += scale_0 * (d[0][0] + d[1][0] + (d[0][2] + d[1][2]) * (1.0f / kLowScale));
            total.y += scale_1 * (d[0][1] + d[1][1] + (d[0][3] + d[1][3]) * (1.0f / kLowScale));
#pragma unroll
            for (int i = 0; i < 4; ++i) d[0][i] = d[1][i] = 0.0f;
        }
        return total;
    }
};

// The output of one thread in the round that begins with tile `index` of the block.
struct Place {
    int batch, row;  // row = rows: no output
    __device__ __forceinline__ Place(const Problem& p, const int* places, int index, int count) {
        batch = 0;
        row = p.rows;
        if (threadIdx.x >= kRoundOutputs) return;
        const int place = places[threadIdx.x];  // -1: none
        batch = place % kMaxBatch;
        index += place / kMaxBatch;
        if (place < 0 || index >= count) return;
        row = static_cast<int>((blockIdx.x + index * gridDim.x) * kTileRows +
                               threadIdx.x % kTileRows);
        row = min(row, p.rows);
    }
};

// Shared memory: 64 places, and per warp 256 floats of norm, 8 sums of squares, 8 factors and
// 2 x 64 partial sums. Few registers are left beside the activations and the weights on their way, so places
// are looked up, and all progress is in `index`: a round is a power of two of tiles.
template <typename Format, bool kWhole>
__device__ __forceinline__ void multiply_tiles(const Problem& p) {
    using ThisLane = Lane<Format, kWhole>;
    constexpr int kStages = Format::kStages;
    DYNAMIC_SHARED(float, shared);
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int* places = reinterpret_cast<int*>(shared);
    float* norm = shared + kRoundOutputs + warp * kSlice;
    float* squares = shared + kRoundOutputs + warps * kSlice;
    float* unscales = squares + warps * kMaxBatch;
    float* partial = unscales + warps * kMaxBatch;
    const int tiles = (p.rows + kTileRows - 1) / kTileRows;
    const int step = gridDim.x;
    const int count = (tiles - static_cast<int>(blockIdx.x) + step - 1) / step;
    const int round_tiles = kRoundOutputs / (kTileRows * p.batch);

    ThisLane self(p);
    typename Format::Vector loaded[kStages][ThisLane::kLoads];
    unsigned scales[kStages];
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage)
        if (stage < count) {
            const int tile = blockIdx.x + stage * step;
            const unsigned char* row = self.row_of(tile);
#pragma unroll
            for (int load = 0; load < ThisLane::kLoads; ++load)
                loaded[stage][load] = self.load(row, load);
            scales[stage] = self.load_scales(tile);
        }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int column = i * 32 + lane;
        float weight = p.norm == nullptr || p.zero_centred ? 1.0f : 0.0f;
        if (p.norm != nullptr && (kWhole || self.slice + column < p.columns))
            weight += p.norm[self.slice + column];
        norm[column] = weight;
    }
    if (threadIdx.x < kRoundOutputs) {
        const int slot = threadIdx.x / (kTileRows * p.batch);
        const int batch = threadIdx.x / kTileRows % p.batch;
        places[threadIdx.x] = slot < round_tiles ? slot * kMaxBatch + batch : -1;
    }
    __syncwarp();  // a thread looks up its own place only
    grid_launch_dependents();
    grid_dependency_wait();
    self.take_activations(norm);
    if (self.pair == 0) {
        squares[warp * kMaxBatch + self.group] = self.squares;
        unscales[warp * kMaxBatch + self.group] = self.unscale;
    }

    Output<Format::kRowScales> output = {};
    for (int begin = 0; begin < count; begin += kStages)
#pragma unroll
        for (int stage = 0; stage < kStages; ++stage) {
            const int index = begin + stage;
            if (index >= count) break;
            if ((index & (round_tiles - 1)) == 0) {
                const Place place(p, places, index, count);
                if (place.row < p.rows)
                    output.fetch(p, place.batch, place.row);
            }
            const int next_tile = blockIdx.x + (index + kStages) * step;
            const float2 sums = self.multiply(loaded[stage], scales[stage],
                                              index + kStages < count ? next_tile : -1);
            float* round = partial + ((index & round_tiles) != 0 ? warps * kRoundOutputs : 0);
            if (self.group < p.batch) {
                const int slot = (index & (round_tiles - 1)) * p.batch + self.group;
                float* mine = round + warp * kRoundOutputs + slot * kTileRows + 2 * self.pair;
                mine[0] = sums.x;
                mine[1] = sums.y;
            }
            if (((index + 1) & (round_tiles - 1)) != 0 && index + 1 < count) continue;
            __syncthreads();  // the other half of `partial` is free: it was read before this
            const Place place(p, places, index & ~(round_tiles - 1), count);
            if (place.row < p.rows) {
                float sum = 0.0f, square = 0.0f;
#pragma unroll 1  // unrolled, it would take registers from the products
                for (int w = 0; w < warps; ++w) {
                    const int at = w * kMaxBatch + place.batch;
                    sum += round[w * kRoundOutputs + threadIdx.x] * unscales[at];
                    square += squares[at];
                }
                output.store(p, place.batch, place.row, sum, square);
            }
        }
}

}  // namespace

#define LINEAR(name, Format, threads)                                     \
    KERNEL(linear_##name, threads, (multiply_tiles<Format, true>))            \
    KERNEL(linear_##name##_ragged, 256, (multiply_tiles<Format, false>))

LINEAR(fp16, Fp16, 512)
LINEAR(int8, Int8, 512)
LINEAR(int4, Int4, 512)
LINEAR(int4_narrow, Int4Narrow, 256)
