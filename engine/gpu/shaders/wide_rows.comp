// Functions of rows with sums in f64, which are added in the order of the columns, as the host's plain code does. A workgroup
// has a row: all of it brings pieces to shared memory, one invocation adds them up.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "wide.glsl"

layout(local_size_x = 64) in;
layout(constant_id = 0) const uint KIND = 0;

// Gives each row of `x` the magnitude of that of `y`.
const uint MATCH = 0;
// Takes off the mean and so many deviations; what is below 0 becomes 0.
const uint ABOVE = 1;
// The product of a row of `x` and that of `y`, divided; its root, with the sign of the product.
const uint ROOT = 2;

layout(push_constant, scalar) uniform Push {
    Floats x;
    Floats y;
    Floats result;
    uint n;
    uint d;
    // Deviations, or what divides a product.
    float a;
    // Products whose size is less count as this much.
    float b;
} push;

const uint PIECE = 2048;
shared float piece[PIECE];
shared float other[PIECE];
shared double total;

// What is added up.
const uint VALUES = 0;
const uint SQUARES = 1;
const uint DEVIATIONS = 2;
const uint PRODUCTS = 3;

double term(uint what, uint i, double mean) {
    double x = double(piece[i]);
    switch (what) {
    case SQUARES: return double(piece[i] * piece[i]);
    case DEVIATIONS: return (x - mean) * (x - mean);
    case PRODUCTS: return x * double(other[i]);
    }
    return x;
}

double sum_of(uint what, Floats x, Floats y, double mean) {
    uint me = gl_LocalInvocationID.x;
    double sum = 0.0;
    for (uint start = 0; start < push.d; start += PIECE) {
        uint len = min(PIECE, push.d - start);
        barrier();
        for (uint i = me; i < len; i += 64) {
            piece[i] = x.v[start + i];
            if (what == PRODUCTS) {
                other[i] = y.v[start + i];
            }
        }
        barrier();
        if (me == 0) {
            for (uint i = 0; i < len; i++) {
                sum += term(what, i, mean);
            }
        }
    }
    if (me == 0) {
        total = sum;
    }
    barrier();
    sum = total;
    barrier();
    return sum;
}

float magnitude(Floats x) {
    return sqrt_exact(wide_to_f32(sum_of(SQUARES, x, x, 0.0)));
}

// The least value of a row that stays above 0.
float least(Floats x) {
    double mean = wide_div(sum_of(VALUES, x, x, 0.0), double(push.d));
    double squares = sum_of(DEVIATIONS, x, x, mean);
    double deviation = wide_sqrt(wide_div(squares, double(push.d) - 1.0));
    return wide_to_f32(mean + deviation * double(push.a));
}

float signed_root(float product) {
    float score = div_exact(product, push.a);
    float root = sqrt_exact(max_(abs(score), push.b));
    uint sign = floatBitsToUint(score) & 0x80000000u;
    return score == 0.0 ? 0.0 : uintBitsToFloat(floatBitsToUint(root) | sign);
}

void main() {
    uint row = line(), me = gl_LocalInvocationID.x;
    if (row >= push.n) {
        return;
    }
    Floats x = at(push.x, uint64_t(row) * push.d);
    Floats y = at(push.y, uint64_t(row) * push.d);
    Floats result = at(push.result, uint64_t(row) * push.d);
    if (KIND == MATCH) {
        float target = magnitude(y), own = magnitude(x);
        for (uint i = me; i < push.d; i += 64) {
            result.v[i] = div_exact(x.v[i] * target, own);
        }
    } else if (KIND == ABOVE) {
        float from = least(x);
        for (uint i = me; i < push.d; i += 64) {
            result.v[i] = max_(x.v[i] - from, 0.0);
        }
    } else {
        float product = wide_to_f32(sum_of(PRODUCTS, x, y, 0.0));
        if (me == 0) {
            push.result.v[row] = signed_root(product);
        }
    }
}
