// Products of up to ROWS rows with float weights. A workgroup has one panel; sixteen invocations, a lane each, take a run
// of columns after the other. The sums of runs wait in shared memory, and are added there in their order: while one side
// of that memory is filled, the other is added up.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "product_work.glsl"
#include "product_floats.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 1) const uint ROWS = 1;

// Runs that are taken at once.
const uint SIDE = 16;
const uint STEP = ROWS * LANES;
// Columns that are read at once, so that many reads are on their way.
const uint AT_ONCE = ROWS > 4 ? 8 : 16;

shared float waiting[2 * SIDE * STEP];

// Puts each row's sum over the columns from `first` on to `to`.
void put_run(uint64_t panel, uint first, uint lane, uint to) {
    uint end = min(first + RUN, push.width);
    uint starts[ROWS];
    float sums[ROWS];
    [[unroll]] for (uint t = 0; t < ROWS; t++) {
        sums[t] = 0.0;
        starts[t] = x_row(min(t, work.n_rows - 1)) * push.width;
    }
    uint k = first;
    for (; k + AT_ONCE <= end; k += AT_ONCE) {
        float w[AT_ONCE];
        [[unroll]] for (uint j = 0; j < AT_ONCE; j++) {
            w[j] = weight(panel, (k + j) * LANES + lane);
        }
        [[unroll]] for (uint t = 0; t < ROWS; t++) {
            float x[AT_ONCE];
            [[unroll]] for (uint j = 0; j < AT_ONCE; j++) {
                x[j] = Floats(work.x).v[starts[t] + k + j];
            }
            [[unroll]] for (uint j = 0; j < AT_ONCE; j++) {
                sums[t] += w[j] * x[j];
            }
        }
    }
    for (; k < end; k++) {
        float w = weight(panel, k * LANES + lane);
        [[unroll]] for (uint t = 0; t < ROWS; t++) {
            sums[t] += w * Floats(work.x).v[starts[t] + k];
        }
    }
    [[unroll]] for (uint t = 0; t < ROWS; t++) {
        waiting[to + t * LANES] = sums[t];
    }
}

void main() {
    find_work(push.width * 4);
    uint p = work.number, me = gl_LocalInvocationID.x;
    if (p * LANES >= push.rows || work.n_rows == 0) {
        return;
    }
    uint lane = me % LANES, slice = me / LANES;
    uint64_t panel = work.panels + uint64_t(p) * push.panel_words * 4;
    float total = 0.0;
    uint side = 0;
    uint runs = (push.width + RUN - 1) / RUN;
    for (uint first = 0; first < runs; first += SIDE) {
        uint n = min(SIDE, runs - first);
        if (slice < n) {
            put_run(panel, (first + slice) * RUN, lane, (side + slice) * STEP + lane);
        }
        barrier();
        // Those who have a total here reach the next barrier, and so leave this side, before anyone fills it again.
        if (slice < work.n_rows) {
            for (uint i = 0; i < n; i++) {
                total += waiting[(side + i) * STEP + me];
            }
        }
        side = SIDE - side;
    }
    if (slice < work.n_rows && p * LANES + lane < push.rows) {
        at(Floats(work.y), uint64_t(slice) * push.rows).v[p * LANES + lane] = total * work.scale;
    }
}
