// A draft tree in the making. speculation/growth.py is its twin and says what it does.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "candidates.hpp"

namespace slipstream {

// One request that is drafted for.
struct DraftRequest {
    Drawing drawing;
    int64_t anchor;               // its last token
    int64_t position;             // index of the first drafted token
    const int64_t* slots;         // [num_slots] of the positions in front of the anchor
    const int64_t* final_tokens;  // [num_final_tokens]: nothing is drafted behind them
    int32_t num_slots, num_final_tokens;
    int32_t max_len, max_nodes;
    int32_t seat;  // where the newest committed row is kept, for nets that keep one
};

struct DraftRules {
    double least_score;    // what is less likely to be accepted is not proposed
    double disagreement;   // scale of the difference between draft and target; see confidence.py
    int32_t num_children;  // of a node, and most nodes of a depth that get any
    int32_t num_rivals;    // among which the chance of acceptance is shared out
};

// [requests, stride] nodes, parents first; parent -1 is the anchor.
struct DraftTrees {
    int64_t* tokens;
    int32_t* parents;
    double* scores;
    int32_t* counts;  // [requests]
    int32_t stride;
};

constexpr int ROOT = -1;

struct Node {
    int64_t token;
    double score;
    int32_t parent, depth;
    int32_t row;  // where its row's results lie; of a node that has one
};

class Growth {
public:
    Growth(const DraftRequest& request, const DraftRules& rules) : request_(&request), rules_(&rules) {
        frontier.push_back(ROOT);
    }

    std::vector<Node> nodes;
    std::vector<int> frontier;  // nodes whose children are looked for next

    int64_t token(int node) const { return node == ROOT ? request_->anchor : nodes[node].token; }
    int depth(int node) const { return node == ROOT ? 0 : nodes[node].depth; }
    int64_t next_position(int node) const { return request_->position + depth(node); }

    // `trust`: the net's own estimate for the first choice; negative where it has none.
    void add_children(int node, const Candidate* found, int count, const uint32_t* token_ids,
                      double trust) {
        if (!count) return;
        const double temperature = request_->drawing.temperature > 0.0f ? request_->drawing.temperature : 1.0;
        const double factor = temperature / rules_->disagreement;
        double weights[MAX_CANDIDATES], total = 0.0;
        for (int i = 0; i < count; i++)
            total += weights[i] = std::exp((double(found[i].score) - found[0].score) * factor);
        const double first = weights[0] / total;
        const double rest = trust < 0.0 ? 1.0 : first < 1.0 ? (1.0 - trust) / (1.0 - first) : 0.0;
        const double path = node == ROOT ? 1.0 : nodes[node].score;
        for (int i = 0; i < count && i < rules_->num_children; i++) {
            // A first share of nearly 1 cancels badly, and no child may outrank its parent.
            const double share = i == 0 && trust >= 0.0 ? trust : std::min(1.0, weights[i] / total * rest);
            const double score = path * share;
            if (score < rules_->least_score) continue;
            nodes.push_back({token_ids[found[i].index], score, node, depth(node) + 1, -1});
        }
    }

    // The best of the nodes added since the last call that can have children.
    void take_frontier() {
        const int first = first_new_;
        first_new_ = static_cast<int>(nodes.size());
        frontier.clear();
        if (first == first_new_) return;
        for (const int node : best_nodes()) {
            if (static_cast<int>(frontier.size()) == rules_->num_children) return;
            if (node >= first && nodes[node].depth < request_->max_len && !is_final(nodes[node].token))
                frontier.push_back(node);
        }
    }

    void write(const DraftTrees& trees, int index) const {
        std::vector<int> kept = best_nodes();
        std::sort(kept.begin(), kept.end());
        std::vector<int> place(nodes.size());
        const size_t first = size_t(index) * trees.stride;
        for (size_t i = 0; i < kept.size(); i++) {
            const Node& node = nodes[kept[i]];
            place[kept[i]] = static_cast<int>(i);
            trees.tokens[first + i] = node.token;
            trees.parents[first + i] = node.parent == ROOT ? ROOT : place[node.parent];
            trees.scores[first + i] = std::min(node.score, 1.0);
        }
        trees.counts[index] = static_cast<int32_t>(kept.size());
    }

private:
    // Up to max_nodes, best score first; of equal scores the earlier one.
    std::vector<int> best_nodes() const {
        std::vector<int> ranked(nodes.size());
        for (size_t i = 0; i < ranked.size(); i++) ranked[i] = static_cast<int>(i);
        std::stable_sort(ranked.begin(), ranked.end(),
                         [&](int a, int b) { return nodes[a].score > nodes[b].score; });
        if (ranked.size() > size_t(request_->max_nodes)) ranked.resize(request_->max_nodes);
        return ranked;
    }

    bool is_final(int64_t token) const {
        const int64_t* end = request_->final_tokens + request_->num_final_tokens;
        return std::find(request_->final_tokens, end, token) != end;
    }

    const DraftRequest* request_;
    const DraftRules* rules_;
    int first_new_ = 0;
};

}  // namespace slipstream
