// Chain nets (EAGLE-3, multi-token-prediction heads): row j pairs what is known behind token j with token j + 1, so it lies in the slot
// of position j + 1. The newest committed row has no slot yet: it lies in the first spare slot of its
// request's seat, and rows of drafted nodes behind it.
#include "draft.hpp"

namespace slipstream {
namespace {

// Rows of a pass: what each reads besides its token, and what it sees.
struct ChainRows {
    int64_t *tokens, *positions, *slots, *rows, *seen;
    Tile* tiles;
    AttentionPlan plan;
};

// Memory for a pass; `num_slots` of all branches together.
ChainRows take_rows(size_t num_rows, size_t num_slots, size_t num_branches) {
    int64_t* memory = draft_scratch<int64_t>(FLAT, 4 * num_rows + num_slots);
    const auto take = [&](size_t count) { return memory += count, memory - count; };
    ChainRows rows{};
    rows.tokens = take(num_rows);
    rows.positions = take(num_rows);
    rows.slots = take(num_rows);
    rows.rows = take(num_rows);
    rows.seen = take(num_slots);
    rows.tiles = draft_scratch<Tile>(PLANS, num_branches);
    rows.plan = {rows.tiles, rows.rows, rows.positions, rows.seen, 0, 0};
    return rows;
}

void point_to(Pass& pass, ChainRows& rows, int num_rows, int num_tiles) {
    pass.tokens = rows.tokens;
    pass.positions = rows.positions;
    pass.slots = rows.slots;
    pass.plans = &rows.plan;
    pass.num_rows = num_rows;
    rows.plan.num_tiles = num_tiles;
}

int64_t spare_slot(const DraftNet& net, int seat, int place) {
    return net.first_spare_slot + int64_t(seat) * net.seat_slots + place;
}

// `hidden` becomes its norm in float32.
void normalise_in_place(const DraftNet& net, const Norm& norm, float* hidden, const Member& member) {
    std::vector<float> sum(net.pass.hidden_size, 0.0f);
    member.kernels.normalise_add(norm, hidden, sum.data(), {0, 1});
    memcpy(hidden, sum.data(), sizeof(float) * sum.size());
}

// By all threads: from pass.hidden, which holds what each row reads, to the states that the next rows
// read, and to `normed` for the head. `states` gets the embeddings meanwhile.
void run_rows(const Pass& pass, const DraftNet& net, const Buffers& buffers, float* embeddings,
              uint16_t* inputs, uint16_t* normed, const Member& member) {
    const int hidden = pass.hidden_size;
    const Share share = share_of(pass.num_rows, member.thread, member.num_threads);
    Stopwatch watch(nullptr, member.thread);
    Pass embedded = pass;
    embedded.hidden = embeddings;
    embed(embedded, share);
    for (int row = share.begin; row < share.end; row++) {
        uint16_t* input = inputs + size_t(row) * 2 * hidden;
        float* state = pass.hidden + size_t(row) * hidden;
        member.kernels.normalise(net.embedding_norm, embeddings + size_t(row) * hidden, input, {0, 1});
        member.kernels.normalise(net.hidden_norm, state, input + hidden, {0, 1});
        if (net.has_normed_residual) normalise_in_place(net, net.hidden_norm, state, member);
    }
    team_barrier();
    if (net.joining.num_parts) {
        member.multiply(net.joining, inputs, 2 * hidden, pass.hidden, pass.num_rows, TO_F32,
                        &pass.layers[0].qkv);
        run_layer(pass, 0, buffers, member, watch);
    } else {
        run_layer(pass, 0, buffers, member, watch, inputs, 2 * hidden);
    }
    for (int i = 1; i < pass.num_layers; i++) run_layer(pass, i, buffers, member, watch);
    for (int row = share.begin; row < share.end; row++) {
        float* state = pass.hidden + size_t(row) * hidden;
        member.kernels.normalise(pass.final_norm, state, normed + size_t(row) * hidden, {0, 1});
        if (net.recycles_normed) normalise_in_place(net, pass.final_norm, state, member);
    }
    team_barrier();
}

// By all threads: what committed rows read besides their tokens, of a net that fuses no taps.
void read_states(const DraftNet& net, const CommittedRows& rows, float* out, const Member& member) {
    const size_t size = net.tap_size;
    rows.each(share_of(rows.num_rows(), member.thread, member.num_threads), [&](int row, size_t from) {
        memcpy(out + row * size, rows.taps[0] + from * size, sizeof(float) * size);
        normalise_in_place(net, net.fusion_norm, out + row * size, member);
    });
    team_barrier();
}

// The newest row of before gets its slot: what the seat keeps, or zeros where that is another's.
void settle_newest(const DraftNet& net, const Committed& request) {
    if (request.first_position == 0) return;
    const AttentionShape& shape = net.pass.shape;
    const size_t size = shape.kv_format == KV_F32 ? 4 : shape.kv_format == KV_BF16 ? 2 : 1;
    const auto move = [&](void* storage, size_t bytes) {
        char* rows = static_cast<char*>(storage);
        char* to = rows + size_t(request.slots[request.first_position]) * bytes;
        if (request.is_newest_known)
            memcpy(to, rows + size_t(spare_slot(net, request.seat, 0)) * bytes, bytes);
        else
            memset(to, 0, bytes);
    };
    for (int i = 0; i < net.pass.num_layers; i++) {
        const Layer& layer = net.pass.layers[i];
        move(layer.keys, size * slot_stride(shape));  // values follow the keys
        if (shape.kv_format != KV_INT8) continue;
        move(layer.key_scales, sizeof(float) * shape.kv_heads);
        move(layer.value_scales, sizeof(float) * shape.kv_heads);
    }
}

// Returns: the number of tiles.
int lay_out(const DraftNet& net, const CommittedRows& committed, const ChainRows& rows) {
    int64_t row = 0, first_slot = 0;
    int num_tiles = 0;
    for (int i = 0; i < committed.num_requests; i++) {
        const Committed& request = committed.requests[i];
        const int end = request.first_position + request.num_rows;
        for (int j = request.first_position; j < end; j++) {
            const int64_t at = row + j - request.first_position;
            rows.tokens[at] = request.next_tokens[j - request.first_position];
            rows.positions[at] = j;
            rows.slots[at] = j + 1 < end ? request.slots[j + 1] : spare_slot(net, request.seat, 0);
            rows.rows[at] = at;
        }
        memcpy(rows.seen + first_slot, request.slots + 1, sizeof(int64_t) * (end - 1));
        rows.seen[first_slot + end - 1] = spare_slot(net, request.seat, 0);
        for (int done = 0; done < request.num_rows; done += MAX_TILE_ROWS)
            rows.tiles[num_tiles++] = {row + done, std::min(request.num_rows - done, MAX_TILE_ROWS),
                                       first_slot};
        row += request.num_rows;
        first_slot += end;
    }
    return num_tiles;
}

}  // namespace

void absorb_rows(int isa, int num_threads, const DraftNet& net, const CommittedRows& committed) {
    const Kernels kernels = kernels_for(isa);
    const int num_rows = committed.num_rows(), width = net.num_taps * net.tap_size;
    const size_t hidden = net.pass.hidden_size;
    size_t num_slots = 0;
    for (int i = 0; i < committed.num_requests; i++) {
        settle_newest(net, committed.requests[i]);
        num_slots += committed.requests[i].first_position + committed.requests[i].num_rows;
    }
    ChainRows rows = take_rows(num_rows, num_slots, num_rows);
    Pass pass = net.pass;
    point_to(pass, rows, num_rows, lay_out(net, committed, rows));
    const Buffers buffers = take_buffers(pass, num_rows);
    const AttentionCut cut = cut_attention(pass, num_threads);
    uint16_t* taps = draft_scratch<uint16_t>(TAPS, size_t(num_rows) * width);
    uint16_t* inputs = draft_scratch<uint16_t>(INPUTS, num_rows * 2 * hidden);
    float* embeddings = draft_scratch<float>(FUSED, num_rows * hidden);
    uint16_t* normed = draft_scratch<uint16_t>(NORMED_ROWS, num_rows * hidden);
    void* shared = scratch(3, std::max(shared_bytes_of(pass),
                                       shared_bytes(num_rows, std::max(width, int(2 * hidden)))));
    TeamBarrier barrier;
#pragma omp parallel num_threads(num_threads)
    {
        team = &barrier;
        const Member member{kernels, team_thread(), team_size(), shared, attend_for(isa, pass.shape), &cut};
        if (net.fusion.num_parts) {
            read_taps(net, committed, taps, member);
            member.multiply(net.fusion, taps, width, pass.hidden, num_rows, TO_F32);
        } else {
            read_states(net, committed, pass.hidden, member);
        }
        run_rows(pass, net, buffers, embeddings, inputs, normed, member);
    }
    for (int i = 0, row = -1; i < committed.num_requests; i++) {
        row += committed.requests[i].num_rows;
        const size_t seat = committed.requests[i].seat;
        memcpy(net.newest_hidden + seat * hidden, pass.hidden + row * hidden, sizeof(float) * hidden);
        memcpy(net.newest_normed + seat * hidden, normed + row * hidden, sizeof(uint16_t) * hidden);
    }
}

namespace {

// The rows of one depth: those of all frontiers' nodes, each a branch of its own.
class NodePass {
public:
    NodePass(const DraftNet& net, const DraftRequest* requests, Walk& walk, int most_rows)
        : net_(net), requests_(requests), walk_(walk), num_rows_(walk.trees.size(), 1) {
        size_t longest = 0;
        for (size_t i = 0; i < walk.trees.size(); i++)
            longest = std::max(longest, size_t(requests[i].num_slots + requests[i].max_len));
        rows_ = take_rows(most_rows, most_rows * longest, most_rows);
        pass = net.pass;
        pass.num_rows = most_rows;
        buffers = take_buffers(pass, most_rows);
        const size_t hidden = pass.hidden_size;
        states_ = draft_scratch<float>(STATES, walk.trees.size() * net.seat_slots * hidden);
        for (size_t i = 0; i < walk.trees.size(); i++)
            memcpy(state(int(i), 0), net.newest_hidden + requests[i].seat * hidden, sizeof(float) * hidden);
    }

    // By one thread: lay out rows for all frontiers; false where there is none.
    bool prepare(int num_threads) {
        int64_t first_slot = 0;
        int num_rows = 0;
        owners_.clear();
        for (size_t i = 0; i < walk_.trees.size(); i++)
            for (const int node : walk_.trees[i].frontier)
                first_slot += add(int(i), node, num_rows++, first_slot);
        if (!num_rows) return false;
        point_to(pass, rows_, num_rows, num_rows);
        cut = cut_attention(pass, num_threads);
        return true;
    }

    // By one thread: keep the states that the next depth reads.
    void keep_states() {
        const size_t hidden = pass.hidden_size;
        for (size_t row = 0; row < owners_.size(); row++) {
            const Place& owner = owners_[row];
            memcpy(state(owner.request, owner.row), pass.hidden + row * hidden, sizeof(float) * hidden);
        }
    }

    // Row of the last pass that belongs to a node.
    int row_of(int request, int node) const {
        for (size_t row = 0; row < owners_.size(); row++)
            if (owners_[row].request == request && owners_[row].node == node) return int(row);
        return 0;
    }

    Pass pass;
    Buffers buffers;
    AttentionCut cut{};

private:
    float* state(int request, int row) {
        return states_ + (size_t(request) * net_.seat_slots + row) * pass.hidden_size;
    }

    // Returns: how many slots the row sees.
    int64_t add(int request, int node, int row, int64_t first_slot) {
        Growth& tree = walk_.trees[request];
        const DraftRequest& asked = requests_[request];
        const int place = num_rows_[request]++, depth = tree.depth(node);
        tree.nodes[node].row = place;
        owners_.push_back({request, node, place});
        const int num_before = asked.num_slots - 1;  // row 0 lies in the slot of position 1
        rows_.tokens[row] = tree.token(node);
        rows_.positions[row] = num_before + depth;
        rows_.slots[row] = spare_slot(net_, asked.seat, place);
        rows_.rows[row] = row;
        int64_t* seen = rows_.seen + first_slot;
        memcpy(seen, asked.slots + 1, sizeof(int64_t) * num_before);
        seen[num_before] = spare_slot(net_, asked.seat, 0);
        int ancestor = node;
        for (int at = num_before + depth; at > num_before; at--) {
            seen[at] = spare_slot(net_, asked.seat, tree.nodes[ancestor].row);
            ancestor = tree.nodes[ancestor].parent;
        }
        rows_.tiles[row] = {row, 1, first_slot};
        const int parent = tree.nodes[node].parent;
        memcpy(pass.hidden + size_t(row) * pass.hidden_size,
               state(request, parent == ROOT ? 0 : tree.nodes[parent].row),
               sizeof(float) * pass.hidden_size);
        return num_before + depth + 1;
    }

    const DraftNet& net_;
    const DraftRequest* requests_;
    Walk& walk_;
    std::vector<int> num_rows_;  // of each request so far, the newest committed one included
    std::vector<Place> owners_;
    ChainRows rows_;
    float* states_;
};

}  // namespace

void draft_chains(int isa, int num_threads, const DraftNet& net, const DraftRequest* requests,
                  int num_requests, const DraftTrees& trees) {
    const Kernels kernels = kernels_for(isa);
    const size_t hidden = net.pass.hidden_size;
    const int most_rows = num_requests * net.rules.num_children;
    Walk walk(net, requests, num_requests, isa != PORTABLE);
    NodePass nodes(net, requests, walk, most_rows);
    uint16_t* inputs = draft_scratch<uint16_t>(INPUTS, most_rows * 2 * hidden);
    float* embeddings = draft_scratch<float>(FUSED, most_rows * hidden);
    uint16_t* normed = draft_scratch<uint16_t>(NORMED_ROWS, std::max(most_rows, num_requests) * hidden);
    float* logits = draft_scratch<float>(LOGITS, size_t(most_rows) * net.pass.head.num_out);
    void* shared = scratch(3, std::max(shared_bytes_of(nodes.pass),
                                       shared_bytes(most_rows, int(2 * hidden))));
    for (int i = 0; i < num_requests; i++)
        memcpy(normed + i * hidden, net.newest_normed + requests[i].seat * hidden,
               sizeof(uint16_t) * hidden);
    walk.take_places([](int request, int) { return request; });
    int num_rows = num_requests;
    bool goes_on = true;
    TeamBarrier barrier;
#pragma omp parallel num_threads(num_threads)
    {
        team = &barrier;
        const Member member{kernels, team_thread(), team_size(),
                            shared,  attend_for(isa, nodes.pass.shape), &nodes.cut};
        for (;;) {
            draft_logits(net, normed, num_rows, logits, member);
            walk.look(logits, normed, member);
            if (member.thread == 0) {
                walk.grow();
                goes_on = nodes.prepare(member.num_threads);
                walk.take_places([&](int request, int node) { return nodes.row_of(request, node); });
                num_rows = nodes.pass.num_rows;
            }
            team_barrier();
            if (!goes_on) break;
            run_rows(nodes.pass, net, nodes.buffers, embeddings, inputs, normed, member);
            if (member.thread == 0) nodes.keep_states();
            team_barrier();
        }
    }
    walk.write(trees);
}

}  // namespace slipstream
