// The team of threads that a kernel runs in. OpenMP's own pool: torch's, where both use one runtime.
#pragma once
#include <atomic>
#include <thread>

#include "linear.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace slipstream {

#ifdef _OPENMP
inline int team_thread() { return omp_get_thread_num(); }
inline int team_size() { return omp_get_num_threads(); }
#else
inline int team_thread() { return 0; }
inline int team_size() { return 1; }
#endif

// A barrier that gives the processor away after a short while: where other programs hold it, the thread
// that is waited for would not get on otherwise.
class TeamBarrier {
public:
    void wait(int num_threads) {
        if (num_threads == 1) return;
        const int round = round_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads) {
            arrived_.store(0, std::memory_order_relaxed);
            round_.store(round + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; round_.load(std::memory_order_acquire) == round; spins++)
            if (spins >= MAX_SPINS) std::this_thread::yield();
    }

private:
    static constexpr int MAX_SPINS = 20000;
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> round_{0};
};

// The barrier of the team that this thread is in.
extern thread_local TeamBarrier* team;

inline void team_barrier() { team->wait(team_size()); }

// The kernel for matrices whose rows enter as `inputs` (see `InputType`).
Multiply multiply_for(int isa, int inputs);

}  // namespace slipstream
