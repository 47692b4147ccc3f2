// Sums of lanes, as the CPU's vectors have them.

// Halves of the lanes added onto each other: 16 to 8 to 4 to 2 to 1.
float fold(float lanes[LANES]) {
    [[unroll]] for (uint width = LANES / 2; width > 0; width /= 2) {
        [[unroll]] for (uint i = 0; i < width; i++) {
            lanes[i] += lanes[i + width];
        }
    }
    return lanes[0];
}
