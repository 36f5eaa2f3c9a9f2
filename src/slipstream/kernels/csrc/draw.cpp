// See draw.hpp. Only what may depend on the rounding of a logarithm or an exponential is approximate
// here, and then the margin is checked; log-weights are those of the rule, bit for bit.
#include <algorithm>
#include <cfloat>
#include <climits>

#include "draw_row.hpp"

namespace slipstream {
namespace {

constexpr double MASS_MARGIN = 1e-5;  // ten times the rounding of a sum of exponentials
constexpr float NO_MASS = -35.0f;     // all that lies below weighs less than the rounding
constexpr float REACHES[] = {8.0f, 20.0f, INFINITE};  // nearly every nucleus ends within the first

struct Entry {
    float weight;
    int place;
    double mass;
};

bool comes_before(const Entry& a, const Entry& b) {
    return a.weight > b.weight || (a.weight == b.weight && a.place < b.place);
}

// Sum of the weights of all that is kept.
double mass_of(const Row& row, Limit limit) {
    double mass = 0.0;
    for (int block = 0; block < row.num_blocks; block++) {
        const float best = row.block_weight(block);
        if (best < limit.weight || best < NO_MASS) continue;
        f32x16 sums = {};
        for (int i = block * BLOCK; i < (block + 1) * BLOCK; i += LANES) {
            const f32x16 w = row.weights(i);
            const i32x16 is_tied = (w == limit.weight) & (lane_numbers() + i <= limit.place);
            const i32x16 is_kept = (w > limit.weight) | is_tied;
            sums += select(is_kept, exp(w), f32x16{});
        }
        mass += sum(sums);
    }
    return mass;
}

// All that is kept and has a log-weight of `least` or more, in no order.
struct Entries {
    Entry* begin;
    Entry* end;
};

Entry* entry_buffer(const Row& row) {
    return static_cast<Entry*>(scratch(DRAW_SCRATCH + 2, sizeof(Entry) * row.num_blocks * BLOCK));
}

Entries gather(const Row& row, Limit limit, float least) {
    Entry* begin = entry_buffer(row);
    Entry* end = begin;
    if (least < limit.weight) least = limit.weight;
    for (int block = 0; block < row.num_blocks; block++) {
        if (row.block_weight(block) < least) continue;
        for (int i = block * BLOCK; i < (block + 1) * BLOCK; i += LANES) {
            const f32x16 w = row.weights(i);
            for_lanes(mask_of(w >= least), [&](int lane) {
                if (limit.keeps(w[lane], i + lane)) *end++ = {w[lane], i + lane, 0.0};
            });
        }
    }
    return {begin, end};
}

// The `count` first of what is kept, in no order; fewer if there are fewer.
Entries first(const Row& row, Limit limit, int count) {
    float least = -INFINITE;
    if (count <= row.num_blocks) {  // so many blocks have a column at or above it
        Entry* bests = entry_buffer(row);
        for (int block = 0; block < row.num_blocks; block++)
            bests[block] = {row.block_weight(block), block, 0.0};
        std::nth_element(bests, bests + count - 1, bests + row.num_blocks, comes_before);
        least = bests[count - 1].weight;
    }
    Entries entries = gather(row, limit, least);
    if (entries.end - entries.begin > count) {
        std::nth_element(entries.begin, entries.begin + count - 1, entries.end, comes_before);
        entries.end = entries.begin + count;
    }
    return entries;
}

Limit last_of(Entries entries) {
    const Entry& last = *std::max_element(entries.begin, entries.end, comes_before);
    return {last.weight, last.place};
}

// The shortest prefix whose mass reaches `goal`. The last of `entries` is it if none does.
Limit prefix(Entries entries, double goal) {
    Entry *low = entries.begin, *high = entries.end;
    double mass = 0.0;
    while (high - low > 1) {
        Entry* middle = low + (high - low) / 2;
        std::nth_element(low, middle, high, comes_before);
        double upper = 0.0;
        for (Entry* entry = low; entry < middle; entry++) upper += entry->mass;
        if (mass + upper >= goal) {
            high = middle;
        } else {
            mass += upper;
            low = middle;
        }
    }
    return {low->weight, low->place};
}

// What the filters keep: surely, at most, and how much it weighs in all.
struct Kept {
    Limit sure, possible;
    double mass;
};

// All but top_p.
Limit ranked(const Row& row, const Draw& draw) {
    const Limit limit{draw.min_weight, INT_MAX};
    if (draw.top_k == 0 || draw.top_k >= row.size) return limit;
    return last_of(first(row, limit, draw.top_k));
}

Kept nucleus(const Row& row, Limit limit, double top_p) {
    const double goal = top_p * mass_of(row, limit);
    Entries entries{};
    for (const float reach : REACHES) {
        entries = gather(row, limit, -reach);
        double mass = 0.0;
        for (Entry* entry = entries.begin; entry < entries.end; entry++)
            mass += entry->mass = std::exp(double(entry->weight));
        if (mass >= goal * (1.0 + MASS_MARGIN)) break;
    }
    const Limit sure = prefix(entries, goal * (1.0 - MASS_MARGIN));
    return {sure, prefix(entries, goal * (1.0 + MASS_MARGIN)), mass_of(row, sure)};
}

// The column with the highest score, or -1. Of a nucleus the end is never looked for: the column is
// drawn from all, and where too much lies before it, again from what lies before it.
int draw_one(const Row& row, const Draw& draw, NoiseKey key) {
    Limit limit = ranked(row, draw);
    const double goal = draw.top_p < 1.0 ? draw.top_p * mass_of(row, limit) : 0.0;
    for (;;) {
        Leaders leaders(1);
        lead(row, key, limit, leaders);
        if (!leaders.are_clear()) return -1;
        const int place = leaders.places[0];
        if (draw.top_p >= 1.0) return place;
        limit = {leaders.weights[0], place - 1};
        const double mass = mass_of(row, limit);
        if (mass < goal * (1.0 - MASS_MARGIN)) return place;
        if (mass < goal * (1.0 + MASS_MARGIN)) return -1;
    }
}

void draw_several(const Row& row, const DrawCall& call, const Draw& draw, NoiseKey key, float* probs) {
    Kept kept;
    kept.sure = kept.possible = ranked(row, draw);
    if (draw.top_p < 1.0)
        kept = nucleus(row, kept.sure, draw.top_p);
    else
        kept.mass = mass_of(row, kept.sure);
    Leaders leaders(call.count);
    lead(row, key, kept.possible, leaders);
    if (!leaders.are_clear()) return;
    for (int i = 0; i < leaders.num; i++)
        if (!kept.sure.keeps(leaders.weights[i], leaders.places[i])) return;
    for (int i = 0; i < leaders.num; i++) {
        draw.places[i] = leaders.places[i];
        probs[i] = float(std::exp(double(leaders.weights[i])) / kept.mass);
    }
}

void take_best(Row& row, int count, int32_t* places, float* probs) {
    const Limit all{-FLT_MAX, INT_MAX};
    const Entries entries = first(row, all, count);  // by the logits themselves
    std::sort(entries.begin, entries.end, comes_before);
    row.shift = row.best;
    const double mass = mass_of(row, all);
    for (int i = 0; i < entries.end - entries.begin; i++) {
        places[i] = entries.begin[i].place;
        probs[i] = float(std::exp(double(entries.begin[i].weight) - row.best) / mass);
    }
}

// As sampling/processors.py does it, operation by operation.
float penalised(float logit, const Draw& draw, float count) {
    float value = logit > 0.0f ? logit / draw.repetition : logit * draw.repetition;
    if (count > 0.0f) {
        value -= draw.presence;
        value -= draw.frequency * count;
    }
    return value;
}

// A row's logits, processed.
const float* logits_of(const Draw& draw, const DrawCall& call, int node) {
    const float* logits = draw.logits + call.stride * (node + 1);
    if (!draw.num_edits && !draw.num_seen) return logits;
    float* copy = static_cast<float*>(scratch(DRAW_SCRATCH, sizeof(float) * call.size));
    memcpy(copy, logits, sizeof(float) * call.size);
    for (int i = 0; i < draw.num_seen; i++)
        copy[draw.seen[i]] = penalised(logits[draw.seen[i]], draw, draw.seen_counts[i]);
    for (int i = 0; i < draw.num_edits; i++) copy[draw.edit_places[i]] = draw.edit_values[i];
    return copy;
}

int token_after(const Draw& draw, const DrawCall& call, int node, int depth) {
    Row row(logits_of(draw, call, node), call);
    if (!(std::fabs(row.best) < INFINITE)) return -1;
    if (draw.temperature == 0.0f) return row.first_best();
    row.shift = row.best;
    row.temperature = draw.temperature;
    return draw_one(row, draw, noise_key(draw.seed, draw.position + depth));
}

int child_of(const Draw& draw, int node, int token) {
    for (int child = node + 1; child < draw.num_nodes; child++)
        if (draw.nodes[child] == token && draw.nodes[draw.num_nodes + child] == node) return child;
    return -1;
}

void walk(const Draw& draw, const DrawCall& call) {
    int node = -1, depth = 0;
    do {
        const int token = token_after(draw, call, node, depth);
        draw.places[depth++] = token;
        node = token < 0 ? -1 : child_of(draw, node, token);
    } while (node >= 0);
    if (depth <= draw.num_nodes) draw.places[depth] = -1;
}

}  // namespace

void SL_NAME(noise)(NoiseKey key, const uint32_t* token_ids, int count, float* out) {
    int i = 0;
    for (; i + LANES <= count; i += LANES) store(out + i, gumbel(hash(key, load(token_ids + i))));
    if (i == count) return;
    uint32_t ids[LANES] = {};
    float rest[LANES];
    memcpy(ids, token_ids + i, sizeof(uint32_t) * (count - i));
    store(rest, gumbel(hash(key, load(ids))));
    memcpy(out + i, rest, sizeof(float) * (count - i));
}

void SL_NAME(draw)(const DrawCall& call, int index) {
    const Draw& draw = call.draws[index];
    if (!call.probs) return walk(draw, call);
    float* probs = call.probs + int64_t(index) * call.count;
    for (int i = 0; i < call.count; i++) {
        draw.places[i] = -1;
        probs[i] = 0.0f;
    }
    Row row(logits_of(draw, call, -1), call);
    if (!(std::fabs(row.best) < INFINITE)) return;
    if (draw.temperature == 0.0f) return take_best(row, call.count, draw.places, probs);
    row.shift = row.best;
    row.temperature = draw.temperature;
    draw_several(row, call, draw, noise_key(draw.seed, draw.position), probs);
}

}  // namespace slipstream
