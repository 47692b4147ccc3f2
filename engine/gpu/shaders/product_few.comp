// Products of up to ROWS rows with quantised weights. A workgroup has one panel; sixteen invocations, a lane each, take some
// blocks at once, so that many reads are on their way. What blocks add to the sums waits in shared memory, and is added there in
// the order of blocks: while one side of that memory is filled, the other is added up.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "product_work.glsl"
#include "product_rows.glsl"
#include "product_codes.glsl"
#include "product_scales.glsl"
#include "product_parts.glsl"

// Invocations: sixteen times SLICES, and at least sixteen times ROWS.
layout(local_size_x_id = 9) in;
layout(constant_id = 10) const uint ROWS = 1;
// Blocks whose parts one side of the memory holds: a multiple of SLICES.
layout(constant_id = 11) const uint SIDE = 16;
// The same number as `local_size_x`, by sixteen.
layout(constant_id = 13) const uint SLICES = 16;

const uint STEP = PARTS * ROWS * LANES;
// Blocks that an invocation takes at once.
const uint AT_ONCE = SIDE / SLICES;
// Parts that are read at once before they are added.
const uint AHEAD = 16;

shared float waiting[2 * SIDE * STEP];

// The blocks that this invocation takes at once, on their way.
Planes planes[AT_ONCE];
Heads heads[AT_ONCE];

// Block `j` of those from `first` on that this invocation takes. Behind the last is the last once more, which nobody adds.
uint block_at(uint first, uint j) {
    return min(first + gl_LocalInvocationID.x / LANES + j * SLICES, push.width - 1);
}

// Reads the blocks from `first` on. Nothing is made of them, so that nobody waits for them here.
void take(Uints panel, uint first, uint lane) {
    [[unroll]] for (uint j = 0; j < AT_ONCE; j++) {
        planes[j] = read_planes(panel, block_at(first, j), lane);
        heads[j] = read_heads(panel, block_at(first, j), lane);
    }
}

// Puts what these blocks add to each row's sum to side `side`.
void put_parts(uint first, uint lane, uint side) {
    [[unroll]] for (uint j = 0; j < AT_ONCE; j++) {
        uint block = block_at(first, j);
        Codes codes = codes_of(planes[j], lane);
        Scales scales = scales_of(heads[j], block, lane);
        uvec4 halves[2] = {
            uvec4(codes.v[0], codes.v[1], codes.v[2], codes.v[3]),
            uvec4(codes.v[4], codes.v[5], codes.v[6], codes.v[7])
        };
        uint to = (side + gl_LocalInvocationID.x / LANES + j * SLICES) * STEP + lane;
        [[unroll]] for (uint t = 0; t < ROWS; t++) {
            ActBlock x = ActBlocks(work.x).v[x_row(min(t, work.n_rows - 1)) * push.width + block];
            Row row = row_of(x.d, x.d_sum, x.d_sum_half, x.neg_sum, x.neg_sum_half);
            Parts parts = block_parts(halves, scales, x.q, row);
            [[unroll]] for (uint i = 0; i < PARTS; i++) {
                waiting[to + (i * ROWS + t) * LANES] = parts.v[i];
            }
        }
    }
}

// `sum` and the parts of `n` blocks at side `side`, in their order.
float add_parts(uint side, uint n, uint me, float sum) {
    const uint apart = ROWS * LANES;
    uint at = side * STEP + me, end = at + n * PARTS * apart;
    for (; at + AHEAD * apart <= end; at += AHEAD * apart) {
        float parts[AHEAD];
        [[unroll]] for (uint i = 0; i < AHEAD; i++) {
            parts[i] = waiting[at + i * apart];
        }
        [[unroll]] for (uint i = 0; i < AHEAD; i++) {
            sum += parts[i];
        }
    }
    for (; at < end; at += apart) {
        sum += waiting[at];
    }
    return sum;
}

void main() {
    find_work(push.width * ACT_BLOCK_BYTES);
    uint p = work.number, me = gl_LocalInvocationID.x;
    if (p * LANES >= push.rows || work.n_rows == 0) {
        return;
    }
    uint lane = me % LANES, slice = me / LANES;
    Uints panel = Uints(work.panels + uint64_t(p) * push.panel_words * 4);
    float sum = 0.0;
    uint side = 0;
    take(panel, 0, lane);
    for (uint first = 0; first < push.width; first += SIDE) {
        put_parts(first, lane, side);
        // The next ones are on their way while these are added up.
        if (first + SIDE < push.width) {
            take(panel, first + SIDE, lane);
        }
        barrier();
        // Those who have a sum here reach the next barrier, and so leave this side, before anyone fills it again.
        if (slice < work.n_rows) {
            sum = add_parts(side, min(SIDE, push.width - first), me, sum);
        }
        side = SIDE - side;
    }
    if (slice < work.n_rows && p * LANES + lane < push.rows) {
        at(Floats(work.y), uint64_t(slice) * push.rows).v[p * LANES + lane] = sum * work.scale;
    }
}
