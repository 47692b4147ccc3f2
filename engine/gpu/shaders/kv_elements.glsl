// Elements of a position's key or value on their way to where they are kept, rounded to their type.

const float MAX_CODE = 127.0;

// Elements that an invocation writes.
const uint UNIT = TYPE == Q8_0 ? SCALE_ELEMS : 4;

uint units(uint width) {
    return (width + UNIT - 1) / UNIT;
}

// Some elements of one position.
struct Elements {
    // A row's, of which there are `n`; `width` with the zeros that fill it up.
    Floats from;
    uint n;
    uint width;
    // The first of these.
    uint first;
    // Where the row's plane of the page is, and that of its scales.
    uint64_t codes;
    uint64_t scales;
    // Position in the page.
    uint pos;
    // From the scale of one block to that of the next.
    uint scale_step;
    // Whether an element's positions lie side by side, not a position's elements.
    bool across;
};

// The number of element `i` among those of the plane.
uint place(Elements x, uint i) {
    return x.across ? i * KV_PAGE + x.pos : x.pos * x.width + i;
}

// The elements, zeros behind the row's end. All are read before the first is used or written.
void read_elements(Elements x, out float values[UNIT]) {
    [[unroll]] for (uint j = 0; j < UNIT; j++) {
        values[j] = x.from.v[min(x.first + j, x.n - 1)];
    }
    [[unroll]] for (uint j = 0; j < UNIT; j++) {
        values[j] = x.first + j < x.n ? values[j] : 0.0;
    }
}

void write_four(Elements x) {
    float values[UNIT];
    read_elements(x, values);
    [[unroll]] for (uint j = 0; j < UNIT; j++) {
        uint i = x.first + j;
        if (TYPE == F32 && i < x.width) {
            Floats(x.codes).v[place(x, i)] = values[j];
        } else if (i < x.width) {
            Halves(x.codes).v[place(x, i)] = uint16_t(f32_to_f16(values[j]));
        }
    }
}

// The f16 bits of a block's scale: the greatest magnitude over the greatest code; NaN where a value is no finite number.
uint scale_of(float values[UNIT]) {
    uint top = 0;
    [[unroll]] for (uint j = 0; j < UNIT; j++) {
        top = max(top, floatBitsToUint(values[j]) & 0x7fffffffu);
    }
    return top >= 0x7f800000u ? 0x7e00u : f32_to_f16(div_exact(uintBitsToFloat(top), MAX_CODE));
}

void write_block(Elements x) {
    float values[UNIT];
    read_elements(x, values);
    uint bits = scale_of(values);
    Halves(x.scales).v[x.first / SCALE_ELEMS * x.scale_step + x.pos] = uint16_t(bits);
    // Codes are of the scale as it is stored; of zero and of infinity they are zeros.
    float scale = f16_to_f32(bits);
    float inverse = scale > 0.0 ? div_exact(1.0, scale) : 0.0;
    [[unroll]] for (uint j = 0; j < UNIT; j++) {
        float code = max_(values[j] * inverse, -MAX_CODE);
        code = MAX_CODE > code ? code : MAX_CODE;
        if (x.first + j < x.width) {
            SignedBytes(x.codes).v[place(x, x.first + j)] = int8_t(round_i32(code));
        }
    }
}

void write_elements(Elements x) {
    if (TYPE == Q8_0) {
        write_block(x);
    } else {
        write_four(x);
    }
}
