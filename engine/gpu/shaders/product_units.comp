// Products of many rows with quantised weights, on matrix units. A workgroup has COLUMNS rows of weights and ROWS of activations,
// and a subgroup of it some tiles of the results, whose sums stay in its registers. Units multiply whole blocks, or their halves
// where these have scales of their own, in integers. Each invocation adds what they make to the sums that it holds, block after
// block; which sums these are is the device's affair, and asked of it first.
//
// While a block is multiplied, the next one lies in shared memory, and the two behind it are on their way from memory.
#version 460
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#include "common.glsl"
#include "numbers.glsl"
#include "product_work.glsl"
#include "product_rows.glsl"
#include "product_codes.glsl"
#include "product_scales.glsl"
#include "product_parts.glsl"

layout(local_size_x = 256) in;
// What the units multiply: M rows of activations and N of weights, K columns of each; M and N divide 16, and K is 8, 16 or 32.
layout(constant_id = 9) const uint M = 16;
layout(constant_id = 10) const uint N = 16;
layout(constant_id = 11) const uint K = 16;
// Rows of activations: 16, 32 or 64.
layout(constant_id = 13) const uint ROWS = 64;
// Tiles of a subgroup: so many below each other, and so many side by side.
layout(constant_id = 14) const uint HIGH = 2;
layout(constant_id = 15) const uint WIDE = 2;

// Whether units take more columns than have a scale. Between the halves of a row of weights lie zeros then: either half,
// with them, is as long as a block, and the zeros meet the other half's activations.
const bool SPREAD = HALVES && K == 32;
const uint STEPS = (HALVES && !SPREAD ? 16 : 32) / K;

// Sixteen columns of a row are a word, or two half full ones where units take eight. Rows are a word apart, so that they lie in
// different banks.
const uint WORDS = K == 8 ? 2 : 1;
const uint STRIDE = 3 * WORDS;
// Rows of weights: eight panels, or four where words are half full.
const uint COLUMNS = 128 / WORDS;
// Words of a block.
const uint CODES_LENGTH = COLUMNS * STRIDE;
const uint VALUES_LENGTH = ROWS * STRIDE;
shared uvec4 codes[2 * CODES_LENGTH];
shared uvec4 values[2 * VALUES_LENGTH];
// Scales and minima of weights, by part of a block; and of activations d with its sums, and negated sums.
const uint PIECES = HALVES ? 2 : 1;
shared vec2 scales[2 * PIECES * COLUMNS];
shared vec2 ds[2 * PIECES * ROWS];
shared int neg_sums[OFFSET != 0 ? 2 * PIECES * ROWS : 1];

uint me = gl_LocalInvocationID.x;
uint first_panel, first_row;

// Blocks on their way, of a row of weights; or of one of activations, whose values are in the place of codes.
Planes planes[2];
Heads heads[2];

// Reads block `block` of this invocation's row to place `to`: the first COLUMNS have weights, the others activations. Nothing is made
// of it, so that nobody waits for it here. Behind the last block is the last once more.
void take(const uint to, uint block) {
    block = min(block, push.width - 1);
    if (me < COLUMNS) {
        uint p = min(first_panel + me / LANES, (push.rows - 1) / LANES);
        Uints panel = Uints(work.panels + uint64_t(p) * push.panel_words * 4);
        planes[to] = read_planes(panel, block, me % LANES);
        heads[to] = read_heads(panel, block, me % LANES);
    } else if (me - COLUMNS < ROWS) {
        uint r = x_row(min(first_row + me - COLUMNS, work.n_rows - 1));
        ActBlock x = ActBlocks(work.x).v[r * push.width + block];
        [[unroll]] for (uint i = 0; i < 8; i++) {
            planes[to].v[i] = x.q[i / 4][i % 4];
        }
        Row of = row_of(x.d, x.d_sum, x.d_sum_half, x.neg_sum, x.neg_sum_half);
        heads[to].v[0] = floatBitsToUint(of.d);
        [[unroll]] for (uint i = 0; i < 2; i++) {
            heads[to].v[1 + i] = floatBitsToUint(of.d_sum[i]);
            heads[to].v[3 + i] = uint(of.neg_sum[i]);
        }
    }
}

// Puts sixteen columns to word `at`.
void put_codes(uint at, uvec4 word) {
    if (WORDS == 1) {
        codes[at] = word;
    } else {
        codes[at] = uvec4(word.xy, 0, 0);
        codes[at + 1] = uvec4(word.zw, 0, 0);
    }
}

void put_values(uint at, uvec4 word) {
    if (WORDS == 1) {
        values[at] = word;
    } else {
        values[at] = uvec4(word.xy, 0, 0);
        values[at + 1] = uvec4(word.zw, 0, 0);
    }
}

// Puts the block at place `from`, number `block`, to the side of that number.
void put(const uint from, uint block) {
    block = min(block, push.width - 1);
    if (me < COLUMNS) {
        Codes c = codes_of(planes[from], me % LANES);
        Scales s = scales_of(heads[from], block, me % LANES);
        uint start = from * CODES_LENGTH + me * STRIDE;
        put_codes(start, uvec4(c.v[0], c.v[1], c.v[2], c.v[3]));
        if (SPREAD) {
            put_codes(start + WORDS, uvec4(0));
        }
        put_codes(start + (SPREAD ? 2 : 1) * WORDS, uvec4(c.v[4], c.v[5], c.v[6], c.v[7]));
        [[unroll]] for (uint i = 0; i < PIECES; i++) {
            scales[(from * PIECES + i) * COLUMNS + me] = vec2(s.scale[i], s.min[i]);
        }
    } else if (me - COLUMNS < ROWS) {
        uint row = me - COLUMNS, start = from * VALUES_LENGTH + row * STRIDE;
        Planes q = planes[from];
        put_values(start, uvec4(q.v[0], q.v[1], q.v[2], q.v[3]));
        put_values(start + WORDS, uvec4(q.v[4], q.v[5], q.v[6], q.v[7]));
        [[unroll]] for (uint i = 0; i < PIECES; i++) {
            uvec2 d = uvec2(heads[from].v[0], heads[from].v[1 + i]);
            ds[(from * PIECES + i) * ROWS + row] = uintBitsToFloat(d);
            if (OFFSET != 0) {
                neg_sums[(from * PIECES + i) * ROWS + row] = int(heads[from].v[3 + i]);
            }
        }
    }
}

#define Ints_ coopmat<int, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
#define Floats_ coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
#define Values_ coopmat<int8_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA>
#define Codes_ coopmat<int8_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB>

// Where this subgroup's tiles begin.
uint tile_row, tile_column;
// Sums of the tiles, each where the integer is that it is made of: not where the units would have it.
Floats_ sums[HIGH * WIDE];
// What `multiply` made last.
Ints_ ints[HIGH * WIDE];
// Of each number that this invocation holds of a tile: its row times N, and its column.
Ints_ places;

// Asks where the numbers of a tile are.
void find_places() {
    if (me < M * N / 4) {
        codes[me] = 4 * me + uvec4(0, 1, 2, 3);
    }
    barrier();
    coopMatLoad(places, codes, 0, N / 4, gl_CooperativeMatrixLayoutRowMajor);
    barrier();
}

// The integer products of part `piece` of the block at `side`.
void multiply(uint side, uint piece) {
    [[unroll]] for (uint t = 0; t < HIGH * WIDE; t++) {
        ints[t] = Ints_(0);
    }
    uint from = (SPREAD ? 0 : piece) * WORDS;
    [[unroll]] for (uint k = 0; k < STEPS; k++) {
        Codes_ b[WIDE];
        [[unroll]] for (uint j = 0; j < WIDE; j++) {
            uint at = side * CODES_LENGTH + (tile_column + j * N) * STRIDE + piece * WORDS + k;
            coopMatLoad(b[j], codes, at, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
        }
        [[unroll]] for (uint i = 0; i < HIGH; i++) {
            Values_ a;
            uint at = side * VALUES_LENGTH + (tile_row + i * M) * STRIDE + from + k;
            coopMatLoad(a, values, at, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint j = 0; j < WIDE; j++) {
                ints[i * WIDE + j] = coopMatMulAdd(a, b[j], ints[i * WIDE + j]);
            }
        }
    }
}

// Scales and minima of a row of weights at `side`.
Scales scales_at(uint side, uint column) {
    Scales s = Scales(vec2(0.0), vec2(0.0));
    [[unroll]] for (uint i = 0; i < PIECES; i++) {
        vec2 both = scales[(side * PIECES + i) * COLUMNS + column];
        s.scale[i] = both.x;
        s.min[i] = both.y;
    }
    return s;
}

// What a row of activations has beside its values at `side`.
Row row_at(uint side, uint row) {
    Row x = Row(0.0, vec2(0.0), ivec2(0));
    [[unroll]] for (uint i = 0; i < PIECES; i++) {
        if (MINS || i == 0) {
            vec2 both = ds[(side * PIECES + i) * ROWS + row];
            x.d = both.x;
            x.d_sum[i] = both.y;
        }
        if (OFFSET != 0) {
            x.neg_sum[i] = neg_sums[(side * PIECES + i) * ROWS + row];
        }
    }
    return x;
}

// Adds the block at `side` to the sums.
void add_block(uint side) {
    multiply(side, 0);
    Ints_ lows[HALVES ? HIGH * WIDE : 1];
    if (HALVES) {
        [[unroll]] for (uint t = 0; t < HIGH * WIDE; t++) {
            lows[t] = ints[t];
        }
        multiply(side, 1);
    }
    [[unroll]] for (uint n = 0; n < places.length(); n++) {
        uint row = tile_row + uint(places[n]) / N, column = tile_column + uint(places[n]) % N;
        Scales s[WIDE];
        [[unroll]] for (uint j = 0; j < WIDE; j++) {
            s[j] = scales_at(side, column + j * N);
        }
        [[unroll]] for (uint i = 0; i < HIGH; i++) {
            Row x = row_at(side, row + i * M);
            [[unroll]] for (uint j = 0; j < WIDE; j++) {
                const uint t = i * WIDE + j;
                int last = ints[t][n], low = HALVES ? lows[t][n] : last;
                Parts parts = parts_of(low, last, s[j], x);
                [[unroll]] for (uint k = 0; k < PARTS; k++) {
                    sums[t][n] = sums[t][n] + parts.v[k];
                }
            }
        }
    }
}

// Multiplies the block at side `side`, while the one behind it goes to the other side and that two behind begins its way.
void step(const uint side, uint block) {
    take(side, block + 2);
    add_block(side);
    put(1 - side, block + 1);
    barrier();
}

void main() {
    find_work(push.width * ACT_BLOCK_BYTES);
    if (work.n_rows == 0) {
        return;
    }
    uint panels = (push.rows + LANES - 1) / LANES;
    uint tiles = (work.n_rows + ROWS - 1) / ROWS;
    first_panel = work.number / tiles * (COLUMNS / LANES);
    first_row = work.number % tiles * ROWS;
    if (first_panel >= panels) {
        return;
    }
    const uint side_by_side = COLUMNS / (WIDE * N);
    tile_row = gl_SubgroupID / side_by_side * (HIGH * M);
    tile_column = gl_SubgroupID % side_by_side * (WIDE * N);
    // There may be more subgroups than tiles: those do the work of others once more.
    bool mine = tile_row < ROWS;
    tile_row = mine ? tile_row : 0;
    [[unroll]] for (uint t = 0; t < HIGH * WIDE; t++) {
        sums[t] = Floats_(0.0);
    }
    find_places();
    take(0, 0);
    take(1, 1);
    put(0, 0);
    barrier();
    for (uint block = 0; block < push.width; block += 2) {
        step(0, block);
        if (block + 1 < push.width) {
            step(1, block + 1);
        }
    }
    [[unroll]] for (uint t = 0; t < HIGH * WIDE; t++) {
        [[unroll]] for (uint n = 0; n < places.length(); n++) {
            uint row = first_row + tile_row + t / WIDE * M + uint(places[n]) / N;
            uint column = first_panel * LANES + tile_column + t % WIDE * N + uint(places[n]) % N;
            if (mine && row < work.n_rows && column < push.rows) {
                at(Floats(work.y), uint64_t(row) * push.rows).v[column] = sums[t][n] * work.scale;
            }
        }
    }
}
