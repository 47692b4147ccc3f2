// RWKV-7's time mixing, `cpu/scan/wkv7.rs` of the engine: `known` is the state along kappa, then S = S w + (-known kappa_a + v
// k) and y = Σ r S, each down the keys. An invocation has a value of one head of a part, with all keys: a row has to know
// the whole column before it changes any of it.
#version 460
#include "common.glsl"
#include "scan.glsl"

layout(local_size_x = 64) in;
// Keys and values of a head, a multiple of 16.
layout(constant_id = 0) const uint D = 64;

// Keys that an invocation fetches for a row.
const uint FETCHED = (D + 63) / 64;

layout(push_constant, scalar) uniform Push {
    Parts parts;
    Floats states;
    Floats r;
    Floats w;
    Floats k;
    Floats v;
    Floats kappa;
    Floats kappa_a;
    Floats result;
    uint n_units;
    uint n_heads;
} push;

// w, k, kappa_a and r of the keys, of this row and the next.
shared vec4 keys[2][D];
// kappa of the row behind each of them: what it knows is summed while the state changes.
shared float kappas[2][D];

// The column of the state.
float values[D];
// The next row's keys and the kappa behind them, on their way to shared memory.
vec4 fetched[FETCHED];
float fetched_kappa[FETCHED];

// Fetches row `row` of `n_rows`, the head of which starts at `from`.
void fetch(uint from, uint row, uint n_rows) {
    [[unroll]] for (uint f = 0; f < FETCHED; f++) {
        uint j = f * 64 + gl_LocalInvocationID.x;
        uint i = from + j;
        if (j < D && row < n_rows) {
            fetched[f] = vec4(push.w.v[i], push.k.v[i], push.kappa_a.v[i], push.r.v[i]);
        }
        if (j < D && row + 1 < n_rows) {
            fetched_kappa[f] = push.kappa.v[i + push.n_heads * D];
        }
    }
}

void put(uint row) {
    [[unroll]] for (uint f = 0; f < FETCHED; f++) {
        uint j = f * 64 + gl_LocalInvocationID.x;
        if (j < D) {
            keys[row % 2][j] = fetched[f];
            kappas[row % 2][j] = fetched_kappa[f];
        }
    }
}

// A row over the column: its value, and what it knows. Gives its output, and what the next row knows.
vec2 walk(uint row, float v, float known) {
    uint place = row % 2;
    float forget = 0.0 - known;
    float y = 0.0;
    known = 0.0;
    [[unroll]] for (uint j = 0; j < D; j++) {
        vec4 key = keys[place][j];
        float learnt = forget * key.z + v * key.y;
        values[j] = values[j] * key.x + learnt;
        y = values[j] * key.w + y;
        known = values[j] * kappas[place][j] + known;
    }
    return vec2(y, known);
}

// Rids the column of subnormal numbers behind a row. Gives what the next row knows then.
float flush(uint row) {
    float known = 0.0;
    [[unroll]] for (uint j = 0; j < D; j++) {
        values[j] = without_subnormals(values[j]);
        known = values[j] * kappas[row % 2][j] + known;
    }
    return known;
}

void main() {
    uint unit = line();
    if (unit >= push.n_units) {
        return;
    }
    const uint tiles = (D + 63) / 64;
    uint head = unit / tiles % push.n_heads;
    Part part = part_of(push.parts, unit / tiles / push.n_heads);
    uint column = unit % tiles * 64 + gl_LocalInvocationID.x;
    bool used = column < D;

    // Of the part's first row: the head, and the column in it.
    uint width = push.n_heads * D;
    uint head_at = part.first_row * width + head * D;
    uint column_at = head_at + column;
    uint start = head * D * D + column / LANES * LANES * D + column % LANES;
    Floats state = at(push.states, slot_start(part.from, width * D) + start);

    float known = 0.0;
    [[unroll]] for (uint j = 0; j < D; j++) {
        values[j] = used ? state.v[j * LANES] : 0.0;
        known = values[j] * push.kappa.v[head_at + j] + known;
    }
    fetch(head_at, 0, part.n_rows);
    put(0);
    float v_next = used ? push.v.v[column_at] : 0.0;
    barrier();

    for (uint row = 0; row < part.n_rows; row++) {
        // The next row is fetched while this one is computed.
        uint ahead = row + 1;
        float v_now = v_next;
        fetch(head_at + ahead * width, ahead, part.n_rows);
        if (used && ahead < part.n_rows) {
            v_next = push.v.v[column_at + ahead * width];
        }
        vec2 sums = walk(row, v_now, known);
        known = sums.y;
        if (used) {
            push.result.v[column_at + row * width] = sums.x;
        }
        if (flushes(part, row)) {
            known = flush(row);
        }
        put(ahead);
        barrier();
    }

    state = at(push.states, slot_start(part.slot, width * D) + start);
    [[unroll]] for (uint j = 0; j < D; j++) {
        if (used) {
            state.v[j * LANES] = values[j];
        }
    }
}
