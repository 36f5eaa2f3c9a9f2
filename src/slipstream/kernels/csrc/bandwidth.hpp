// See bandwidth.cpp.
#pragma once
#include <cstdint>

namespace slipstream {

// The sum of all numbers, wrapping around: a result, so that no read is left out.
uint64_t read_share(const uint64_t* numbers, int64_t count);

}  // namespace slipstream
