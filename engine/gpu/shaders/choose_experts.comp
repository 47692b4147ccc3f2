// The experts of each row with their weights. A workgroup has a row. The place of an expert is the number of those that come
// before it: with a higher score, or as high a one and a lower id.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "ordered.glsl"

layout(local_size_x = 128) in;
// 0: the best experts, or the groups that they are in; 1: those that are known.
layout(constant_id = 0) const uint BY = 0;
// 0: weights as they come; 1: times the scale; 2: divided by their sum, and times the scale.
layout(constant_id = 1) const uint WEIGHTS = 0;
// Whether a bias is added for the choice.
layout(constant_id = 2) const bool BIASED = false;
// Experts that there is room for, and those of them that are chosen.
layout(constant_id = 3) const uint ROOM = 16;
layout(constant_id = 4) const uint CHOSEN_ROOM = 16;

const uint SIZE = 128;

layout(push_constant, scalar) uniform Push {
    // `[n_rows, n_expert]`, `[n_expert]`, `[n_rows, n_used]`.
    Floats probs;
    Floats bias;
    Uints known;
    // `[n_rows, n_used]`.
    Uints ids;
    Floats weights;
    uint n_rows;
    uint n_expert;
    uint n_used;
    // Groups that are chosen first, and how many of them; 0: none.
    uint n_groups;
    uint n_open;
    // Experts that become one.
    uint per_group;
    float scale;
    float least_sum;
} push;

shared uint scores[ROOM];
shared uint group_scores[ROOM];
shared uint chosen[CHOSEN_ROOM];
shared float norm;

// The score of group `g`: the sum of its two best.
float group_score(uint g) {
    uint size = push.n_expert / push.n_groups;
    uint best = 0, second = 0;
    for (uint e = g * size; e < (g + 1) * size; e++) {
        uint score = scores[e];
        second = max(second, min(best, score));
        best = max(best, score);
    }
    float sum = from_ordered(best);
    return size > 1 ? sum + from_ordered(second) : sum;
}

bool is_open(uint g) {
    uint mine = group_scores[g], before = 0;
    for (uint h = 0; h < push.n_groups; h++) {
        uint other = group_scores[h];
        before += other > mine || (other == mine && h < g) ? 1 : 0;
    }
    return before < push.n_open;
}

// Puts the scores of all but the best groups out of reach.
void close_groups() {
    uint me = gl_LocalInvocationID.x, size = push.n_expert / push.n_groups;
    for (uint g = me; g < push.n_groups; g += SIZE) {
        group_scores[g] = ordered(group_score(g));
    }
    barrier();
    for (uint e = me; e < push.n_expert; e += SIZE) {
        if (!is_open(e / size)) {
            scores[e] = ordered(0.0 - INFINITE);
        }
    }
    barrier();
}

void choose(Floats probs) {
    uint me = gl_LocalInvocationID.x;
    for (uint e = me; e < push.n_expert; e += SIZE) {
        scores[e] = ordered(BIASED ? probs.v[e] + push.bias.v[e] : probs.v[e]);
    }
    barrier();
    if (push.n_groups > 0) {
        close_groups();
    }
    for (uint e = me; e < push.n_expert; e += SIZE) {
        uint mine = scores[e], before = 0;
        for (uint f = 0; f < push.n_expert; f++) {
            uint other = scores[f];
            before += other > mine || (other == mine && f < e) ? 1 : 0;
        }
        if (before < push.n_used) {
            chosen[before] = e / push.per_group;
        }
    }
}

void main() {
    uint row = line(), me = gl_LocalInvocationID.x;
    if (row >= push.n_rows) {
        return;
    }
    Floats probs = at(push.probs, uint64_t(row) * push.n_expert);
    uint start = row * push.n_used;
    if (BY == 0) {
        choose(probs);
    } else {
        for (uint k = me; k < push.n_used; k += SIZE) {
            chosen[k] = min(push.known.v[start + k], push.n_expert - 1);
        }
    }
    barrier();
    if (WEIGHTS == 2) {
        if (me == 0) {
            float sum = 0.0;
            for (uint k = 0; k < push.n_used; k++) {
                sum += probs.v[chosen[k]];
            }
            norm = max_(sum, push.least_sum);
        }
        barrier();
    }
    for (uint k = me; k < push.n_used; k += SIZE) {
        float weight = probs.v[chosen[k]];
        if (WEIGHTS == 2) {
            weight = div_exact(weight, norm);
        }
        push.ids.v[start + k] = chosen[k];
        push.weights.v[start + k] = WEIGHTS == 0 ? weight : weight * push.scale;
    }
}
