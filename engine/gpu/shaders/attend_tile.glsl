// Tiles of attention: queries of one head of keys and values that share the reading of pages, and what each of them sees.

layout(constant_id = 2) const uint TILE = 16;
layout(constant_id = 3) const uint VARIANT = 0;

// Bits of VARIANT. The lowest two are the kind of window.
const uint WINDOW = VARIANT & 3;
const uint SLIDING = 1;
const uint CHUNK = 2;
const uint AROUND = 3;
const bool SOFTCAP = (VARIANT & 4) != 0;
const bool SLOPES = (VARIANT & 8) != 0;
const bool BIASES = (VARIANT & 16) != 0;
const bool BOTH_WAYS = (VARIANT & 32) != 0;
const bool SINKS = (VARIANT & 64) != 0;
// The tile reads the pages of a list, one for each head of keys and values, and no others.
const bool LISTED = (VARIANT & 128) != 0;

// Pages whose softmax is accumulated in one go.
const uint SPAN_PAGES = 16;
const uint SPAN_POSITIONS = SPAN_PAGES * KV_PAGE;
// Values before the weighted sum in a state: the greatest score, the sum of weights, padding.
const uint STATE_HEAD = 4;

// Some queries of a part: query `i` of a head is head `i % group` of row `i / group`.
struct Tile {
    // The part's first row, among all and in its sequence, and how many it has.
    uint first_row;
    uint first_pos;
    uint n_rows;
    // Where the list of pages has the sequence's page 0, or would have it.
    uint pages;
    uint first_query;
    uint n_queries;
    // The first span that any of its queries sees, and how many there are from there.
    uint first_span;
    uint n_spans;
    // Number of its first span among all.
    uint first_state;
    // Number of its first list, where it has such.
    uint first_list;
};

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Tiles { Tile v[]; };

// The list of a tile's pages for a head: how many there are, and of each its number and the positions that are read of it, a
// bit for each. Lists have room for `most` pages.
Uints page_list(Uints lists, Tile tile, uint kv_head, uint most) {
    return Uints(uint64_t(lists) + uint64_t(tile.first_list + kv_head) * (1 + 3 * most) * 4);
}

// The first position that a row at `pos` sees.
uint first_visible(uint pos, uint window) {
    if (WINDOW == SLIDING) {
        return pos + 1 > window ? pos + 1 - window : 0;
    } else if (WINDOW == CHUNK) {
        return pos / max(window, 1u) * max(window, 1u);
    } else if (WINDOW == AROUND) {
        return pos > window / 2 ? pos - window / 2 : 0;
    }
    return 0;
}

// Behind the last position that row `row` of the tile's part sees.
uint end_visible(Tile tile, uint row, uint window) {
    uint pos = tile.first_pos + row;
    uint end = BOTH_WAYS ? tile.first_pos + tile.n_rows : pos + 1;
    return WINDOW == AROUND ? min(end, pos + window / 2 + 1) : end;
}
