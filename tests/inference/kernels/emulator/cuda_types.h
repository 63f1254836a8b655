// The types, qualifiers and arithmetic of CUDA C++ that need no knowledge of threads.
#pragma once

#ifdef HUTONG_LIST_KERNELS
#define __global__ hutong_global
#else
#define __global__
#endif
#define __device__
#define __host__
#define __constant__ static
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)

#define HUTONG_VECTORS(T, name, scale)                                                     \
    struct name##1 {                                                                       \
        T x;                                                                               \
    };                                                                                     \
    struct __attribute__((aligned(2 * scale))) name##2 {                                   \
        T x, y;                                                                            \
    };                                                                                     \
    struct name##3 {                                                                       \
        T x, y, z;                                                                         \
    };                                                                                     \
    struct __attribute__((aligned(4 * scale > 16 ? 16 : 4 * scale))) name##4 {             \
        T x, y, z, w;                                                                      \
    };                                                                                     \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }                             \
    inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                     \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
HUTONG_VECTORS(signed char, char, 1)
HUTONG_VECTORS(unsigned char, uchar, 1)
HUTONG_VECTORS(short, short, 2)
HUTONG_VECTORS(unsigned short, ushort, 2)
HUTONG_VECTORS(int, int, 4)
HUTONG_VECTORS(unsigned, uint, 4)
HUTONG_VECTORS(float, float, 4)
HUTONG_VECTORS(long long, longlong, 8)
HUTONG_VECTORS(unsigned long long, ulonglong, 8)
using dim3 = uint3;

template <typename To, typename From>
inline To hutong_bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "sizes differ");
    To result;
    memcpy(&result, &value, sizeof(To));
    return result;
}
inline float __uint_as_float(unsigned bits) { return hutong_bits<float>(bits); }
inline float __int_as_float(int bits) { return hutong_bits<float>(bits); }
inline unsigned __float_as_uint(float value) { return hutong_bits<unsigned>(value); }
inline int __float_as_int(float value) { return hutong_bits<int>(value); }

inline float half_to_float(unsigned short bits) {
    const unsigned sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 31;
    const unsigned fraction = bits & 1023;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | (fraction << 13));
    if (exponent == 0) {  // zero or subnormal: fraction * 2^-24
        const float value = static_cast<float>(fraction) * 5.9604644775390625e-8f;
        return sign ? -value : value;
    }
    return __uint_as_float(sign | ((exponent + 112) << 23) | (fraction << 13));
}

inline unsigned short float_to_half(float value) {
    const unsigned bits = __float_as_uint(value), sign = (bits >> 16) & 0x8000u;
    const unsigned magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fff;  // NaN, as cvt.rn.f16.f32 gives it
    if (magnitude >= 0x477ff000u) return static_cast<unsigned short>(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 rounds to multiples of 2^-24
        const float shifted = __uint_as_float(magnitude) + 0.5f;
        return static_cast<unsigned short>(sign | (__float_as_uint(shifted) - 0x3f000000u));
    }
    const unsigned rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1);
    return static_cast<unsigned short>(sign | ((rounded - 0x38000000u) >> 13));
}

// Like CUDA's, these take mixed signedness as unsigned.
#define HUTONG_MIN_MAX(R, A, B)                                                \
    inline R min(A a, B b) { return static_cast<R>(a) < static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); } \
    inline R max(A a, B b) { return static_cast<R>(a) > static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); }
HUTONG_MIN_MAX(int, int, int)
HUTONG_MIN_MAX(unsigned, unsigned, unsigned)
HUTONG_MIN_MAX(unsigned, int, unsigned)
HUTONG_MIN_MAX(unsigned, unsigned, int)
HUTONG_MIN_MAX(long, long, long)
HUTONG_MIN_MAX(unsigned long, unsigned long, unsigned long)
HUTONG_MIN_MAX(long long, long long, long long)
HUTONG_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }

inline float rsqrtf(float value) { return 1.0f / sqrtf(value); }
inline float __expf(float value) { return expf(value); }
inline float __logf(float value) { return logf(value); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline int __float2int_rn(float value) { return static_cast<int>(nearbyintf(value)); }
inline float __int2float_rn(int value) { return static_cast<float>(value); }
inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __popcll(unsigned long long value) { return __builtin_popcountll(value); }
inline int __ffs(int value) { return __builtin_ffs(value); }
inline int __ffsll(long long value) { return __builtin_ffsll(value); }
inline int __clz(int value) { return value == 0 ? 32 : __builtin_clz(value); }
inline int __clzll(long long value) { return value == 0 ? 64 : __builtin_clzll(value); }
inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>((static_cast<unsigned long long>(a) * b) >> 32);
}
template <typename T>
inline T __ldg(const T* address) { return *address; }
template <typename T>
inline T __ldcg(const T* address) { return *address; }
template <typename T>
inline T __ldcs(const T* address) { return *address; }
