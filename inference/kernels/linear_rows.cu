// Products of a few activation rows with a weight matrix of any width, one warp a weight row, in
// fp32. For what linear.cu does not take: fp32 weights, very wide ones, and odd group sizes.
#include "linear.cuh"

namespace {

struct RowsFp32 {
    static constexpr bool kRowScales = false;
    static __device__ __forceinline__ void read(const Problem& p, int row, int k, float w[8]) {
        const float* from = reinterpret_cast<const float*>(p.weight) +
                            static_cast<long long>(row) * p.columns + k;
#pragma unroll
        for (int i = 0; i < 8; ++i) w[i] = from[i];
    }
};

struct RowsFp16 {
    static constexpr bool kRowScales = false;
    static __device__ __forceinline__ void read(const Problem& p, int row, int k, float w[8]) {
        const uint4 v = load_16(p.weight + (static_cast<long long>(row) * p.columns + k) * 2);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 two = half2_to_float2(word_of(v, i));
            w[2 * i] = two.x, w[2 * i + 1] = two.y;
        }
    }
};

struct RowsInt8 {
    static constexpr bool kRowScales = true;
    static __device__ __forceinline__ void read(const Problem& p, int row, int k, float w[8]) {
        const signed char* from = reinterpret_cast<const signed char*>(p.weight) +
                                  static_cast<long long>(row) * p.columns + k;
#pragma unroll
        for (int i = 0; i < 8; ++i) w[i] = from[i];
    }
};

struct RowsInt4 {
    static constexpr bool kRowScales = false;
    static __device__ __forceinline__ void read(const Problem& p, int row, int k, float w[8]) {
        const long long at = static_cast<long long>(row) * p.columns + k;
        const unsigned word = reinterpret_cast<const unsigned*>(p.weight)[at / 8];
        const float scale =
            half_to_float(static_cast<const unsigned short*>(p.scales)[at / p.group_size]);
#pragma unroll
        for (int i = 0; i < 8; ++i) w[i] = scale * (static_cast<int>(word >> (4 * i) & 15) - 8);
    }
};

template <typename Rows>
__device__ __forceinline__ void multiply_rows(const Problem& p) {
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    grid_launch_dependents();
    grid_dependency_wait();
    float squares = 0.0f;  // of row `lane` of x
    for (int b = 0; b < p.batch && p.norm != nullptr; ++b) {
        float sum = 0.0f;
        for (int k = lane; k < p.columns; k += 32) {
            const float x = p.x[b * p.columns + k];
            sum += x * x;
        }
        sum = warp_sum(sum);
        if (lane == b) squares = sum;
    }
    for (int row = blockIdx.x * warps + warp; row < p.rows; row += gridDim.x * warps) {
        float sums[kMaxBatch] = {};
        for (int k = lane * 8; k < p.columns; k += 256) {
            float w[8];
            Rows::read(p, row, k, w);
#pragma unroll
            for (int i = 0; i < 8; ++i)
                if (p.norm != nullptr) w[i] *= p.norm[k + i] + (p.zero_centred ? 1.0f : 0.0f);
#pragma unroll
            for (int b = 0; b < kMaxBatch; ++b)
                if (b < p.batch)
#pragma unroll
                    for (int i = 0; i < 8; ++i) sums[b] += p.x[b * p.columns + k + i] * w[i];
        }
        float mine = 0.0f;
#pragma unroll
        for (int b = 0; b < kMaxBatch; ++b) {
            const float sum = warp_sum(sums[b]);
            if (lane == b) mine = sum;
        }
        if (lane < p.batch) {
            Output<Rows::kRowScales> output;
            output.fetch(p, lane, row);
            output.store(p, lane, row, mine, squares);
        }
    }
}

}  // namespace

KERNEL(rows_fp32, 128, (multiply_rows<RowsFp32>))
KERNEL(rows_fp16, 128, (multiply_rows<RowsFp16>))
KERNEL(rows_int8, 128, (multiply_rows<RowsInt8>))
KERNEL(rows_int4, 128, (multiply_rows<RowsInt4>))
