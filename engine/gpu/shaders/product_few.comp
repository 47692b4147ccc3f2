// Products of up to ROWS rows with quantised weights. A workgroup has one panel; sixteen invocations, a lane each, take
// block after block. What blocks add to the sums waits in shared memory, and is added there in the order of blocks: while
// one side of that memory is filled, the other is added up.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "product_work.glsl"
#include "product_rows.glsl"
#include "product_codes.glsl"
#include "product_scales.glsl"
#include "product_parts.glsl"

// Invocations: sixteen times the blocks that are taken at once, and at least sixteen times ROWS.
layout(local_size_x_id = 9) in;
layout(constant_id = 10) const uint ROWS = 1;
// Blocks whose parts one side of the memory holds.
layout(constant_id = 11) const uint SIDE = 16;

const uint STEP = PARTS * ROWS * LANES;

shared float waiting[2 * SIDE * STEP];

// Puts what block `block` adds to each row's sum to `to`.
void put_parts(Uints panel, uint block, uint lane, uint to) {
    Codes codes = block_codes(panel, block, lane);
    Scales s = block_scales(panel, block, lane);
    uvec4 halves[2] = {
        uvec4(codes.v[0], codes.v[1], codes.v[2], codes.v[3]),
        uvec4(codes.v[4], codes.v[5], codes.v[6], codes.v[7])
    };
    for (uint t = 0; t < work.n_rows; t++) {
        ActBlock x = ActBlocks(work.x).v[x_row(t) * push.width + block];
        Row row = row_of(x.d, x.d_sum, x.d_sum_half, x.neg_sum, x.neg_sum_half);
        Parts parts = block_parts(halves, s, x.q, row);
        [[unroll]] for (uint i = 0; i < PARTS; i++) {
            waiting[to + (i * ROWS + t) * LANES + lane] = parts.v[i];
        }
    }
}

void main() {
    find_work(push.width * ACT_BLOCK_BYTES);
    uint p = work.number, me = gl_LocalInvocationID.x;
    if (p * LANES >= push.rows || work.n_rows == 0) {
        return;
    }
    uint lane = me % LANES, slice = me / LANES, slices = gl_WorkGroupSize.x / LANES;
    Uints panel = Uints(work.panels + uint64_t(p) * push.panel_words * 4);
    float sum = 0.0;
    uint side = 0;
    for (uint first = 0; first < push.width; first += SIDE) {
        uint n = min(SIDE, push.width - first);
        for (uint i = slice; i < n; i += slices) {
            put_parts(panel, first + i, lane, (side + i) * STEP);
        }
        barrier();
        // Those who have a sum here reach the next barrier, and so leave this side, before anyone fills it again.
        if (slice < work.n_rows) {
            for (uint i = 0; i < n * PARTS; i++) {
                sum += waiting[side * STEP + i * ROWS * LANES + me];
            }
        }
        side = SIDE - side;
    }
    if (slice < work.n_rows && p * LANES + lane < push.rows) {
        at(Floats(work.y), uint64_t(slice) * push.rows).v[p * LANES + lane] = sum * work.scale;
    }
}
