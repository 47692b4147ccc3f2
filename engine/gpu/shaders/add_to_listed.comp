// Adds rows times a factor to the rows of the result that a list names, each of which it names once.
#version 460
#include "common.glsl"

layout(local_size_x = 256) in;

layout(push_constant, scalar) uniform Push {
    Floats x;
    Uints list;
    Floats result;
    uint n;
    uint d;
    // Number of the result's last row.
    uint last;
    float factor;
} push;

void main() {
    uint i = item();
    if (i >= push.n) {
        return;
    }
    uint row = min(push.list.v[i / push.d], push.last);
    Floats result = at(push.result, uint64_t(row) * push.d);
    result.v[i % push.d] = push.x.v[i] * push.factor + result.v[i % push.d];
}
