// What streams weigh, in place of what was made of them. An invocation has a row: what each stream gives a block, what each
// gets of its output, and a matrix of what goes from stream to stream, whose rows and columns sum to one.
#version 460
#include "common.glsl"
#include "numbers.glsl"
#include "plain.glsl"

layout(local_size_x = 64) in;
// Streams.
layout(constant_id = 0) const uint N = 4;
const uint SIZE = N * N;

layout(push_constant, scalar) uniform Push {
    // `[n_rows, width]`.
    Floats weights;
    // `[width]`.
    Floats base;
    // For each of the three.
    Floats scale;
    uint n_rows;
    // N, 2 N, or 2 N + N N.
    uint width;
    uint rounds;
    float eps;
    float magnitude;
    float post_eps;
} push;

float sum_of(float matrix[SIZE], uint first, uint step) {
    float sum = matrix[first];
    for (uint i = 1; i < N; i++) {
        sum += matrix[first + i * step];
    }
    return sum;
}

void mix(Floats row) {
    float matrix[SIZE];
    for (uint i = 0; i < SIZE; i++) {
        matrix[i] = push.scale.v[2] * row.v[2 * N + i] + push.base.v[2 * N + i];
    }
    for (uint r = 0; r < SIZE; r += N) {
        float most = 0.0 - INFINITE;
        for (uint i = r; i < r + N; i++) {
            most = max_(matrix[i], most);
        }
        for (uint i = r; i < r + N; i++) {
            matrix[i] = plain_exp(matrix[i] - most);
        }
        float sum = sum_of(matrix, r, 1);
        for (uint i = r; i < r + N; i++) {
            matrix[i] = div_exact(matrix[i], sum) + push.eps;
        }
    }
    for (uint turn = 0; turn < push.rounds; turn++) {
        for (uint r = 0; r < SIZE && turn > 0; r += N) {
            float sum = sum_of(matrix, r, 1) + push.eps;
            for (uint i = r; i < r + N; i++) {
                matrix[i] = div_exact(matrix[i], sum);
            }
        }
        for (uint c = 0; c < N; c++) {
            float sum = sum_of(matrix, c, N) + push.eps;
            for (uint i = c; i < SIZE; i += N) {
                matrix[i] = div_exact(matrix[i], sum);
            }
        }
    }
    for (uint i = 0; i < SIZE; i++) {
        row.v[2 * N + i] = matrix[i];
    }
}

void main() {
    uint r = item();
    if (r >= push.n_rows) {
        return;
    }
    Floats row = at(push.weights, uint64_t(r) * push.width);
    for (uint i = 0; i < N; i++) {
        row.v[i] = plain_sigmoid(push.scale.v[0] * row.v[i] + push.base.v[i]) + push.eps;
    }
    if (push.width > N) {
        for (uint i = N; i < 2 * N; i++) {
            float share = plain_sigmoid(push.scale.v[1] * row.v[i] + push.base.v[i]);
            row.v[i] = share * push.magnitude + push.post_eps;
        }
    }
    if (push.width > 2 * N) {
        mix(row);
    }
}
