// Products of many rows with float weights. A workgroup has TILE panels and sixteen times TILE rows of activations; it
// takes some columns of both into shared memory at a time, and an invocation adds what they make to TILE by TILE sums,
// column after column.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "product_work.glsl"
#include "product_floats.glsl"

layout(local_size_x = 256) in;
// 1, 2 or 4.
layout(constant_id = 1) const uint TILE = 4;

const uint SIDE = 16 * TILE;
// Columns taken at a time; a run has whole times as many.
const uint DEPTH = 32;

shared float weights[DEPTH][SIDE];
// Rows of odd length, so that neighbours in a column lie in different banks.
shared float rows[SIDE][DEPTH + 1];

// Takes the columns from `first` on.
void take(uint first_panel, uint first_row, uint first, uint depths, uint me) {
    [[unroll]] for (uint a = 0; a < TILE; a++) {
        uint p = min(first_panel + a, (push.rows - 1) / LANES);
        uint64_t panel = work.panels + uint64_t(p) * push.panel_words * 4;
        for (uint i = me; i < depths * LANES; i += 256) {
            weights[i / LANES][a * LANES + i % LANES] = weight(panel, first * LANES + i);
        }
    }
    for (uint i = me; i < SIDE * DEPTH; i += 256) {
        uint row = x_row(min(first_row + i / DEPTH, work.n_rows - 1));
        if (i % DEPTH < depths) {
            Floats x = at(Floats(work.x), uint64_t(row) * push.width);
            rows[i / DEPTH][i % DEPTH] = x.v[first + i % DEPTH];
        }
    }
}

void main() {
    find_work(push.width * 4);
    if (work.n_rows == 0) {
        return;
    }
    uint panels = (push.rows + LANES - 1) / LANES;
    uint tiles = (work.n_rows + SIDE - 1) / SIDE;
    uint first_panel = work.number / tiles * TILE, first_row = work.number % tiles * SIDE;
    if (first_panel >= panels) {
        return;
    }
    uint me = gl_LocalInvocationID.x, i = me % 16, j = me / 16;
    float sums[TILE][TILE], totals[TILE][TILE];
    [[unroll]] for (uint a = 0; a < TILE; a++) {
        [[unroll]] for (uint b = 0; b < TILE; b++) {
            sums[a][b] = 0.0;
            totals[a][b] = 0.0;
        }
    }
    for (uint first = 0; first < push.width; first += DEPTH) {
        uint depths = min(DEPTH, push.width - first);
        take(first_panel, first_row, first, depths, me);
        barrier();
        for (uint k = 0; k < depths; k++) {
            [[unroll]] for (uint b = 0; b < TILE; b++) {
                float x = rows[j + 16 * b][k];
                [[unroll]] for (uint a = 0; a < TILE; a++) {
                    sums[a][b] += weights[k][i + 16 * a] * x;
                }
            }
        }
        barrier();
        if ((first + DEPTH) % RUN == 0 || first + DEPTH >= push.width) {
            [[unroll]] for (uint a = 0; a < TILE; a++) {
                [[unroll]] for (uint b = 0; b < TILE; b++) {
                    totals[a][b] += sums[a][b];
                    sums[a][b] = 0.0;
                }
            }
        }
    }
    [[unroll]] for (uint b = 0; b < TILE; b++) {
        uint row = first_row + j + 16 * b;
        if (row < work.n_rows) {
            Floats y = at(Floats(work.y), uint64_t(row) * push.rows);
            [[unroll]] for (uint a = 0; a < TILE; a++) {
                uint column = first_panel * LANES + i + 16 * a;
                if (column < push.rows) {
                    y.v[column] = totals[a][b] * work.scale;
                }
            }
        }
    }
}
