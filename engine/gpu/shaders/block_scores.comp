// Scores of blocks for queries: the greatest product of a query and a key of a block's positions that the row sees, each in
// the order of its elements, as numbers that are ordered as the products are. A workgroup has some queries and a page.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "kv_page.glsl"
#include "index_keys.glsl"
#include "ordered.glsl"

layout(local_size_x = 256) in;

const uint QUERIES = 16;
// Positions of an invocation, which has one query.
const uint MINE = KV_PAGE * QUERIES / 256;
// Elements that are in shared memory at once.
const uint CHUNK = 32;

// Neighbouring queries of a part: query `i` of a part is head `i % n_head` of row `i / n_head`.
struct Tile {
    // Number of its first query among all, and in its part.
    uint first;
    uint in_part;
    uint n;
    // Position of the part's first row.
    uint first_pos;
    // Where the list of pages has its sequence's.
    uint pages;
    // Line of scores of its first query.
    uint line;
};

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Tiles { Tile v[]; };

layout(push_constant, scalar) uniform Push {
    Tiles tiles;
    Uints pages;
    // Keys of the index in the first page.
    uint64_t pool;
    Floats q;
    // `[lines, stride]`, zeros at first.
    Uints scores;
    uint page_bytes;
    uint n_units;
    uint pages_per_tile;
    uint stride;
    uint n_head;
    uint dim;
    // Elements of a key in its page.
    uint width;
    uint positions;
} push;

shared float keys[CHUNK][KV_PAGE];
shared float queries[CHUNK][QUERIES];

// Brings elements from `start` on of a page's keys and of a tile's queries.
void load(uint start, uint64_t page, Tile tile) {
    for (uint i = gl_LocalInvocationID.x; i < CHUNK * KV_PAGE; i += 256) {
        uint j = i / KV_PAGE, pos = i % KV_PAGE;
        keys[j][pos] = start + j < push.dim ? key_element(page, push.width, pos, start + j) : 0.0;
    }
    for (uint i = gl_LocalInvocationID.x; i < CHUNK * QUERIES; i += 256) {
        uint j = i % CHUNK, query = i / CHUNK;
        bool there = query < tile.n && start + j < push.dim;
        Floats q = at(push.q, uint64_t(tile.first + query) * push.dim);
        queries[j][query] = there ? q.v[start + j] : 0.0;
    }
}

// 0 and -0 are the same, and what is no number is the least.
uint rank(float product) {
    float least = 0.0 - INFINITE;
    return ordered((product > least ? product : least) + 0.0);
}

void raise(uint line_of, uint block, uint score) {
    if (score != 0) {
        atomicMax(push.scores.v[line_of * push.stride + block], score);
    }
}

void main() {
    uint unit = line();
    if (unit >= push.n_units) {
        return;
    }
    Tile tile = push.tiles.v[unit / push.pages_per_tile];
    uint first = unit % push.pages_per_tile * KV_PAGE;
    if (first > tile.first_pos + (tile.in_part + tile.n - 1) / push.n_head) {
        return;
    }
    uint64_t page = push.pages.v[tile.pages + first / KV_PAGE];
    page = push.pool + page * push.page_bytes;
    uint query = gl_LocalInvocationID.x % QUERIES;
    uint mine = gl_LocalInvocationID.x / QUERIES * MINE;
    float sums[MINE];
    [[unroll]] for (uint p = 0; p < MINE; p++) {
        sums[p] = 0.0;
    }
    for (uint start = 0; start < push.dim; start += CHUNK) {
        load(start, page, tile);
        barrier();
        for (uint j = 0; j < min(CHUNK, push.dim - start); j++) {
            float q = queries[j][query];
            [[unroll]] for (uint p = 0; p < MINE; p++) {
                sums[p] = keys[j][mine + p] * q + sums[p];
            }
        }
        barrier();
    }
    if (query >= tile.n) {
        return;
    }
    uint row_pos = tile.first_pos + (tile.in_part + query) / push.n_head;
    uint line_of = tile.line + query;
    // Neighbours are mostly of one block, whose score they raise together.
    uint block = (first + mine) / push.positions, best = 0;
    [[unroll]] for (uint p = 0; p < MINE; p++) {
        uint pos = first + mine + p;
        if (pos / push.positions != block) {
            raise(line_of, block, best);
            block = pos / push.positions;
            best = 0;
        }
        best = pos <= row_pos ? max(best, rank(sums[p])) : best;
    }
    raise(line_of, block, best);
}
