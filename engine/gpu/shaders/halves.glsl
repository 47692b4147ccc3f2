// Two f16 of a word at once, in few steps.

// Their values, exactly but for the sign of a zero, which is lost. What is 0 or subnormal gets the least normal number added while it
// is an f16, and subtracted behind: no device sees a subnormal number.
vec2 halves_to_floats(uint two) {
    // Bit 15 of a half's sum is whether its exponent is above 0; the least normal number has bit 10 alone.
    uint added = ~((two & 0x7c007c00u) + 0x7c007c00u) >> 5 & 0x04000400u;
    return unpackHalf2x16(two | added) - unpackHalf2x16(added | (two & 0x80008000u));
}
