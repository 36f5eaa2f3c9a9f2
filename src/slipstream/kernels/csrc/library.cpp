// The C interface, and the choice of the instruction set.
#include <algorithm>
#include <cstdlib>

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "bandwidth.hpp"
#include "delta.hpp"
#include "draft.hpp"
#include "draw.hpp"
#include "pass.hpp"
#include "team.hpp"

#if defined(__x86_64__)
#define SL_PICK(isa, name) ((isa) == PORTABLE ? name##_portable : name##_avx512)
#else
#define SL_PICK(isa, name) ((void)(isa), name##_portable)
#endif
#define SL_EXPORT extern "C" __attribute__((visibility("default")))

namespace slipstream {
namespace {

class Buffer {
public:
    ~Buffer() { std::free(memory_); }
    void* get(size_t bytes) {
        if (bytes > size_) {
            std::free(memory_);
            size_ = (bytes + 4095) / 4096 * 4096;
            memory_ = std::aligned_alloc(4096, size_);
            if (!memory_) std::abort();
            std::memset(memory_, 0, size_);
        }
        return memory_;
    }

private:
    void* memory_ = nullptr;
    size_t size_ = 0;
};

thread_local Buffer buffers[NUM_SCRATCH];

}  // namespace

thread_local TeamBarrier* team = nullptr;

void* scratch(int which, size_t bytes) { return buffers[which].get(bytes); }

Multiply multiply_for(int isa, int inputs) {
#if defined(__x86_64__)
    if (inputs == INT8_INPUTS) {
        if (isa == AMX) return multiply_int8_amx;
        __builtin_cpu_init();
        if (isa != PORTABLE && __builtin_cpu_supports("avx512vnni")) return multiply_int8_vnni;
        return multiply_int8_portable;
    }
    if (inputs == PAIRED_INPUTS) return multiply_avx512_bf16;
    if (isa == AMX) return multiply_amx;
    if (isa == AVX512) return multiply_avx512;
#endif
    (void)isa;
    return inputs == INT8_INPUTS ? multiply_int8_portable : multiply_portable;
}

Attend attend_for(int isa, const AttentionShape& shape) {
#if defined(__x86_64__)
    if (isa >= AVX512_BF16 && shape.kv_format != KV_F32 && shape.head_dim % 32 == 0)
        return isa == AMX ? attend_amx : attend_avx512_bf16;
    if (isa != PORTABLE) return attend_avx512;
#endif
    (void)isa;
    (void)shape;
    return attend_portable;
}

void run_pass(int isa, int num_threads, Pass pass);

}  // namespace slipstream

using namespace slipstream;

SL_EXPORT const char* sl_digest() { return SL_DIGEST; }

// The widest instruction set that this processor and system offer (see `Isa`), or -1.
SL_EXPORT int sl_best_isa() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return -1;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return PORTABLE;
#if defined(__linux__)
    unsigned a, b, c, d;
    __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(7), "c"(0));
    const bool has_amx = (d >> 22 & 1) && (d >> 24 & 1) && (d >> 25 & 1);  // bf16, tiles, int8
    __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(7), "c"(1));
    const bool has_bf16 = a >> 5 & 1;
    constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    if (has_amx && has_bf16 && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0)
        return AMX;
    if (has_bf16 && __builtin_cpu_supports("avx512vnni") && adds_pairs_in_order()) return AVX512_BF16;
#endif
    return AVX512;
#else
    return PORTABLE;
#endif
}

SL_EXPORT int64_t sl_packed_bytes(int format, int num_out, int num_in) {
    return int64_t(ceil_div(num_out, TILE_OUT)) * ceil_div(num_in, TILE_IN) * tile_bytes(format);
}

// Only shape, format and inputs of `matrix` are read; inputs become those of this instruction set.
SL_EXPORT void sl_pack(int isa, Matrix* matrix, const void* source, void* tiles) {
    if (isa == AVX512_BF16 && matrix->inputs == BF16_INPUTS) matrix->inputs = PAIRED_INPUTS;
    pack_matrix(*matrix, static_cast<const uint8_t*>(source), static_cast<uint8_t*>(tiles));
}

// Rows of a packed matrix, [count, num_in] float32.
SL_EXPORT void sl_read_rows(const Matrix* matrix, const int64_t* rows, int count, float* out) {
#pragma omp parallel for schedule(static) if (count >= 32)
    for (int i = 0; i < count; i++)
        read_row(*matrix, static_cast<int>(rows[i]), out + size_t(i) * matrix->num_in);
}

// `products`: [count], computed one after the other by one team; `next` is set here.
SL_EXPORT void sl_linear(int isa, int num_threads, const Product* products, int count) {
    size_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes = std::max(bytes, shared_bytes(products[i].num_rows, products[i].matrix.num_in));
    void* shared = scratch(3, bytes);
    TeamBarrier barrier;
#pragma omp parallel num_threads(num_threads)
    {
        team = &barrier;
        for (int i = 0; i < count; i++) {
            if (i) team_barrier();  // the shared memory is in use until all are done
            Product p = products[i];
            p.next = i + 1 < count ? &products[i + 1].matrix : nullptr;
            multiply_for(isa, p.matrix.inputs)(p, team_thread(), team_size(), shared, team_barrier);
        }
    }
}

SL_EXPORT void sl_attend(int isa, int num_threads, const Attention* attention) {
    const Attend attend = attend_for(isa, *attention->shape);
    const Units units = cut_units(*attention->shape, *attention->plan, num_threads, PLAN_SCRATCH);
    const size_t bytes = sizeof(std::atomic<int>) * units.num_counters;
    std::atomic<int>* counters = static_cast<std::atomic<int>*>(scratch(11, bytes));
    memset(static_cast<void*>(counters), 0, bytes);
#pragma omp parallel num_threads(num_threads)
    attend(*attention, units, counters, team_thread());
}

// The instruction set of the attention kernel that `sl_attend` and `sl_pass` run for this shape.
SL_EXPORT int sl_attention_isa(int isa, const AttentionShape* shape) {
#if defined(__x86_64__)
    const Attend attend = attend_for(isa, *shape);
    if (attend == attend_amx) return AMX;
    if (attend == attend_avx512_bf16) return AVX512_BF16;
    if (attend == attend_avx512) return AVX512;
#endif
    (void)isa;
    (void)shape;
    return PORTABLE;
}

// Reads [count] numbers once, each thread a share of its own, and gives their sum.
SL_EXPORT uint64_t sl_read_memory(int num_threads, const uint64_t* numbers, int64_t count) {
    std::atomic<uint64_t> sum{0};
#pragma omp parallel num_threads(num_threads)
    {
        const int64_t begin = count * team_thread() / team_size();
        const int64_t end = count * (team_thread() + 1) / team_size();
        sum += read_share(numbers + begin, end - begin);
    }
    return sum;
}

SL_EXPORT void sl_normalise(int isa, const Norm* norm, const float* x, uint16_t* out, int num_rows) {
    (SL_PICK(isa, normalise))(*norm, x, out, {0, num_rows});
}

SL_EXPORT void sl_rotate_and_store(int isa, const Projection* p, const AttentionShape* shape,
                                   int num_rows) {
    (SL_PICK(isa, rotate_and_store))(*p, *shape, {0, num_rows});
}

SL_EXPORT void sl_gate(int isa, int kind, const float* gate_up, uint16_t* out, int size, int num_rows) {
    (SL_PICK(isa, gate))(kind, gate_up, out, size, {0, num_rows});
}

// Noise of the same tokens in several rows, [num_rows, count]; each row has a seed and a position.
SL_EXPORT void sl_noise(int isa, const uint32_t* token_ids, int count, const uint64_t* seeds,
                        const uint64_t* positions, int num_rows, float* out) {
    for (int row = 0; row < num_rows; row++)
        (SL_PICK(isa, noise))(noise_key(seeds[row], positions[row]), token_ids, count,
                              out + size_t(row) * count);
}

SL_EXPORT void sl_draw(int isa, int num_threads, const DrawCall* call) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(num_threads) if (call->num_draws > 1)
    for (int i = 0; i < call->num_draws; i++) (SL_PICK(isa, draw))(*call, i);
}

// Threads take heads of sequences; sequences may read one state, but each writes its own.
SL_EXPORT void sl_delta(int isa, int num_threads, const Delta* delta) {
    const size_t bytes = sizeof(float) * delta->value_dim * delta->key_dim;
#pragma omp parallel for schedule(dynamic) num_threads(num_threads)
    for (int item = 0; item < delta->num_spans * delta->num_heads; item++) {
        float* spare = static_cast<float*>(scratch(STATE_SCRATCH, bytes));
        const DeltaSpan& span = delta->spans[item / delta->num_heads];
        (SL_PICK(isa, take_in))(*delta, span, item % delta->num_heads, spare);
    }
}

SL_EXPORT void sl_pass(int isa, int num_threads, const Pass* pass) { run_pass(isa, num_threads, *pass); }

// Learn of committed rows: block nets store what they mean to them, chain nets compute rows of their own.
SL_EXPORT void sl_draft_inject(int isa, int num_threads, const DraftNet* net, const CommittedRows* rows) {
    inject_rows(isa, num_threads, *net, *rows);
}

SL_EXPORT void sl_draft_absorb(int isa, int num_threads, const DraftNet* net, const CommittedRows* rows) {
    absorb_rows(isa, num_threads, *net, *rows);
}

// Draft for all requests.
SL_EXPORT void sl_draft_blocks(int isa, int num_threads, const DraftNet* net,
                               const DraftRequest* requests, int num_requests, const DraftTrees* trees) {
    draft_blocks(isa, num_threads, *net, requests, num_requests, *trees);
}

SL_EXPORT void sl_draft_chains(int isa, int num_threads, const DraftNet* net,
                               const DraftRequest* requests, int num_requests, const DraftTrees* trees) {
    draft_chains(isa, num_threads, *net, requests, num_requests, *trees);
}
