// How keys and values lie in a page: fp32, fp16, or e4m3 with a scale a token and head. Reads
// and writes them by integer operations, so that every GPU from compute capability 7.5 on can.
#pragma once

#include "common.cuh"

enum { FP32 = 0, FP16 = 1, FP8 = 2 };

// Eight dimensions of one token as they lie in a page.
template <int KIND>
struct Packed;

template <>
struct Packed<FP32> {
    uint4 low, high;
    __device__ void clear() { low = high = make_uint4(0, 0, 0, 0); }
    __device__ void load(const char* pages, long long element) {
        low = load_16(pages + element * 4);
        high = load_16(pages + element * 4 + 16);
    }
    __device__ void unpack(float* out) const {
        out[0] = __uint_as_float(low.x), out[1] = __uint_as_float(low.y);
        out[2] = __uint_as_float(low.z), out[3] = __uint_as_float(low.w);
        out[4] = __uint_as_float(high.x), out[5] = __uint_as_float(high.y);
        out[6] = __uint_as_float(high.z), out[7] = __uint_as_float(high.w);
    }
};

__device__ __forceinline__ void unpack_halves(unsigned bits, float* out) {
    const float2 pair = half2_to_float2(bits);
    out[0] = pair.x;
    out[1] = pair.y;
}

template <>
struct Packed<FP16> {
    uint4 bits;
    __device__ void clear() { bits = make_uint4(0, 0, 0, 0); }
    __device__ void load(const char* pages, long long element) {
        bits = load_16(pages + element * 2);
    }
    __device__ void unpack(float* out) const {
        unpack_halves(bits.x, out);
        unpack_halves(bits.y, out + 2);
        unpack_halves(bits.z, out + 4);
        unpack_halves(bits.w, out + 6);
    }
};

// An e4m3 number shifted into the fields of a half is that number times 2^-8.
constexpr float FP8_FROM_HALF = 256.0f;

__device__ __forceinline__ void unpack_fp8(unsigned bytes, float* out) {
    const unsigned odd = bytes >> 8;
    const float2 a =
        half2_to_float2(((bytes & 0x007f007fu) << 7) | ((bytes & 0x00800080u) << 8));
    const float2 b = half2_to_float2(((odd & 0x007f007fu) << 7) | ((odd & 0x00800080u) << 8));
    out[0] = a.x, out[1] = b.x, out[2] = a.y, out[3] = b.y;
}

template <>
struct Packed<FP8> {
    unsigned long long bits;
    __device__ void clear() { bits = 0; }
    __device__ void load(const char* pages, long long element) {
        bits = *reinterpret_cast<const unsigned long long*>(pages + element);
    }
    __device__ void unpack(float* out) const {
        unpack_fp8(static_cast<unsigned>(bits), out);
        unpack_fp8(static_cast<unsigned>(bits >> 32), out + 4);
    }
};

// Nearest e4m3 number, ties to even, saturating at 448.
__device__ __forceinline__ unsigned char float_to_fp8(float value) {
    const unsigned bits = __float_as_uint(value);
    const unsigned sign = (bits >> 24) & 0x80u;
    const unsigned magnitude = bits & 0x7fffffffu;
    if (magnitude < 0x3c800000u) {  // below 2^-6: steps of 2^-9, rounded by the addition
        const float steps = __uint_as_float(magnitude) * 512.0f + 8388608.0f;
        return static_cast<unsigned char>(sign | (__float_as_uint(steps) & 0xfu));
    }
    const unsigned rounded = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
    const unsigned code = rounded - (120u << 3);
    return static_cast<unsigned char>(sign | (code < 0x7eu ? code : 0x7eu));
}

// One warp: writes a row of shared memory into its page.
template <int KIND>
__device__ void store_row(char* pages, float* scales, long long token_row, int head_dim,
                          const float* row) {
    const int lane = threadIdx.x % 32;
    const long long first = token_row * head_dim;
    float scale = 1.0f;
    if (KIND == FP8) {
        float largest = 0.0f;
        for (int j = lane; j < head_dim; j += 32) largest = fmaxf(largest, fabsf(row[j]));
        largest = warp_max(largest);
        if (largest > 0.0f) scale = largest / 448.0f;
        if (lane == 0) scales[token_row] = scale;
    }
    for (int j = lane; j < head_dim; j += 32) {
        if (KIND == FP32) reinterpret_cast<float*>(pages)[first + j] = row[j];
        if (KIND == FP16)
            reinterpret_cast<unsigned short*>(pages)[first + j] = float_to_half(row[j]);
        if (KIND == FP8)
            reinterpret_cast<unsigned char*>(pages)[first + j] = float_to_fp8(row[j] / scale);
    }
}

// A tile is TILE consecutive tokens of one group of LANES lanes, eight dimensions a lane.
template <int KIND, int LANES, int TILE>
struct Tile {
    Packed<KIND> data[TILE];
    float scales[TILE];

    __device__ __forceinline__ void load(const char* pages, const float* page_scales,
                                         long long token_row, int count, int head_dim) {
        const int dim = threadIdx.x % LANES * 8;
#pragma unroll
        for (int t = 0; t < TILE; ++t) {
            if (t < count && dim < head_dim)
                data[t].load(pages, (token_row + t) * head_dim + dim);
            else
                data[t].clear();
            if (KIND == FP8) scales[t] = t < count ? page_scales[token_row + t] : 0.0f;
        }
    }
    __device__ __forceinline__ float scale(int t) const {
        return KIND == FP8 ? scales[t] * FP8_FROM_HALF : 1.0f;
    }
};
