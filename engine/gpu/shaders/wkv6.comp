// RWKV-6's time mixing, `cpu/scan/wkv6.rs` of the engine: S = S w + v k for each key, and y = Σ r S down the keys. A workgroup
// has some values of one head of a part.
#version 460
#include "common.glsl"
#include "scan.glsl"

layout(local_size_x = 128) in;
// Keys and values of a head, a multiple of 16.
layout(constant_id = 0) const uint D = 64;
// Whether `r` reads the state before a row, with some of the row's own key; else it reads the state behind it.
layout(constant_id = 1) const uint OWN = 1;

// Keys that a segment has, and those that an invocation fetches for a row.
const uint SEGMENT = D / SEGMENTS;
const uint FETCHED = (D + 127) / 128;

layout(push_constant, scalar) uniform Push {
    Parts parts;
    Floats states;
    Floats r;
    Floats w;
    Floats k;
    Floats v;
    Floats own;
    Floats result;
    uint n_units;
    uint n_heads;
} push;

// r, w, k and own share of the keys, of the rows at hand.
shared vec4 keys[RING][D];
// The row's value and its sum for the next segment, of this turn and the one before.
shared vec2 carry[2][SEGMENTS][COLUMNS];

// The segment's values of the state, and the key where it starts.
float values[SEGMENT];
uint first;
// Keys of the next row, on their way to shared memory.
vec4 fetched[FETCHED];

// Fetches the keys of a row of the head, which starts at `from`; their own shares are there already.
void fetch(uint from) {
    [[unroll]] for (uint f = 0; f < FETCHED; f++) {
        uint i = f * 128 + gl_LocalInvocationID.x;
        if (i < D) {
            fetched[f].xyz = vec3(push.r.v[from + i], push.w.v[from + i], push.k.v[from + i]);
        }
    }
}

void fetch_own(uint head) {
    [[unroll]] for (uint f = 0; f < FETCHED; f++) {
        uint i = f * 128 + gl_LocalInvocationID.x;
        fetched[f].w = OWN != 0 && i < D ? push.own.v[head * D + i] : 0.0;
    }
}

void put(uint row) {
    [[unroll]] for (uint f = 0; f < FETCHED; f++) {
        uint i = f * 128 + gl_LocalInvocationID.x;
        if (i < D) {
            keys[row % RING][i] = fetched[f];
        }
    }
}

// A row over the segment: its value, and the sum up to the segment, which goes on.
float walk(uint row, float v, float y) {
    uint place = row % RING;
    [[unroll]] for (uint i = 0; i < SEGMENT; i++) {
        vec4 key = keys[place][first + i];
        float old = values[i];
        float learnt = v * key.z;
        values[i] = old * key.y + learnt;
        float seen = OWN != 0 ? learnt * key.w + old : values[i];
        y = seen * key.x + y;
    }
    return y;
}

void main() {
    uint unit = line();
    if (unit >= push.n_units) {
        return;
    }
    const uint tiles = (D + COLUMNS - 1) / COLUMNS;
    uint head = unit / tiles % push.n_heads;
    Part part = part_of(push.parts, unit / tiles / push.n_heads);
    uint lane = gl_LocalInvocationID.x % COLUMNS;
    uint segment = gl_LocalInvocationID.x / COLUMNS;
    uint column = unit % tiles * COLUMNS + lane;
    bool used = column < D;
    first = segment * SEGMENT;

    // Of the part's first row: the head, and the column in it.
    uint width = push.n_heads * D;
    uint head_at = part.first_row * width + head * D;
    uint column_at = head_at + column;
    uint start = head * D * D + column / LANES * LANES * D + column % LANES;
    Floats state = at(push.states, slot_start(part.from, width * D) + start);

    [[unroll]] for (uint i = 0; i < SEGMENT; i++) {
        values[i] = used ? state.v[(first + i) * LANES] : 0.0;
    }
    fetch_own(head);
    fetch(head_at);
    put(0);
    float v_next = used && segment == 0 ? push.v.v[column_at] : 0.0;
    barrier();

    for (uint turn = 0; turn < part.n_rows + SEGMENTS - 1; turn++) {
        // The next row is fetched while this one is computed.
        uint ahead = turn + 1;
        float v_now = v_next;
        if (ahead < part.n_rows) {
            fetch(head_at + ahead * width);
            if (used && segment == 0) {
                v_next = push.v.v[column_at + ahead * width];
            }
        }
        uint row = turn - segment;
        if (turn >= segment && row < part.n_rows) {
            vec2 sums = segment > 0 ? carry[ahead % 2][segment - 1][lane] : vec2(v_now, 0.0);
            sums.y = walk(row, sums.x, sums.y);
            carry[turn % 2][segment][lane] = sums;
            if (used && segment == SEGMENTS - 1) {
                push.result.v[column_at + row * width] = sums.y;
            }
            if (flushes(part, row)) {
                [[unroll]] for (uint i = 0; i < SEGMENT; i++) {
                    values[i] = without_subnormals(values[i]);
                }
            }
        }
        if (ahead < part.n_rows) {
            put(ahead);
        }
        barrier();
    }

    state = at(push.states, slot_start(part.slot, width * D) + start);
    [[unroll]] for (uint i = 0; i < SEGMENT; i++) {
        if (used) {
            state.v[(first + i) * LANES] = values[i];
        }
    }
}
