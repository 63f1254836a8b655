// The threads of a block as fibers: switching, block barriers, operations of a warp, one launch.
#pragma once

#ifndef __x86_64__
#include <ucontext.h>
#endif

extern "C" {
// Start and end of the static shared memory of all kernels of the file.
extern unsigned char __start_hutong_shared[] __attribute__((weak, visibility("hidden")));
extern unsigned char __stop_hutong_shared[] __attribute__((weak, visibility("hidden")));
}

namespace emulation {

enum Operation { kSync, kShuffle, kBallot, kMma };
enum State { kRunnable, kInWarp, kAtBarrier, kDone };

struct MmaOperands {
    float* d;
    const unsigned* a;
    const unsigned* b;
};

#ifdef __x86_64__
struct Context {
    void* stack_pointer;
};
#else
using Context = ucontext_t;
#endif

struct Fiber {
    Context context;
    uint3 index;
    int linear;
    State state;
    bool waited;
    long atomics;
    // The barrier or warp operation this thread stands at.
    const char* file;
    int line;
    Operation operation;
    unsigned mask;
    int source;
    unsigned long long value;
    MmaOperands mma;
    unsigned char* stack;
};

using Thunk = void (*)(void** args);

constexpr size_t kStackBytes = 128 * 1024, kPageBytes = 4096;
constexpr long kMaxAtomics = 20000000;
constexpr int kCanaryBytes = 4096;

static Fiber* current;
static uint3 block_index, block_size, grid_size;
static Context scheduler;
static std::vector<Fiber*> fibers;
static unsigned runnable[32];  // one mask of lanes for each warp
static unsigned in_warp[32];   // the lanes that stand at a warp operation
static int num_threads;
static Thunk thunk;
static void** thunk_args;
static char* error_text;
static bool failed;
static std::vector<uint4> dynamic_memory;
static int dynamic_bytes;

inline unsigned char* dynamic_shared() {
    return reinterpret_cast<unsigned char*>(dynamic_memory.data());
}

// ---- switching ---------------------------------------------------------------------------------

#ifdef __x86_64__
asm(R"(
.text
.type hutong_switch, @function
hutong_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size hutong_switch, .-hutong_switch
)");
extern "C" __attribute__((visibility("hidden"))) void hutong_switch(Context* from, Context* to);
inline void switch_context(Context* from, Context* to) { hutong_switch(from, to); }
inline void prepare(Fiber* fiber, void (*entry)()) {
    // Stacks start at different cache lines, or all fibers would compete for the same ones.
    const size_t colour = static_cast<size_t>(fiber->linear) * 320 % 8192 / 64 * 64;
    void** top = reinterpret_cast<void**>(fiber->stack + kStackBytes - colour);
    top[-1] = nullptr;
    top[-2] = reinterpret_cast<void*>(entry);
    fiber->context.stack_pointer = top - 8;  // six registers below the entry
}
#else
inline void switch_context(Context* from, Context* to) { swapcontext(from, to); }
inline void prepare(Fiber* fiber, void (*entry)()) {
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = kStackBytes;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, entry, 0);
}
#endif

// Ends the launch with a message; called by a fiber.
[[noreturn]] __attribute__((format(printf, 1, 2), noinline)) static void fail(const char* format,
                                                                               ...) {
    const int used =
        snprintf(error_text, 900, "block (%u, %u, %u) thread (%u, %u, %u): ", block_index.x,
                 block_index.y, block_index.z, current->index.x, current->index.y,
                 current->index.z);
    va_list values;
    va_start(values, format);
    vsnprintf(error_text + used, 1000 - used, format, values);
    va_end(values);
    failed = true;
    switch_context(&current->context, &scheduler);
    abort();
}

inline void count_atomic() {
    if (++current->atomics > kMaxAtomics) fail("spins: %ld atomics in one thread", kMaxAtomics);
}

// Goes on with the next thread of the warp, or with the scheduler when none can run.
__attribute__((noinline)) static void yield() {
    Fiber* self = current;
    const int warp = self->linear / 32;
    const unsigned mask = runnable[warp];
    if (mask == 0) {
        switch_context(&self->context, &scheduler);
    } else {
        // From the lane after this one, around.
        const unsigned after = (self->linear + 1) % 32;
        const unsigned rotated = after == 0 ? mask : (mask >> after) | (mask << (32 - after));
        const unsigned lane = (after + __builtin_ctz(rotated)) % 32;
        current = fibers[warp * 32 + lane];
        switch_context(&self->context, &current->context);
    }
}

static void fiber_main() {
    thunk(thunk_args);
    if (!current->waited) fail("ended without a call of grid_dependency_wait()");
    current->state = kDone;
    runnable[current->linear / 32] &= ~(1u << (current->linear % 32));
    yield();
    abort();
}

// ---- barriers and warp operations --------------------------------------------------------------

static void block(State state, const char* file, int line) {
    current->state = state;
    current->file = file;
    current->line = line;
    runnable[current->linear / 32] &= ~(1u << (current->linear % 32));
}

__attribute__((noinline)) static void block_barrier(const char* file, int line) {
    block(kAtBarrier, file, line);
    yield();
}

static void multiply(Fiber** lanes) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; ++lane) {
        const MmaOperands& mma = lanes[lane]->mma;
        const int group = lane / 4, pair = lane % 4;
        for (int half = 0; half < 2; ++half) {
            for (int part = 0; part < 4; ++part)
                a[group + 8 * (part % 2)][2 * pair + 8 * (part / 2) + half] =
                    half_to_float(static_cast<unsigned short>(mma.a[part] >> (16 * half)));
            for (int part = 0; part < 2; ++part)
                b[2 * pair + 8 * part + half][group] =
                    half_to_float(static_cast<unsigned short>(mma.b[part] >> (16 * half)));
        }
    }
    for (int lane = 0; lane < 32; ++lane)
        for (int part = 0; part < 4; ++part) {
            const int row = lane / 4 + 8 * (part / 2), column = 2 * (lane % 4) + part % 2;
            float sum = lanes[lane]->mma.d[part];
            for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
            lanes[lane]->mma.d[part] = sum;
        }
}

// The last lane to arrive computes the results of all; each finds its own in `value`.
static void complete(Fiber** lanes, unsigned mask) {
    Fiber* self = current;
    unsigned long long results[32] = {};
    unsigned ballot = 0;
    for (int lane = 0; lane < 32; ++lane)
        if (mask >> lane & 1) ballot |= static_cast<unsigned>(lanes[lane]->value & 1) << lane;
    for (int lane = 0; lane < 32; ++lane) {
        if (!(mask >> lane & 1)) continue;
        if (self->operation == kBallot) {
            results[lane] = ballot;
        } else if (self->operation == kShuffle) {
            const int source = lanes[lane]->source;
            if (!(mask >> source & 1))
                fail("%s:%d: lane %d reads from lane %d, which is not in the mask %08x",
                     self->file, self->line, lane, source, mask);
            results[lane] = lanes[source]->value;
        }
    }
    if (self->operation == kMma) {
        if (mask != 0xffffffffu) fail("%s:%d: mma needs 32 lanes", self->file, self->line);
        multiply(lanes);
    }
    for (int lane = 0; lane < 32; ++lane)
        if (mask >> lane & 1) {
            lanes[lane]->value = results[lane];
            lanes[lane]->state = kRunnable;
        }
    runnable[self->linear / 32] |= mask;
    in_warp[self->linear / 32] &= ~mask;
}

__attribute__((noinline)) static unsigned long long warp_operation(Operation operation,
                                                                   unsigned mask,
                                                                   unsigned long long value,
                                                                   int source, const char* file,
                                                                   int line) {
    Fiber* self = current;
    const int warp = self->linear / 32, lane = self->linear % 32;
    const int lanes_here = num_threads - warp * 32 < 32 ? num_threads - warp * 32 : 32;
    Fiber** lanes = fibers.data() + warp * 32;
    if (lanes_here < 32) mask &= (1u << lanes_here) - 1;
    if (!(mask >> lane & 1)) fail("%s:%d: the calling lane is not in the mask", file, line);
    self->operation = operation;
    self->mask = mask;
    self->value = value;
    self->source = source;
    block(kInWarp, file, line);
    in_warp[warp] |= 1u << lane;
    bool all_here = (in_warp[warp] & mask) == mask;
    for (int other = 0; all_here && other < lanes_here; ++other) {
        const Fiber& fiber = *lanes[other];
        if (!(mask >> other & 1)) continue;
        if (fiber.operation == operation && fiber.mask == mask && fiber.line == line) continue;
        if (fiber.mask >> lane & 1)
            fail("%s:%d: lane %d stands at another warp operation, %s:%d (masks %08x, %08x)", file,
                 line, other, fiber.file, fiber.line, mask, fiber.mask);
        all_here = false;
    }
    if (all_here)
        complete(lanes, mask);
    else
        yield();
    return self->value;
}

// ---- one launch --------------------------------------------------------------------------------

static unsigned long long random_state;
static unsigned random_below(unsigned bound) {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<unsigned>((random_state >> 33) % bound);
}

static std::vector<unsigned> order_of(unsigned count, bool shuffle) {
    std::vector<unsigned> order(count);
    for (unsigned i = 0; i < count; ++i) order[i] = i;
    for (unsigned i = count; shuffle && i > 1; --i) std::swap(order[i - 1], order[random_below(i)]);
    return order;
}

static void grow(int count) {
    while (static_cast<int>(fibers.size()) < count) {
        void* memory = mmap(nullptr, kStackBytes + kPageBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) abort();
        mprotect(memory, kPageBytes, PROT_NONE);  // overflow must not go unnoticed
        Fiber* fiber = new Fiber();
        fiber->stack = static_cast<unsigned char*>(memory) + kPageBytes;
        fibers.push_back(fiber);
    }
}

// The message when no thread can run; false when all simply wait at the same barrier or are done.
static bool stuck() {
    const Fiber* barrier = nullptr;
    const Fiber* waiting = nullptr;
    for (int i = 0; i < num_threads; ++i) {
        const Fiber* fiber = fibers[i];
        if (fiber->state == kInWarp && waiting == nullptr) waiting = fiber;
        if (fiber->state != kAtBarrier) continue;
        if (barrier == nullptr) barrier = fiber;
        if (barrier->line == fiber->line && strcmp(barrier->file, fiber->file) == 0) continue;
        snprintf(error_text, 1000,
                 "block (%u, %u, %u): divergent barriers: thread %d waits at %s:%d, thread %d at "
                 "%s:%d",
                 block_index.x, block_index.y, block_index.z, barrier->linear, barrier->file,
                 barrier->line, fiber->linear, fiber->file, fiber->line);
        return true;
    }
    if (waiting == nullptr) return false;
    unsigned missing = 0;
    const int warp = waiting->linear / 32;
    for (int lane = 0; lane < 32; ++lane)
        if ((waiting->mask >> lane & 1) && fibers[warp * 32 + lane]->state != kInWarp)
            missing |= 1u << lane;
    snprintf(error_text, 1000,
             "block (%u, %u, %u): lanes %08x of warp %d never reach the warp operation with mask "
             "%08x at %s:%d",
             block_index.x, block_index.y, block_index.z, missing, warp, waiting->mask,
             waiting->file, waiting->line);
    return true;
}

static bool run_block(bool shuffle) {
    const int num_warps = (num_threads + 31) / 32;
    memset(__start_hutong_shared, 0xff, __stop_hutong_shared - __start_hutong_shared);
    memset(dynamic_shared(), 0xff, dynamic_bytes);
    memset(dynamic_shared() + dynamic_bytes, 0x5a, kCanaryBytes);
    for (int i = 0; i < num_threads; ++i) {
        Fiber* fiber = fibers[i];
        fiber->linear = i;
        fiber->index.x = i % block_size.x;
        fiber->index.y = i / block_size.x % block_size.y;
        fiber->index.z = i / (block_size.x * block_size.y);
        fiber->state = kRunnable;
        fiber->waited = false;
        fiber->atomics = 0;
        prepare(fiber, fiber_main);
        if (i % 32 == 0) runnable[i / 32] = in_warp[i / 32] = 0;
        runnable[i / 32] |= 1u << (i % 32);
    }
    std::vector<unsigned> warps = order_of(num_warps, shuffle);
    for (bool alive = true; alive;) {
        for (unsigned warp : warps) {
            if (runnable[warp] == 0) continue;
            unsigned start = shuffle ? random_below(32) : 0;
            while (!(runnable[warp] >> start & 1)) start = (start + 1) % 32;
            current = fibers[warp * 32 + start];
            switch_context(&scheduler, &current->context);
            if (failed) return false;
        }
        if (stuck()) return false;
        alive = false;
        for (int i = 0; i < num_threads; ++i)
            if (fibers[i]->state == kAtBarrier) {
                fibers[i]->state = kRunnable;
                runnable[i / 32] |= 1u << (i % 32);
                alive = true;
            }
        // Backwards after each barrier, so that a missing one shows whoever is ahead.
        if (shuffle) std::reverse(warps.begin(), warps.end());
    }
    for (int i = 0; i < kCanaryBytes; ++i)
        if (dynamic_shared()[dynamic_bytes + i] != 0x5a) {
            snprintf(error_text, 1000,
                     "block (%u, %u, %u): wrote byte %d behind its %d bytes of dynamic shared "
                     "memory",
                     block_index.x, block_index.y, block_index.z, i, dynamic_bytes);
            return false;
        }
    return true;
}

}  // namespace emulation

// Runs a whole grid. Returns 0, or 1 with the reason in `error` (1,000 bytes).
extern "C" __attribute__((visibility("default"))) int hutong_run(void* kernel, void** args,
                                                                 const unsigned* grid,
                                                                 const unsigned* threads,
                                                                 int shared_bytes,
                                                                 unsigned long long seed,
                                                                 char* error) {
    using namespace emulation;
    thunk = reinterpret_cast<Thunk>(kernel);
    thunk_args = args;
    error_text = error;
    failed = false;
    grid_size = {grid[0], grid[1], grid[2]};
    block_size = {threads[0], threads[1], threads[2]};
    num_threads = static_cast<int>(threads[0] * threads[1] * threads[2]);
    dynamic_bytes = shared_bytes;
    dynamic_memory.resize((shared_bytes + kCanaryBytes) / 16 + 1);
    random_state = seed;
    grow(num_threads);
    const unsigned total = grid[0] * grid[1] * grid[2];
    for (unsigned index : order_of(total, seed != 0)) {
        block_index = {index % grid[0], index / grid[0] % grid[1], index / (grid[0] * grid[1])};
        if (!run_block(seed != 0)) return 1;
    }
    return 0;
}
