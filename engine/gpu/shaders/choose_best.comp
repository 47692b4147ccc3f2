// The places of the greatest scores of lines, ascending; of equal ones the earlier, and zeros are equal, whatever their sign. A
// workgroup has a line. It finds the least score that is among them, eight bits at a time, and how many of its equals are.
#version 460
#include "common.glsl"
#include "ordered.glsl"

layout(local_size_x = 256) in;
// Whether scores are f32; else they are numbers ordered as they are.
layout(constant_id = 0) const bool FLOATS = true;
// Whether places are given as f32.
layout(constant_id = 1) const bool AS_FLOATS = true;
// Whether the second copy of a row has the scores in the place of their places.
layout(constant_id = 2) const bool SCORES = false;

const uint GROUP = 256;
const uint MINUS_0 = 0x80000000u;

// A line of scores.
struct Line {
    // How many there are.
    uint n;
    // The row of the result.
    uint row;
    // What stands behind the places, and numbers that follow it.
    uint behind;
};

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Lines { Line v[]; };

layout(push_constant, scalar) uniform Push {
    Lines lines;
    // `[lines, stride]`.
    Uints scores;
    // `[rows, copies, wanted + n_behind]`.
    Uints result;
    uint n_units;
    uint stride;
    uint wanted;
    uint n_behind;
    uint copies;
} push;

shared uint counts[GROUP];
// The digit of the least score, and how many are wanted of those that have it.
shared uint digit;
shared uint of_digit;
// Of each invocation and those before it: scores above the least, and scores like it.
shared uvec2 before[GROUP];

// Score `i` of the line that starts at `start`, as a number.
uint score(uint start, uint i) {
    uint bits = push.scores.v[start + i];
    return FLOATS ? ordered(uintBitsToFloat(bits == MINUS_0 ? 0 : bits)) : bits;
}

// Counts the scores of each digit at `shift`, of those that have `prefix` under `mask`, and finds the digit of the one that
// is number `wanted` from the greatest on.
void find_digit(uint start, uint n, uint shift, uint prefix, uint mask, uint wanted) {
    uint me = gl_LocalInvocationID.x;
    counts[me] = 0;
    barrier();
    for (uint i = me; i < n; i += GROUP) {
        uint value = score(start, i);
        if ((value & mask) == prefix) {
            atomicAdd(counts[(value >> shift) & 255], 1);
        }
    }
    barrier();
    if (me == 0) {
        uint d = 255;
        while (d > 0 && counts[d] < wanted) {
            wanted -= counts[d];
            d -= 1;
        }
        digit = d;
        of_digit = wanted;
    }
    barrier();
}

// Writes number `i` of a row's results, to each copy of the row; `scored`: the bits of its score.
void put(uint row, uint i, uint value, uint scored) {
    uint width = push.wanted + push.n_behind;
    for (uint copy = 0; copy < push.copies; copy++) {
        uint bits = AS_FLOATS ? floatBitsToUint(float(value)) : value;
        bits = SCORES && copy == 1 ? scored : bits;
        push.result.v[(row * push.copies + copy) * width + i] = bits;
    }
}

void main() {
    uint unit = line();
    if (unit >= push.n_units) {
        return;
    }
    uint me = gl_LocalInvocationID.x;
    Line of = push.lines.v[unit];
    uint start = unit * push.stride;
    uint least = 0, mask = 0, equals = push.wanted;
    for (int shift = 24; shift >= 0; shift -= 8) {
        find_digit(start, of.n, uint(shift), least, mask, equals);
        least |= digit << shift;
        mask |= 255u << shift;
        equals = of_digit;
    }
    // Each invocation has neighbouring scores.
    uint each = (of.n + GROUP - 1) / GROUP;
    uint first = min(me * each, of.n), end = min(first + each, of.n);
    uvec2 mine = uvec2(0);
    for (uint i = first; i < end; i++) {
        uint value = score(start, i);
        mine += uvec2(value > least ? 1 : 0, value == least ? 1 : 0);
    }
    before[me] = mine;
    barrier();
    for (uint d = 1; d < GROUP; d *= 2) {
        uvec2 further = me >= d ? before[me - d] : uvec2(0);
        barrier();
        before[me] += further;
        barrier();
    }
    uvec2 seen = before[me] - mine;
    for (uint i = first; i < end; i++) {
        uint value = score(start, i);
        if (value > least || (value == least && seen.y < equals)) {
            put(of.row, seen.x + min(seen.y, equals), i, push.scores.v[start + i]);
        }
        seen += uvec2(value > least ? 1 : 0, value == least ? 1 : 0);
    }
    if (me < push.n_behind) {
        put(of.row, push.wanted + me, of.behind + me, 0);
    }
}
