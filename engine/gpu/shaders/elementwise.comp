// One function of each value: out[i] = f(x[i], y[..], z[..]). What the numbers mean stands in `ops/elementwise.rs`.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "plain.glsl"

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint FUNCTION = 0;
// Which value of `y` belongs to value i: 0 none, 1 the same, 2 that of its column, 3 that of its row. `z` has columns.
layout(constant_id = 1) const uint PLACE = 0;

layout(push_constant, scalar) uniform Push {
    Floats x;
    Floats y;
    Floats z;
    Floats result;
    uint n;
    uint width;
    float a;
    float b;
    float c;
    float d;
} push;

const float GELU_LINEAR = 1.595769;
const float GELU_CUBIC = 0.071354814;

float gelu(float x) {
    float slope = x * x * GELU_CUBIC + GELU_LINEAR;
    return x * sigmoid_(x * slope);
}

// `x` within -bound..bound; NaN stays NaN.
float bounded(float x, float bound) {
    x = x > bound ? bound : x;
    return 0.0 - bound > x ? 0.0 - bound : x;
}

float below(float x, float limit) {
    return x > limit ? limit : x;
}

// `bound * tanh(x / bound)`, `inverse` being `1 / bound`.
float soft(float x, float bound, float inverse) {
    return tanh_(x * inverse) * bound;
}

float xielu(float x) {
    float alpha_n = push.a, alpha_p = push.b, beta = push.c, eps = push.d;
    if (x > 0.0) {
        return x * (x * alpha_p + beta);
    }
    float low = x > eps ? eps : x;
    float less_one = tanh_(low * 0.5) * (exp_(low) + 1.0);
    return (less_one - x) * alpha_n + x * beta;
}

float of(float x, float y, float z) {
    switch (FUNCTION) {
    case 0: return x + y;
    case 1: return y * push.a + x;
    case 2: return x * push.a;
    case 3: return x * y;
    case 4: return (y - x) * z + x;
    case 5: return silu_(y) * x;
    case 6: return sigmoid_(y) * x;
    case 7: return x * (y > 0.0 ? y : 0.0);
    case 8: return silu_(x);
    case 9: return sigmoid_(x);
    case 10: return tanh_(x);
    case 11: return softplus_(x);
    case 12: return max_(x, 0.0) * max_(x, 0.0);
    case 13: return gelu(x);
    case 14: return gelu(y) * x;
    case 15: {
        float g = below(y, push.b);
        return g * sigmoid_(g * push.a) * (bounded(x, push.b) + 1.0);
    }
    case 16: return silu_(below(y, push.a)) * bounded(x, push.a);
    case 17: return below(silu_(y), push.a) * bounded(x, push.a);
    case 18: return xielu(x);
    case 19: return soft(x, push.a, push.b);
    case 20: return bounded(x, push.a);
    case 21: return soft(y, push.a, push.b) * sigmoid_(y) * soft(x, push.c, push.d);
    case 22: return soft(y, push.a, push.b) * sigmoid_(y) * x;
    case 23: return exp_(0.0 - exp_(x + y));
    case 24: return exp_(z * softplus_(x + y));
    case 25: return exp_(push.a * sigmoid_((0.0 - z) * (x + y)));
    case 26: return sqrt_exact(x);
    case 27: return x > 0.0 ? x : 0.0;
    case 28: return plain_tanh(x);
    }
    return x;
}

void main() {
    uint i = item();
    if (i >= push.n) {
        return;
    }
    float y = 0.0, z = 0.0;
    if (PLACE == 1) {
        y = push.y.v[i];
    } else if (PLACE == 2) {
        y = push.y.v[i % push.width];
    } else if (PLACE == 3) {
        y = push.y.v[i / push.width];
    }
    if (FUNCTION == 4 || FUNCTION == 24 || FUNCTION == 25) {
        z = push.z.v[i % push.width];
    }
    push.result.v[i] = of(push.x.v[i], y, z);
}
