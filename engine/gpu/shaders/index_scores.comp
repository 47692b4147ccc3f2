// Scores of pools for rows: Σ_h weights[h] max(q[h] key, 0), each product in the order of its elements, sixteen sums over
// heads as the lanes of the CPU have them. A workgroup has 64 pools of a row.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "kv_page.glsl"
#include "index_keys.glsl"
#include "entries.glsl"
#include "lanes.glsl"

layout(local_size_x = 256) in;
// Sixteens of heads.
layout(constant_id = 2) const uint GROUPS = 4;
// Whether keys are those of entries, which stand for as many positions as a pool has.
layout(constant_id = 3) const bool ENTRIES = false;

const uint POOLS = 64;
// Pools of an invocation, which has one head of each sixteen.
const uint MINE = 4;
// Elements that are in shared memory at once.
const uint CHUNK = 32;

layout(push_constant, scalar) uniform Push {
    // Of each row: its number, the pools that it sees, and where the list of pages has its sequence's.
    Uints rows;
    Uints pages;
    // Keys of the index in the first page.
    uint64_t pool;
    Floats q;
    Floats weights;
    // `[rows, stride]`.
    Floats scores;
    uint page_bytes;
    uint n_units;
    uint stride;
    uint n_head;
    uint dim;
    // Elements of a key in its page.
    uint width;
    uint positions;
    // From one entry of a page to the next.
    uint entry_bytes;
} push;

shared float keys[CHUNK][POOLS];
shared float queries[CHUNK][GROUPS * LANES];
shared float totals[POOLS][LANES];

// Brings elements from `start` on of the keys of pools from `first` on, and of the row's queries.
void load(uint start, uint first, uint n_seen, uint page_list, uint64_t q_start) {
    for (uint i = gl_LocalInvocationID.x; i < CHUNK * POOLS; i += 256) {
        uint j = i % CHUNK, pool = first + i / CHUNK;
        float key = 0.0;
        if (pool < n_seen && start + j < push.dim) {
            // The last position of a pool has its key.
            uint pos = (pool + 1) * push.positions - 1;
            uint64_t page = push.pages.v[page_list + pos / KV_PAGE];
            page = push.pool + page * push.page_bytes;
            if (ENTRIES) {
                page += pos % KV_PAGE / push.positions * push.entry_bytes;
                key = record_element(page, push.width, start + j);
            } else {
                key = key_element(page, push.width, pos % KV_PAGE, start + j);
            }
        }
        keys[j][i / CHUNK] = key;
    }
    for (uint i = gl_LocalInvocationID.x; i < CHUNK * GROUPS * LANES; i += 256) {
        uint j = i % CHUNK, head = i / CHUNK;
        bool there = head < push.n_head && start + j < push.dim;
        queries[j][head] = there ? at(push.q, q_start).v[head * push.dim + start + j] : 0.0;
    }
}

void main() {
    uint unit = line();
    if (unit >= push.n_units) {
        return;
    }
    uint per_row = push.stride / POOLS;
    uint index = unit / per_row, first = unit % per_row * POOLS;
    uint row = push.rows.v[3 * index], n_seen = push.rows.v[3 * index + 1];
    uint page_list = push.rows.v[3 * index + 2];
    if (first >= n_seen) {
        return;
    }
    uint lane = gl_LocalInvocationID.x % LANES;
    uint mine = gl_LocalInvocationID.x / LANES * MINE;
    float sums[GROUPS][MINE];
    [[unroll]] for (uint g = 0; g < GROUPS; g++) {
        [[unroll]] for (uint p = 0; p < MINE; p++) {
            sums[g][p] = 0.0;
        }
    }
    for (uint start = 0; start < push.dim; start += CHUNK) {
        load(start, first, n_seen, page_list, uint64_t(row) * push.n_head * push.dim);
        barrier();
        for (uint j = 0; j < min(CHUNK, push.dim - start); j++) {
            [[unroll]] for (uint g = 0; g < GROUPS; g++) {
                float q = queries[j][g * LANES + lane];
                [[unroll]] for (uint p = 0; p < MINE; p++) {
                    sums[g][p] = q * keys[j][mine + p] + sums[g][p];
                }
            }
        }
        barrier();
    }
    [[unroll]] for (uint p = 0; p < MINE; p++) {
        float total = 0.0;
        [[unroll]] for (uint g = 0; g < GROUPS; g++) {
            uint head = g * LANES + lane;
            float weight = head < push.n_head ? push.weights.v[row * push.n_head + head] : 0.0;
            total = max_(sums[g][p], 0.0) * weight + total;
        }
        totals[mine + p][lane] = total;
    }
    barrier();
    uint pool = gl_LocalInvocationID.x;
    if (pool < POOLS && first + pool < n_seen) {
        float lanes[LANES];
        [[unroll]] for (uint i = 0; i < LANES; i++) {
            lanes[i] = totals[pool][i];
        }
        push.scores.v[index * push.stride + first + pool] = fold(lanes);
    }
}
