// Copies the keys of the positions that rows attend to to pages of their own, side by side in the order of positions. An
// invocation copies 16 bytes of a key, and the scale with them where there is one.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "kv_page.glsl"

layout(local_size_x = 64) in;

layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Lines { uvec4 v[]; };

// A row whose keys are copied.
struct Row {
    uint row;
    uint pos;
    // Where the list of pages has its sequence's.
    uint pages;
};

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Rows { Row v[]; };

layout(push_constant, scalar) uniform Push {
    Rows rows;
    Uints pages;
    // `[rows, per_row]`: pools, ascending, as whole numbers.
    Floats pools;
    // The first page, and the first of the rows' own.
    uint64_t from;
    uint64_t to;
    uint from_bytes;
    uint to_bytes;
    uint n_rows;
    // Pages of a row's own, and places of it that may be in use.
    uint row_pages;
    uint n_places;
    // Positions of a pool.
    uint positions;
    uint per_row;
    uint dk;
} push;

const uint LINE_BYTES = 16;
const uint LINE_ELEMS = LINE_BYTES / CODE_BYTES;

void main() {
    uint width = whole_lanes(push.dk), of_key = width / LINE_ELEMS;
    uint unit = item() % of_key, i = item() / of_key;
    uint place = i % push.n_places, number = i / push.n_places;
    if (number >= push.n_rows) {
        return;
    }
    Row row = push.rows.v[number];
    uint in_pools = push.per_row * push.positions, pos;
    if (place < in_pools) {
        Floats pools = at(push.pools, uint64_t(row.row) * push.per_row);
        pos = uint(pools.v[place / push.positions]) * push.positions + place % push.positions;
    } else {
        pos = (row.pos + 1) / push.positions * push.positions + place - in_pools;
        if (pos > row.pos) {
            return;
        }
    }
    // Nothing is read behind the row, whatever the list of pools has.
    pos = min(pos, row.pos);
    uint64_t from = push.from + uint64_t(push.pages.v[row.pages + pos / KV_PAGE]) * push.from_bytes;
    uint64_t to = push.to + uint64_t(number * push.row_pages + place / KV_PAGE) * push.to_bytes;
    uint from_at = pos % KV_PAGE, to_at = place % KV_PAGE;
    Lines(to).v[to_at * of_key + unit] = Lines(from).v[from_at * of_key + unit];
    if (TYPE == Q8_0 && unit * LINE_ELEMS % SCALE_ELEMS == 0) {
        uint scale = unit * LINE_ELEMS / SCALE_ELEMS * KV_PAGE;
        Halves(to + codes_of(width)).v[scale + to_at] = Halves(from + codes_of(width)).v[scale + from_at];
    }
}
