// Which keys and values a thread brings near, and when: see attention_amx.cpp.
#pragma once
#include <initializer_list>

#include "attention_tiles.hpp"

namespace slipstream {
namespace {

constexpr int MAX_STREAMED = 9;  // lane tiles of a unit
constexpr int64_t BYTES_AHEAD = 32768;
constexpr int FIRST_ROWS = 16;

// Few rows wait for memory and read all keys of a section in order; many find them in a cache.
inline bool is_streamed(const Attention& a, const Unit& unit) {
    const int group = a.shape->num_heads / a.shape->kv_heads;
    const int lanes = static_cast<int>(a.plan->tiles[unit.tile].num_rows) * group;
    return unit.num_heads * ceil_div(lanes, 16) <= MAX_STREAMED;
}

// A thread's units, one after the other, and the slots whose keys and values it reads in them. Rows are prefetched a fixed distance ahead and a few at a time,
// because a burst would hold the thread up until the memory has answered; across the end of a unit,
// for which the next one is taken early.
class Reader {
public:
    Reader(const Attention& a, const Units& units, std::atomic<int>* next, int64_t head_bytes,
           int64_t slot_bytes)
        : a_(a), units_(units), next_(next), head_bytes_(head_bytes),
          slot_bytes_(slot_bytes) {}

    // The next unit; null where there is none.
    const Unit* take() {
        const int index = taken_ < 0 ? next_->fetch_add(1) : taken_;
        if (index >= units_.num_units) return nullptr;
        const Unit& unit = units_.units[index];
        const bool is_new = taken_ < 0;
        if (is_new) open(unit);
        taken_ = -1;
        if (is_new) bring(FIRST_ROWS);
        if (is_through_ && taken_ < 0) reserve();
        return &unit;
    }

    // Say that so many slots were read; keys count for half, values for the other.
    SL_INLINE void read(int rows) { ahead_ -= rows; }

    // Prefetch up to so many rows. Best little and often: a burst holds the thread up.
    SL_INLINE void bring(int most) {
        for (; most > 0 && ahead_ < most_ahead_ && begin_ < end_; most--) prefetch();
    }

private:
    void open(const Unit& unit) {
        is_through_ = false;
        if (!is_streamed(a_, unit)) return;
        unit_ = &unit;
        slots_ = a_.plan->slots + a_.plan->tiles[unit.tile].first_slot;
        line_bytes_ = unit.num_heads * head_bytes_;
        offset_ = unit.first_head * head_bytes_;
        most_ahead_ = SECTION / 2 + static_cast<int>(BYTES_AHEAD / (2 * line_bytes_));
        section_ = 0;
        ahead_ = ahead_ > 0 ? ahead_ : 0;
        enter();
    }

    void enter() {
        const Seen seen = seen_by(*a_.plan, a_.plan->tiles[unit_->tile]);
        const Blocks blocks = blocks_of(seen, unit_->first_section + section_);
        begin_ = blocks.begin * KEY_BLOCK;
        end_ = blocks.end * KEY_BLOCK <= seen.newest ? blocks.end * KEY_BLOCK : seen.newest + 1;
    }

    SL_INLINE void prefetch() {
        const int64_t at = slots_[begin_] * slot_bytes_ + offset_;
        for (const void* stored : {a_.keys, a_.values})
            for (int64_t i = 0; i < line_bytes_; i += 64)
                _mm_prefetch(static_cast<const char*>(stored) + at + i, _MM_HINT_T1);
        ahead_++;
        if (++begin_ == end_) advance();
    }

    __attribute__((noinline)) void advance() {
        if (++section_ < unit_->num_sections) return enter();
        is_through_ = true;
        if (taken_ < 0) reserve();
    }

    void reserve() {
        taken_ = next_->fetch_add(1);
        if (taken_ < units_.num_units) open(units_.units[taken_]);
    }

    const Attention& a_;
    const Units& units_;
    std::atomic<int>* next_;
    const int64_t head_bytes_, slot_bytes_;
    int taken_ = -1;  // the unit after the present one
    bool is_through_ = false;  // with the rows of the unit that was opened last
    const Unit* unit_ = nullptr;
    const int64_t* slots_ = nullptr;
    int64_t line_bytes_ = 0, offset_ = 0;
    int section_ = 0, begin_ = 0, end_ = 0;  // positions still to be prefetched
    int ahead_ = 0, most_ahead_ = 0;         // rows
};

}  // namespace
}  // namespace slipstream
