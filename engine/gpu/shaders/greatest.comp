// The greatest value of each row, as a number ordered as it is, and its first place. A workgroup has a piece of a row; a second
// run finds the greatest of what the first found of the pieces. What is not a number, and what is infinite, is greater than all.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "ordered.glsl"

layout(local_size_x = 256) in;
// Whether values are what a run before found.
layout(constant_id = 0) const bool PAIRS = false;

const uint GROUP = 256;

layout(push_constant, scalar) uniform Push {
    // `[n_rows, d]`, of one word or two.
    Uints x;
    // `[n_rows, pieces, 2]`.
    Uints result;
    uint n_units;
    uint d;
    uint pieces;
    uint piece;
} push;

shared uint keys[GROUP];
shared uint places[GROUP];

bool is_before(uint key, uint place, uint other_key, uint other_place) {
    return key > other_key || (key == other_key && place < other_place);
}

void main() {
    uint unit = line(), me = gl_LocalInvocationID.x;
    if (unit >= push.n_units) {
        return;
    }
    uint start = unit % push.pieces * push.piece;
    uint end = min(start + push.piece, push.d);
    uint64_t before = uint64_t(unit / push.pieces) * push.d * (PAIRS ? 8 : 4);
    Uints x = Uints(uint64_t(push.x) + before);
    uint key = 0, place = 0xffffffffu;
    for (uint i = start + me; i < end; i += GROUP) {
        uint other_key, other_place;
        if (PAIRS) {
            other_key = x.v[2 * i];
            other_place = x.v[2 * i + 1];
        } else {
            float value = uintBitsToFloat(x.v[i]);
            // Zeros are equal, whatever their sign.
            other_key = value < INFINITE ? ordered(value == 0.0 ? 0.0 : value) : 0xffffffffu;
            other_place = i;
        }
        if (is_before(other_key, other_place, key, place)) {
            key = other_key;
            place = other_place;
        }
    }
    keys[me] = key;
    places[me] = place;
    for (uint step = GROUP / 2; step > 0; step /= 2) {
        barrier();
        if (me < step && is_before(keys[me + step], places[me + step], keys[me], places[me])) {
            keys[me] = keys[me + step];
            places[me] = places[me + step];
        }
    }
    if (me == 0) {
        push.result.v[2 * unit] = keys[0];
        push.result.v[2 * unit + 1] = places[0];
    }
}
