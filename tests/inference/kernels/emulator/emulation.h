// CUDA C++ for one block at a time on one CPU thread: every CUDA thread is a fiber.
//
// A kernel runs until its thread meets a barrier or an operation of its warp; then the next thread
// goes on. Reports, rather than hangs on or lets pass: barriers that not all threads reach, warp
// operations with lanes missing, reads from lanes outside the mask, writes past the dynamic shared
// memory, misaligned 16-byte accesses, and threads that never call grid_dependency_wait().
// Shared memory holds NaN (all bits set) at the start of each block.
// NOT covered: two blocks at once (a block that waits for another spins), memory races inside a
// warp step, accesses outside tensors, timing.
#pragma once

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda_types.h"
#include "fibers.h"
#include "thunks.h"

#define threadIdx (emulation::current->index)
#define blockIdx (emulation::block_index)
#define blockDim (emulation::block_size)
#define gridDim (emulation::grid_size)
#define warpSize 32

#define __shared__ static __attribute__((section("hutong_shared")))
#define DYNAMIC_SHARED(type, name) \
    type* name = reinterpret_cast<type*>(emulation::dynamic_shared())

#define HUTONG_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

// ---- barriers and warp operations ----------------------------------------------------------

inline void __syncthreads(HUTONG_SITE) { emulation::block_barrier(file, line); }

inline void __syncwarp(unsigned mask = 0xffffffffu, HUTONG_SITE) {
    emulation::warp_operation(emulation::kSync, mask, 0, 0, file, line);
}

namespace emulation {
template <typename T>
T shuffle(unsigned mask, T value, int source, const char* file, int line) {
    static_assert(sizeof(T) <= 8, "a shuffle moves 4 or 8 bytes");
    unsigned long long bits = 0;
    memcpy(&bits, &value, sizeof(T));
    bits = warp_operation(kShuffle, mask, bits, source, file, line);
    memcpy(&value, &bits, sizeof(T));
    return value;
}
inline int lane() { return current->linear % 32; }
}  // namespace emulation

#define HUTONG_SHUFFLES(T)                                                                        \
    inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, HUTONG_SITE) {       \
        int base = emulation::lane() & ~(width - 1);                                              \
        return emulation::shuffle(mask, value, base + (source & (width - 1)), file, line);        \
    }                                                                                             \
    inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, HUTONG_SITE) {     \
        int lane = emulation::lane(), end = (lane & ~(width - 1)) + width;                        \
        return emulation::shuffle(mask, value, (lane ^ bits) < end ? lane ^ bits : lane, file,    \
                                  line);                                                          \
    }                                                                                             \
    inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,               \
                            HUTONG_SITE) {                                                        \
        int lane = emulation::lane(), source = lane - static_cast<int>(delta);                    \
        return emulation::shuffle(mask, value, source < (lane & ~(width - 1)) ? lane : source,    \
                                  file, line);                                                    \
    }                                                                                             \
    inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,             \
                              HUTONG_SITE) {                                                      \
        int lane = emulation::lane(), source = lane + static_cast<int>(delta);                    \
        return emulation::shuffle(mask, value, source >= (lane & ~(width - 1)) + width ? lane     \
                                                                                       : source,  \
                                  file, line);                                                    \
    }
HUTONG_SHUFFLES(int)
HUTONG_SHUFFLES(unsigned)
HUTONG_SHUFFLES(long long)
HUTONG_SHUFFLES(unsigned long long)
HUTONG_SHUFFLES(float)

inline unsigned __ballot_sync(unsigned mask, int predicate, HUTONG_SITE) {
    return static_cast<unsigned>(emulation::warp_operation(
        emulation::kBallot, mask, predicate != 0 ? 1 : 0, 0, file, line));
}
inline int __any_sync(unsigned mask, int predicate, HUTONG_SITE) {
    return emulation::warp_operation(emulation::kBallot, mask, predicate != 0 ? 1 : 0, 0, file,
                                     line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, HUTONG_SITE) {
    return emulation::warp_operation(emulation::kBallot, mask, predicate == 0 ? 1 : 0, 0, file,
                                     line) == 0;
}

// ---- atomics ---------------------------------------------------------------------------------

#define HUTONG_ATOMIC(T, name, expression)                 \
    inline T name(T* address, T value) {                   \
        emulation::count_atomic();                         \
        T old = *address;                                  \
        *address = (expression);                           \
        return old;                                        \
    }
#define HUTONG_ATOMICS(T)                                          \
    HUTONG_ATOMIC(T, atomicAdd, old + value)                       \
    HUTONG_ATOMIC(T, atomicExch, value)
#define HUTONG_INTEGER_ATOMICS(T)                                  \
    HUTONG_ATOMICS(T)                                              \
    HUTONG_ATOMIC(T, atomicMax, old > value ? old : value)         \
    HUTONG_ATOMIC(T, atomicMin, old < value ? old : value)         \
    HUTONG_ATOMIC(T, atomicOr, old | value)                        \
    HUTONG_ATOMIC(T, atomicAnd, old & value)                       \
    inline T atomicCAS(T* address, T expected, T value) {          \
        emulation::count_atomic();                                 \
        T old = *address;                                          \
        if (old == expected) *address = value;                     \
        return old;                                                \
    }
HUTONG_INTEGER_ATOMICS(int)
HUTONG_INTEGER_ATOMICS(unsigned)
HUTONG_INTEGER_ATOMICS(unsigned long long)
HUTONG_ATOMICS(float)
inline int atomicSub(int* address, int value) { return atomicAdd(address, -value); }
inline unsigned atomicSub(unsigned* address, unsigned value) { return atomicAdd(address, -value); }

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) { emulation::count_atomic(); }
inline void __trap(HUTONG_SITE) { emulation::fail("%s:%d: __trap()", file, line); }

// ---- what common.cuh gives on the device -------------------------------------------------------

inline void grid_dependency_wait() { emulation::current->waited = true; }
inline void grid_launch_dependents() {}

inline unsigned long long global_timer_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<unsigned long long>(now.tv_sec) * 1000000000ull + now.tv_nsec;
}

inline void mma_16x8x16(float d[4], const unsigned a[4], const unsigned b[2], HUTONG_SITE) {
    emulation::current->mma = {d, a, b};
    emulation::warp_operation(emulation::kMma, 0xffffffffu, 0, 0, file, line);
}

inline void check_aligned(const void* address, const char* file, int line) {
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0)
        emulation::fail("%s:%d: 16-byte access to the misaligned address %p", file, line, address);
}
inline uint4 load_16(const void* address, HUTONG_SITE) {
    check_aligned(address, file, line);
    return *reinterpret_cast<const uint4*>(address);
}
inline void store_16(void* address, uint4 value, HUTONG_SITE) {
    check_aligned(address, file, line);
    *reinterpret_cast<uint4*>(address) = value;
}
