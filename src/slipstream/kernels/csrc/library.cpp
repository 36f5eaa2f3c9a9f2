// The C interface, and the choice of the instruction set.
#include <cstdlib>
#include <memory>

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "linear.hpp"

namespace slipstream {
namespace {

struct Buffer {
    void* memory = nullptr;
    size_t size = 0;
    ~Buffer() { std::free(memory); }
    void* get(size_t bytes) {
        if (bytes > size) {
            std::free(memory);
            size = (bytes + 4095) / 4096 * 4096;
            memory = std::aligned_alloc(4096, size);
            if (!memory) std::abort();
        }
        return memory;
    }
};

thread_local Buffer buffers[8];

void team_barrier() {
#pragma omp barrier
}

using Multiply = void (*)(const Product&, int, int, void*, Barrier);

Multiply multiply_for(int isa) {
#if defined(__x86_64__)
    if (isa == AMX) return multiply_amx;
    if (isa == AVX512) return multiply_avx512;
#endif
    return multiply_portable;
}

}  // namespace

void* scratch(int which, size_t bytes) { return buffers[which].get(bytes); }

}  // namespace slipstream

#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num() { return 0; }
static int omp_get_num_threads() { return 1; }
#endif

using namespace slipstream;

#define SL_EXPORT __attribute__((visibility("default")))

extern "C" {

SL_EXPORT const char* sl_digest() { return SL_DIGEST; }

// The widest instruction set that this processor and system offer (see `Isa`), or -1.
SL_EXPORT int sl_best_isa() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return -1;
    if (!has_avx512) return PORTABLE;
#if defined(__linux__)
    unsigned a, b, c, d;
    __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(7), "c"(0));
    const bool has_amx = (d >> 22 & 1) && (d >> 24 & 1);
    __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(7), "c"(1));
    const bool has_bf16 = a >> 5 & 1;
    constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    if (has_amx && has_bf16 && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0)
        return AMX;
#endif
    return AVX512;
#else
    return PORTABLE;
#endif
}

SL_EXPORT int64_t sl_packed_bytes(int format, int num_out, int num_in) {
    return int64_t(ceil_div(num_out, TILE_OUT)) * ceil_div(num_in, TILE_IN) * tile_bytes(format);
}

SL_EXPORT void sl_pack(int format, int isa, int num_out, int num_in, const void* source, void* tiles) {
    pack_matrix(format, isa, num_out, num_in, static_cast<const uint8_t*>(source),
                static_cast<uint8_t*>(tiles));
}

// `products`: [count], computed one after the other by one team.
SL_EXPORT void sl_linear(int isa, int num_threads, const Product* products, int count) {
    const Multiply multiply = multiply_for(isa);
    size_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes = bytes < shared_bytes(products[i]) ? shared_bytes(products[i]) : bytes;
    void* shared = scratch(3, bytes);
#pragma omp parallel num_threads(num_threads)
    for (int i = 0; i < count; i++) {
        if (i) team_barrier();  // the shared memory is in use until all are done
        multiply(products[i], omp_get_thread_num(), omp_get_num_threads(), shared, team_barrier);
    }
}
}
