// Lists the pages that the blocks of a row's head lie in, with the positions that are read of each. An invocation makes one
// list: it walks the blocks, which ascend, as far as the row sees.
#version 460
#include "common.glsl"

layout(local_size_x = 64) in;

const uint KV_PAGE = 64;
const uint NO_BLOCK = 0xffffffffu;

layout(push_constant, scalar) uniform Push {
    // Of each row its number, and behind the last position that it sees.
    Uints rows;
    // `[rows, n_kv_head, per_row]`.
    Uints blocks;
    // `[lists, 1 + 3 * most]`, see `attend_tile.glsl`.
    Uints lists;
    uint n_lists;
    uint n_kv_head;
    uint per_row;
    uint positions;
    uint most;
} push;

// Bits `first..end` of word `word` of a page's positions.
uint bits(uint first, uint end, uint word) {
    uint from = clamp(first, word * 32, word * 32 + 32) - word * 32;
    uint to = clamp(end, word * 32, word * 32 + 32) - word * 32;
    return from < to ? (0xffffffffu >> (32 - (to - from))) << from : 0;
}

void main() {
    uint i = item();
    if (i >= push.n_lists) {
        return;
    }
    uint row = push.rows.v[2 * (i / push.n_kv_head)], end = push.rows.v[2 * (i / push.n_kv_head) + 1];
    uint64_t first = (uint64_t(row) * push.n_kv_head + i % push.n_kv_head) * push.per_row;
    Uints blocks = Uints(uint64_t(push.blocks) + first * 4);
    Uints list = Uints(uint64_t(push.lists) + uint64_t(i) * (1 + 3 * push.most) * 4);
    // A row sees no more pages, and has no room for the sums of more.
    uint room = min(push.most, (end + KV_PAGE - 1) / KV_PAGE);
    uint n = 0, last = 0;
    for (uint b = 0; b < push.per_row; b++) {
        uint block = blocks.v[b];
        // Nothing is read behind the row, whatever the list of blocks has.
        if (block == NO_BLOCK || block >= (end + push.positions - 1) / push.positions) {
            break;
        }
        uint start = block * push.positions, stop = min(start + push.positions, end);
        for (uint page = start / KV_PAGE; page * KV_PAGE < stop; page++) {
            if (n == 0 || page != last) {
                if (n == room) {
                    break;
                }
                list.v[1 + 3 * n] = page;
                list.v[2 + 3 * n] = 0;
                list.v[3 + 3 * n] = 0;
                n += 1;
                last = page;
            }
            uint from = max(start, page * KV_PAGE) - page * KV_PAGE;
            uint to = min(stop - page * KV_PAGE, KV_PAGE);
            list.v[3 * n - 1] |= bits(from, to, 0);
            list.v[3 * n] |= bits(from, to, 1);
        }
    }
    list.v[0] = n;
}
