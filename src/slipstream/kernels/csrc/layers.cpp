#include "layers.hpp"

namespace slipstream {
namespace {

// Rows of a pass that every thread normalises for itself, which costs less than waiting.
constexpr int MAX_OWN_ROWS = 2;

// Norms of all rows: by this thread alone where they are few, else shared and then complete.
const uint16_t* normalised(const Pass& pass, const Norm& norm, uint16_t* shared, const Member& member) {
    if (pass.num_rows <= MAX_OWN_ROWS) {
        uint16_t* own = static_cast<uint16_t*>(scratch(OWN_BUFFER, pass.num_rows * pass.hidden_size * 2));
        member.kernels.normalise(norm, pass.hidden, own, {0, pass.num_rows});
        return own;
    }
    member.kernels.normalise(norm, pass.hidden, shared,
                             share_of(pass.num_rows, member.thread, member.num_threads));
    team_barrier();
    return shared;
}

// Bring the places of rows' keys and values near, while the product that makes them is computed.
void prefetch_slots(const Pass& pass, const Layer& layer, Share rows) {
    const size_t bytes = slot_bytes(pass.shape);
    for (int row = rows.begin; row < rows.end; row++)
        for (size_t i = 0; i < bytes; i += 64)
            __builtin_prefetch(static_cast<const char*>(layer.keys) + pass.slots[row] * bytes + i, 1);
    keep_prefetches();
}

// The keys and values that this thread's attention begins with.
Upcoming upcoming_of(const Pass& pass, const Layer& layer, const Member& member) {
    const AttentionPlan& plan = pass.plans[layer.plan];
    const Units& units = member.cut->units[layer.plan];
    if (!units.num_units) return {};
    const Unit& unit = units.units[first_unit(units, member.thread)];
    const Tile& tile = plan.tiles[unit.tile];
    const int64_t begin = int64_t(unit.first_section + unit.begin / unit.num_bundles()) * SECTION;
    const int64_t left = plan.positions[tile.first_row + tile.num_rows - 1] - begin;
    return {static_cast<const uint8_t*>(layer.keys), plan.slots + tile.first_slot + begin,
            slot_bytes(pass.shape), static_cast<int32_t>(left < SECTION ? left : SECTION)};
}

}  // namespace

Kernels kernels_for(int isa) {
    Kernels kernels{normalise_portable, normalise_add_portable, rotate_and_store_portable, gate_portable, {}};
#if defined(__x86_64__)
    if (isa != PORTABLE)
        kernels = {normalise_avx512, normalise_add_avx512, rotate_and_store_avx512, gate_avx512, {}};
#endif
    for (int inputs = 0; inputs < NUM_INPUTS; inputs++) kernels.multiply[inputs] = multiply_for(isa, inputs);
    return kernels;
}

void Member::multiply(const Matrices& m, const uint16_t* x, int num_in, float* out, int num_rows,
                      int store, const Matrices* next, const Upcoming* upcoming) const {
    int first = 0;
    for (int i = 0; i < m.num_parts; i++) {
        if (i) team_barrier();  // the shared memory is in use until all are done
        const Matrix& part = m.parts[i];
        const Matrix* following = i + 1 < m.num_parts ? &m.parts[i + 1] : next ? next->parts : nullptr;
        kernels.multiply[part.inputs](
            {part, x, out + first, num_in, m.num_out, num_rows, store, following, i ? nullptr : upcoming},
            thread, num_threads, shared, team_barrier);
        first += part.num_out;
    }
    team_barrier();
}

void run_layer(const Pass& pass, int index, const Buffers& buffers, const Member& member,
               Stopwatch& watch, const uint16_t* input, int input_size) {
    const Layer& layer = pass.layers[index];
    const AttentionShape& shape = pass.shape;
    const int hidden = pass.hidden_size, q_size = shape.num_heads * shape.head_dim;
    const int num_rows = pass.num_rows;
    const Share rows = share_of(num_rows, member.thread, member.num_threads);

    prefetch_slots(pass, layer, rows);
    const Upcoming upcoming = upcoming_of(pass, layer, member);
    const uint16_t* normed =
        input ? input : normalised(pass, layer.input_norm, buffers.normed, member);
    watch.mark(NORMS);
    member.multiply(layer.qkv, normed, input ? input_size : hidden, buffers.qkv, num_rows, TO_F32,
                    &layer.attention_output, &upcoming);
    watch.mark(QKV);
    member.kernels.rotate_and_store({buffers.qkv, layer.cosines, layer.sines, pass.positions, pass.slots,
                                     layer.keys, layer.values, layer.q_norm, layer.k_norm,
                                     layer.key_scales, layer.value_scales},
                                    shape, rows);
    team_barrier();
    watch.mark(ROTARY);
    const Attention attention{&shape,       &pass.plans[layer.plan], buffers.qkv,
                              layer.keys,   layer.values,            buffers.mixed,
                              layer.qkv.num_out, TO_BF16,
                              layer.key_scales,  layer.value_scales};
    member.attend(attention, member.cut->units[layer.plan],
                  member.cut->counters + index * member.cut->num_counters, member.thread);
    team_barrier();
    watch.mark(ATTENTION);
    const auto add_to_hidden = [&](const Matrices& m, const uint16_t* x, int num_in, const Norm& norm,
                                   Stage stage, const Matrices* next) {
        float* out = norm.weight ? buffers.output : pass.hidden;
        member.multiply(m, x, num_in, out, num_rows, norm.weight ? TO_F32 : ADD_F32, next);
        watch.mark(stage);
        if (!norm.weight) return;
        member.kernels.normalise_add(norm, buffers.output, pass.hidden, rows);
        team_barrier();
        watch.mark(NORMS);
    };
    add_to_hidden(layer.attention_output, buffers.mixed, q_size, layer.attention_output_norm,
                  ATTENTION_OUTPUT, &layer.gate_up);
    normed = normalised(pass, layer.mlp_norm, buffers.normed, member);
    watch.mark(NORMS);
    member.multiply(layer.gate_up, normed, hidden, buffers.gate_up, num_rows, TO_F32, &layer.down);
    watch.mark(GATE_UP);
    member.kernels.gate(pass.gate, buffers.gate_up, buffers.gated, pass.intermediate_size, rows);
    team_barrier();
    watch.mark(GATE);
    const bool is_last = index + 1 == pass.num_layers;
    const Matrices* head = pass.num_logit_rows ? &pass.head : nullptr;
    const Matrices* next = is_last ? head : &pass.layers[index + 1].qkv;
    add_to_hidden(layer.down, buffers.gated, pass.intermediate_size, layer.mlp_output_norm, DOWN, next);
    if (layer.tap) {
        const size_t at = size_t(rows.begin) * hidden, count = size_t(rows.end - rows.begin) * hidden;
        memcpy(layer.tap + at, pass.hidden + at, sizeof(float) * count);
    }
}

AttentionCut cut_attention(const Pass& pass, int num_threads) {
    AttentionCut cut{};
    for (int i = 0; i < pass.num_layers; i++) {
        const int plan = pass.layers[i].plan;
        if (cut.units[plan].units) continue;
        cut.units[plan] = cut_units(pass.shape, pass.plans[plan], num_threads,
                                    PLAN_SCRATCH + 2 * plan);
        const int needed = ceil_div(cut.units[plan].num_counters, 16) * 16;
        cut.num_counters = needed > cut.num_counters ? needed : cut.num_counters;
    }
    const size_t bytes = sizeof(std::atomic<int>) * cut.num_counters * pass.num_layers;
    cut.counters = static_cast<std::atomic<int>*>(scratch(11, bytes));
    memset(static_cast<void*>(cut.counters), 0, bytes);
    return cut;
}

void embed(const Pass& pass, Share rows) {
    const size_t hidden = pass.hidden_size;
    for (int row = rows.begin; row < rows.end; row++) {
        float* out = pass.hidden + row * hidden;
        read_row(*pass.embeddings, static_cast<int>(pass.tokens[row]), out);
        if (pass.embedding_scale != 0.0f)
            for (size_t i = 0; i < hidden; i++)
                out[i] = widen(round_bf16(widen(round_bf16(out[i])) * pass.embedding_scale));
        if (pass.embedding_tap) memcpy(pass.embedding_tap + row * hidden, out, sizeof(float) * hidden);
    }
}

size_t shared_bytes_of(const Pass& pass) {
    const int q_size = pass.shape.num_heads * pass.shape.head_dim;
    int width = pass.hidden_size > pass.intermediate_size ? pass.hidden_size : pass.intermediate_size;
    width = width > q_size ? width : q_size;
    const size_t of_layers = shared_bytes(pass.num_rows, width);
    const size_t of_head = shared_bytes(pass.num_logit_rows, pass.hidden_size);
    return of_layers > of_head ? of_layers : of_head;
}

Buffers take_buffers(Pass& pass, size_t most_rows) {
    const size_t rows = pass.num_rows;
    const size_t q_size = size_t(pass.shape.num_heads) * pass.shape.head_dim;
    const size_t qkv_size = q_size + 2 * size_t(pass.shape.kv_heads) * pass.shape.head_dim;
    pass.hidden = static_cast<float*>(scratch(HIDDEN_SCRATCH, rows * pass.hidden_size * 4));
    Buffers buffers;
    buffers.qkv = static_cast<float*>(scratch(5, rows * qkv_size * 4));
    buffers.gate_up = static_cast<float*>(scratch(6, rows * pass.intermediate_size * 8));
    buffers.output = static_cast<float*>(scratch(7, rows * pass.hidden_size * 4));
    buffers.normed = static_cast<uint16_t*>(scratch(8, most_rows * pass.hidden_size * 2));
    buffers.mixed = static_cast<uint16_t*>(scratch(9, rows * q_size * 2));
    buffers.gated = static_cast<uint16_t*>(scratch(10, rows * pass.intermediate_size * 2));
    memset(buffers.mixed, 0, rows * q_size * 2);  // rows in no branch
    return buffers;
}

}  // namespace slipstream
