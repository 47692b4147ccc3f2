// Functions of a value and of operands beside it, by number. What the numbers mean stands in `ops/rowwise/elementwise.rs`.
//
// Who includes this declares the constants FUNCTION and PLACE: which value of `y` belongs to value i: 0 none, 1 the same, 2 that of its
// column, 3 that of its row.

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

float xielu(float x, vec4 k) {
    float alpha_n = k.x, alpha_p = k.y, beta = k.z, eps = k.w;
    if (x > 0.0) {
        return x * (x * alpha_p + beta);
    }
    float low = x > eps ? eps : x;
    float less_one = tanh_(low * 0.5) * (exp_(low) + 1.0);
    return (less_one - x) * alpha_n + x * beta;
}

// Function FUNCTION of `x`, `y` and `z`, `k` being its constants.
float of(float x, float y, float z, vec4 k) {
    switch (FUNCTION) {
    case 0: return x + y;
    case 1: return y * k.x + x;
    case 2: return x * k.x;
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
        float g = below(y, k.y);
        return g * sigmoid_(g * k.x) * (bounded(x, k.y) + 1.0);
    }
    case 16: return silu_(below(y, k.x)) * bounded(x, k.x);
    case 17: return below(silu_(y), k.x) * bounded(x, k.x);
    case 18: return xielu(x, k);
    case 19: return soft(x, k.x, k.y);
    case 20: return bounded(x, k.x);
    case 21: return soft(y, k.x, k.y) * sigmoid_(y) * soft(x, k.z, k.w);
    case 22: return soft(y, k.x, k.y) * sigmoid_(y) * x;
    case 23: return exp_(0.0 - exp_(x + y));
    case 24: return exp_(z * softplus_(x + y));
    case 25: return exp_(k.x * sigmoid_((0.0 - z) * (x + y)));
    case 26: return sqrt_exact(x);
    case 27: return x > 0.0 ? x : 0.0;
    case 28: return plain_tanh(x);
    }
    return x;
}

// The value of `y` that belongs to value `i`, in rows of `width`.
float operand(Floats y, uint i, uint width) {
    switch (PLACE) {
    case 1: return y.v[i];
    case 2: return y.v[i % width];
    case 3: return y.v[i / width];
    }
    return 0.0;
}
