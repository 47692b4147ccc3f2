// One function of each value: out[i] = f(x[i], y[..], z[..]).
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "plain.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint FUNCTION = 0;
layout(constant_id = 1) const uint PLACE = 0;
#include "functions.glsl"

layout(push_constant, scalar) uniform Push {
    Floats x;
    Floats y;
    // Has columns.
    Floats z;
    Floats result;
    uint n;
    uint width;
    vec4 k;
} push;

void main() {
    uint i = item();
    if (i >= push.n) {
        return;
    }
    float z = 0.0;
    if (FUNCTION == 4 || FUNCTION == 24 || FUNCTION == 25) {
        z = push.z.v[i % push.width];
    }
    push.result.v[i] = of(push.x.v[i], operand(push.y, i, push.width), z, push.k);
}
