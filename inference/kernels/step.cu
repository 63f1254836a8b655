// The two ends of a step that meet the host: a gate that waits for the step's inputs, and the
// hand-over of its candidates. Both work on pinned host memory, without copies by the driver.
//
// A step may be launched before its inputs exist. The gate takes the next ticket and waits until
// the host has released it. A released ticket that was withdrawn, or one that nobody released in
// time, runs with padding rows only: such a step changes nothing that outlives it but `logits`,
// which go to `kept` first. So no mistake of the host can hold the device for ever.
#include "common.cuh"

namespace {

constexpr int kThreads = 512;
constexpr int kPadding = -(1 << 30);
enum { kReleased = 0, kWithdrawn = 16 };  // words of `control`; one for each of kRing tickets
constexpr unsigned kRing = 8;
enum { kRun, kPad };

// Nothing after it is read before it; sees what the host wrote before the value.
__device__ __forceinline__ unsigned load_acquire(const unsigned* address) {
#ifdef HUTONG_EMULATED
    return *static_cast<const volatile unsigned*>(address);
#else
    unsigned value;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
#endif
}

}  // namespace

// One block. `host_inputs` [token ids | positions | slots | block tables | mask rows to take] and
// `host_masks` [batch, mask_words] lie in pinned memory, `inputs` (without the last) and `masks`
// on the device. `padded` (pinned, [kRing]) gets the ticket when the step runs as padding; then `kept`
// (pinned) [batch, vocabulary] holds the logits of the step before.
extern "C" __global__ void __launch_bounds__(kThreads)
await_inputs(const unsigned* control, unsigned* padded, unsigned* tickets, const int* host_inputs,
             int* inputs, const int* host_masks, int* masks, const float* logits, float* kept,
             int batch, int pages, int mask_words, int vocabulary, int timeout_us) {
    __shared__ int outcome;
    __shared__ unsigned ticket;
    // No grid_launch_dependents(): kernels behind this one read the inputs before they wait.
    grid_dependency_wait();
    if (threadIdx.x == 0) {
        ticket = tickets[0] + 1;
        tickets[0] = ticket;
        const unsigned long long begin = global_timer_ns();
        outcome = kPad;
        while (true) {
            if (static_cast<int>(load_acquire(control + kReleased) - ticket) >= 0) {
                if (load_acquire(control + kWithdrawn + ticket % kRing) != ticket) outcome = kRun;
                break;
            }
            if (global_timer_ns() - begin >= timeout_us * 1000ull) break;
            __nanosleep(200);
        }
    }
    __syncthreads();
    const int rows = 3 * batch, total = rows + batch * pages;
    const volatile int* source = host_inputs;
    if (outcome == kRun) {
        for (int i = threadIdx.x; i < total; i += kThreads) inputs[i] = source[i];
        const int changed = source[total];
        const volatile int* bits = host_masks;
        for (int b = 0; b < batch; ++b) {
            if ((changed >> b & 1) == 0) continue;
            const int begin = b * mask_words;
#pragma unroll 8
            for (int i = threadIdx.x; i < mask_words; i += kThreads)
                masks[begin + i] = bits[begin + i];
        }
        return;
    }
    // Token -1 is no row of the embedding table: nothing of the host's is read.
    for (int i = threadIdx.x; i < total; i += kThreads)
        inputs[i] = i < batch ? -1 : i < 2 * batch ? kPadding : 0;
    const int values = batch * vocabulary;
#pragma unroll 4
    for (int i = threadIdx.x; i < values; i += kThreads) kept[i] = logits[i];
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
        static_cast<volatile unsigned*>(padded)[ticket % kRing] = ticket;
        __threadfence_system();
    }
}

// One block: `words` values of the candidates to pinned memory, unless the step ran as padding;
// what the host reads then still belongs to the step before.
extern "C" __global__ void __launch_bounds__(kThreads)
publish(const int* positions, const int* candidates, int* host_candidates, int words) {
    grid_launch_dependents();
    grid_dependency_wait();
    if (positions[0] < 0) return;
    for (int i = threadIdx.x; i < words; i += kThreads) host_candidates[i] = candidates[i];
}
