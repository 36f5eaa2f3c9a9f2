// The team of threads that a kernel runs in. OpenMP's own pool: torch's, where both use one runtime.
#pragma once
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

inline void team_barrier() {
#pragma omp barrier
}

Multiply multiply_for(int isa);

}  // namespace slipstream
