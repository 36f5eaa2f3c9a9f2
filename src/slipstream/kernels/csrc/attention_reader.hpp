// Which keys and values a thread brings near, and when: see attention_bf16.cpp.
#pragma once
#include <initializer_list>

#if defined(__AMX_BF16__)
#include "attention_tiles.hpp"
#else
#include "attention_vectors.hpp"
#endif

namespace slipstream {
namespace {

constexpr int MAX_STREAMED = 9;  // lane tiles of a unit
constexpr int64_t BYTES_AHEAD = 32768;  // and a section's rows, which are read head by head
constexpr int FIRST_ROWS = 16;
constexpr int ROWS_AT_PACKING = 8;  // for 32 dims of a tile of queries

// Few rows wait for memory; many find keys and values in a cache after the first tile of lanes.
inline bool is_streamed(const Attention& a, const Unit& unit) {
    const int group = a.shape->num_heads / a.shape->kv_heads;
    const int lanes = static_cast<int>(a.plan->tiles[unit.tile].num_rows) * group;
    return unit.num_heads * ceil_div(lanes, 16) <= MAX_STREAMED;
}

// A thread's units, one after the other, and the slots whose keys and values it reads in them. Rows are
// prefetched a fixed distance ahead and one by one between the computing, because a burst would hold the
// thread up until the memory has answered; across the end of a unit, for which the next one is taken early.
class Reader {
public:
    Reader(const Attention& a, const Taker& taker, int64_t head_bytes, int64_t slot_bytes)
        : a_(a), taker_(taker), head_bytes_(head_bytes), slot_bytes_(slot_bytes) {}

    // The next unit; null where there is none.
    const Unit* take() {
        const bool is_open = has_next_;
        const Unit* unit = is_open ? next_ : taker_.take();
        has_next_ = false;
        if (unit && !is_open) {
            open(*unit);
            bring(FIRST_ROWS);
        }
        if (unit && !unit_ && !has_next_ && is_streamed(a_, *unit)) reserve();
        return unit;
    }

    // Say that keys or values of so many slots were read for so many heads.
    SL_INLINE void read(int slots, int heads) { ahead_ -= slots * heads * int(head_bytes_); }

    // Prefetch up to so many rows: a slot's keys and values of the unit's heads.
    SL_INLINE void bring(int most) {
        for (; most > 0 && ahead_ < most_ahead_; most--) {
            const int64_t at = slots_[begin_] * slot_bytes_ + offset_;
            for (const void* stored : {a_.keys, a_.values})
                for (int64_t i = 0; i < line_bytes_; i += 64)
                    _mm_prefetch(static_cast<const char*>(stored) + at + i, _MM_HINT_T1);
            ahead_ += 2 * int(line_bytes_);
            if (++begin_ == last_) advance();
        }
    }

private:
    void open(const Unit& unit) {
        if (!is_streamed(a_, unit)) return;
        unit_ = &unit;
        slots_ = a_.plan->slots + a_.plan->tiles[unit.tile].first_slot;
        ahead_ = ahead_ > 0 ? ahead_ : 0;
        section_ = unit.begin / unit.num_bundles();
        enter();
    }

    void enter() {
        const Seen seen = seen_by(*a_.plan, a_.plan->tiles[unit_->tile]);
        const Blocks blocks = blocks_of(seen, unit_->first_section + section_);
        const Range heads = unit_->heads_of(section_);
        line_bytes_ = (heads.end - heads.begin) * head_bytes_;
        offset_ = (unit_->first_head + heads.begin) * head_bytes_;
        most_ahead_ = static_cast<int>(BYTES_AHEAD + 2 * SECTION * line_bytes_);
        begin_ = blocks.begin * KEY_BLOCK;
        last_ = blocks.end * KEY_BLOCK <= seen.newest ? blocks.end * KEY_BLOCK : seen.newest + 1;
    }

    __attribute__((noinline)) void advance() {
        if (++section_ * unit_->num_bundles() < unit_->end) return enter();
        unit_ = nullptr;
        most_ahead_ = INT32_MIN;
        if (!has_next_) reserve();
    }

    void reserve() {
        next_ = taker_.take();
        has_next_ = true;
        if (next_) open(*next_);
    }

    const Attention& a_;
    Taker taker_;
    const int64_t head_bytes_, slot_bytes_;
    const Unit* next_ = nullptr;  // the unit after the present one
    bool has_next_ = false;
    const Unit* unit_ = nullptr;  // whose rows are prefetched; null: through with all that was taken
    const int64_t* slots_ = nullptr;
    int64_t line_bytes_ = 0, offset_ = 0;
    int section_ = 0, begin_ = 0, last_ = 0;  // positions still to be prefetched
    int ahead_ = 0, most_ahead_ = INT32_MIN;  // bytes
};

// Where a section tells the reader how far it has come.
template <bool IS_STREAMED>
struct Pace {
    Reader& reader;
    SL_INLINE void operator()() const {
        if (IS_STREAMED) reader.bring(1);
    }
    SL_INLINE void read(int slots, int heads) const {
        if (IS_STREAMED) reader.read(slots, heads);
    }
};

}  // namespace
}  // namespace slipstream
