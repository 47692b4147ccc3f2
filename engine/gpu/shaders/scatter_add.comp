// Adds weighted rows to each row of the result: those of its pairs, in their order.
#version 460
#include "common.glsl"

layout(local_size_x = 256) in;

layout(push_constant, scalar) uniform Push {
    Floats x;
    Uints pairs;
    Floats weights;
    Floats result;
    uint n;
    uint d;
    uint used;
    uint last;
} push;

void main() {
    uint i = item();
    if (i >= push.n) {
        return;
    }
    uint row = i / push.d, column = i % push.d;
    float sum = push.result.v[i];
    for (uint k = row * push.used; k < (row + 1) * push.used; k++) {
        uint pair = min(push.pairs.v[k], push.last);
        sum = at(push.x, uint64_t(pair) * push.d).v[column] * push.weights.v[k] + sum;
    }
    push.result.v[i] = sum;
}
