// Merges the spans of queries in order and divides by the sum of weights. An invocation makes four values of the output. It reads what
// several spans have before it uses the first of that.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "kv_page.glsl"
#include "attend_tile.glsl"

layout(local_size_x = 64) in;

layout(push_constant, scalar) uniform Push {
    Tiles tiles;
    Floats states;
    Floats sinks;
    Floats result;
    Uints lists;
    uint n_tiles;
    uint n_kv_head;
    uint group;
    uint window;
    uint dv;
    // Pages that a list has room for.
    uint most;
} push;

// Spans whose states are read at once.
const uint BATCH = 8;

void main() {
    uint v_stride = whole_lanes(push.dv), fours = (push.dv + 3) / 4;
    uint four = item() % fours, number = item() / fours;
    uint query = number % TILE, kv_head = number / TILE % push.n_kv_head;
    number /= TILE * push.n_kv_head;
    if (number >= push.n_tiles) {
        return;
    }
    Tile tile = push.tiles.v[number];
    if (query >= tile.n_queries) {
        return;
    }
    uint in_part = tile.first_query + query;
    uint row = in_part / push.group, head = kv_head * push.group + in_part % push.group;
    // Its own, not the tile's: a later span must leave no trace.
    uint end = end_visible(tile, row, push.window);
    uint n_spans = (end + SPAN_POSITIONS - 1) / SPAN_POSITIONS - tile.first_span;
    if (LISTED) {
        uint n_pages = page_list(push.lists, tile, kv_head, push.most).v[0];
        n_spans = (n_pages + SPAN_PAGES - 1) / SPAN_PAGES;
    }
    uint64_t state_len = STATE_HEAD + v_stride;
    uint64_t first = ((uint64_t(tile.first_state) * push.n_kv_head + kv_head) * TILE + query) * state_len;
    uint64_t stride = push.n_kv_head * TILE * state_len;
    float top = SINKS ? push.sinks.v[head] : -INFINITE;
    for (uint i = 0; i < n_spans; i += BATCH) {
        float tops[BATCH];
        [[unroll]] for (uint j = 0; j < BATCH; j++) {
            tops[j] = at(push.states, first + min(i + j, n_spans - 1) * stride).v[0];
        }
        // The last one counts more than once then, and is not greater than itself.
        [[unroll]] for (uint j = 0; j < BATCH; j++) {
            top = max_(tops[j], top);
        }
    }
    float total = 0.0;
    vec4 sum = vec4(0.0);
    for (uint i = 0; i < n_spans; i += BATCH) {
        vec4 heads[BATCH], values[BATCH];
        [[unroll]] for (uint j = 0; j < BATCH; j++) {
            Floats state = at(push.states, first + min(i + j, n_spans - 1) * stride);
            heads[j] = FourFloats(uint64_t(state)).v[0];
            values[j] = FourFloats(uint64_t(state)).v[STATE_HEAD / 4 + four];
        }
        [[unroll]] for (uint j = 0; j < BATCH; j++) {
            if (i + j < n_spans) {
                float weight = exp_(heads[j].x - top);
                total = heads[j].y * weight + total;
                sum = values[j] * weight + sum;
            }
        }
    }
    if (SINKS) {
        total = total + exp_(push.sinks.v[head] - top);
    }
    uint64_t n_head = push.n_kv_head * push.group;
    Floats result = at(push.result, ((tile.first_row + row) * n_head + head) * push.dv);
    for (uint j = 0; j < 4 && four * 4 + j < push.dv; j++) {
        result.v[four * 4 + j] = div_exact(sum[j], total);
    }
}
