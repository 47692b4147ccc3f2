// Exponential and hyperbolic tangent as the host's plain code has them: the crate libm's `expf` and `tanhf`, which follow
// FreeBSD's msun. Each step rounds as theirs does, so the bits are theirs. Both reduce x to r = x - k ln 2, whose rounding is
// made good by a second part of ln 2, and have a rational function of r with few terms.

const float PER_LN2 = 1.4426950216;

// 2^k in two factors, since the whole of it may not be a number.
float times_power(float y, int k) {
    int half_k = k / 2;
    float once = y * uintBitsToFloat(uint(half_k + 127) << 23);
    return once * uintBitsToFloat(uint(k - half_k + 127) << 23);
}

// e^x, `expf` of libm.
float plain_exp(float x) {
    uint size = floatBitsToUint(x) & 0x7fffffffu;
    bool negative = floatBitsToUint(x) != size;
    if (size > 0x7f800000u) {
        return x;
    }
    if (negative ? size >= 0x42cff1b5u : size >= 0x42b17218u) {
        return negative ? 0.0 : INFINITE;
    }
    if (size <= 0x39000000u) {
        return 1.0 + x;
    }
    int k = 0;
    if (size > 0x3f851592u) {
        k = int(PER_LN2 * x + (negative ? -0.5 : 0.5));
    } else if (size > 0x3eb17218u) {
        k = negative ? -1 : 1;
    }
    float high = x - float(k) * 0.69314575195;
    float low = float(k) * 1.4286067653e-6;
    float r = high - low;
    float square = r * r;
    float c = r - square * (0.16666625440 + square * -2.7667332906e-3);
    float y = 1.0 + (div_exact(r * c, 2.0 - c) - low + high);
    return times_power(y, k);
}

// 1 / (1 + e^-x), of the same.
float plain_sigmoid(float x) {
    return div_exact(1.0, 1.0 + plain_exp(0.0 - x));
}

// e^x - 1 for |x| of at most 20, `expm1f` of libm.
float plain_exp_less_one(float x) {
    uint size = floatBitsToUint(x) & 0x7fffffffu;
    bool negative = floatBitsToUint(x) != size;
    if (size < 0x33000000u || size > 0x7f800000u) {
        return x;
    }
    if (negative && size >= 0x4195b844u) {
        return -1.0;
    }
    int k = 0;
    float r = x, lost = 0.0;
    if (size > 0x3eb17218u) {
        k = negative ? -1 : 1;
        if (size >= 0x3f851592u) {
            k = int(PER_LN2 * x + (negative ? -0.5 : 0.5));
        }
        float high = x - float(k) * 0.69313812256;
        float low = float(k) * 9.0580006145e-6;
        r = high - low;
        lost = (high - r) - low;
    }
    float half_r = 0.5 * r;
    float square = r * half_r;
    float q = 1.0 + square * (-0.033333212137 + square * 1.5807170421e-3);
    float t = 3.0 - q * half_r;
    float e = square * div_exact(q - t, 6.0 - r * t);
    if (k == 0) {
        return r - (r * e - square);
    }
    e = r * (e - lost) - lost;
    e -= square;
    if (k == -1) {
        return 0.5 * (r - e) - 0.5;
    }
    if (k == 1) {
        return r < -0.25 ? -2.0 * (e - (r + 0.5)) : 1.0 + 2.0 * (r - e);
    }
    float power = uintBitsToFloat(uint(127 + k) << 23);
    if (k < 0 || k > 56) {
        return (r - e + 1.0) * power - 1.0;
    }
    float inverse = uintBitsToFloat(uint(127 - k) << 23);
    return k < 23 ? (r - e + (1.0 - inverse)) * power : (r - (e + inverse) + 1.0) * power;
}

// `tanhf` of libm.
float plain_tanh(float x) {
    uint size = floatBitsToUint(x) & 0x7fffffffu;
    float a = uintBitsToFloat(size);
    float y = a;
    if (size > 0x41200000u) {
        y = size > 0x7f800000u ? NOT_A_NUMBER : 1.0;
    } else if (size > 0x3f0c9f54u) {
        y = 1.0 - div_exact(2.0, plain_exp_less_one(2.0 * a) + 2.0);
    } else if (size > 0x3e82c578u) {
        float t = plain_exp_less_one(2.0 * a);
        y = div_exact(t, t + 2.0);
    } else if (size >= 0x00800000u) {
        float t = plain_exp_less_one(-2.0 * a);
        y = div_exact(0.0 - t, t + 2.0);
    }
    return floatBitsToUint(x) == size ? y : uintBitsToFloat(floatBitsToUint(y) | 0x80000000u);
}
