// For tests: one function of numbers.glsl on each pair of bits.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "halves.glsl"

layout(local_size_x = 64) in;
layout(constant_id = 0) const uint FUNCTION = 0;

layout(push_constant, scalar) uniform Push {
    Uints a;
    Uints b;
    Uints y;
    uint n;
} push;

uint of(uint a, uint b) {
    float x = uintBitsToFloat(a);
    switch (FUNCTION) {
    case 0: return floatBitsToUint(div_exact(x, uintBitsToFloat(b)));
    case 1: return floatBitsToUint(sqrt_exact(x));
    case 2: return floatBitsToUint(exp_(x));
    case 3: return floatBitsToUint(f16_to_f32(a & 0xffffu));
    case 4: return f32_to_f16(x);
    case 5: return uint(round_i32(x));
    case 6: return floatBitsToUint(x + uintBitsToFloat(b));
    case 7: return floatBitsToUint(x * uintBitsToFloat(b));
    case 8: return floatBitsToUint(x * x + uintBitsToFloat(b));
    case 9: return floatBitsToUint(halves_to_floats(a & 0xffffu | b << 16).x);
    case 10: return floatBitsToUint(halves_to_floats(b & 0xffffu | a << 16).y);
    }
    return 0;
}

void main() {
    uint i = item();
    if (i < push.n) {
        push.y.v[i] = of(push.a.v[i], push.b.v[i]);
    }
}
