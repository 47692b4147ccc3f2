//! Block formats: decoding gives the bits that other programs give, and encoding stays near the values.

use brigade_quant::{FORMATS, GgmlType, QuantError};

/// One step of splitmix64's stream.
fn next(counter: &mut u64) -> u64 {
    *counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (*counter ^ (*counter >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn random_bytes(n: usize, seed: u64) -> Vec<u8> {
    let mut counter = seed;
    (0..n).map(|_| (next(&mut counter) >> 56) as u8).collect()
}

/// FNV-1a over the bits of f32 values, all NaNs taken as one.
fn hash(values: &[f32]) -> u64 {
    let bits = |v: &f32| if v.is_nan() { 0x7fc0_0000 } else { v.to_bits() };
    let bytes = values.iter().flat_map(|v| bits(v).to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

/// Hashes of what others make of `random_bytes`, seeded with the type's id (256 blocks of one value, or 8 of
/// more). The others are `dequantize` of the `gguf` Python package and, for MXFP4 and the types after it,
/// ggml's own functions too, with the same bits. Q1_0 and Q2_0 are ggml's alone.
const DECODED: &[(GgmlType, u64)] = &[
    (GgmlType::F16, 0x922e_8d78_d917_8078),
    (GgmlType::BF16, 0xc774_e15d_d2ab_dc54),
    (GgmlType::Q4_0, 0x4bf4_01c8_351d_a90b),
    (GgmlType::Q4_1, 0xc4f7_5d2e_b2a1_1d8b),
    (GgmlType::Q5_0, 0x2dd8_84f0_9788_2a82),
    (GgmlType::Q5_1, 0x524a_abe0_a411_fc16),
    (GgmlType::Q8_0, 0x4c8c_4a91_ec94_5b78),
    (GgmlType::Q2_K, 0x1a71_07a4_3da6_6de3),
    (GgmlType::Q3_K, 0x53e6_a17a_b9ff_58fb),
    (GgmlType::Q4_K, 0x6c34_0b4d_2ad3_81d7),
    (GgmlType::Q5_K, 0x8053_9a52_0d94_2006),
    (GgmlType::Q6_K, 0x6cbc_a6d8_f827_971c),
    (GgmlType::IQ4_NL, 0x614e_cb58_d7cb_bec0),
    (GgmlType::IQ4_XS, 0xdaad_acae_f74f_cef7),
    (GgmlType::MXFP4, 0xe615_3204_11ad_c6c6),
    (GgmlType::NVFP4, 0xa5b7_00b3_f5c5_80c9),
    (GgmlType::IQ1_S, 0x59ec_29c6_2081_c698),
    (GgmlType::IQ1_M, 0xd982_9ac8_242a_5e1a),
    (GgmlType::IQ2_XXS, 0x8c1f_8a13_5299_8a45),
    (GgmlType::IQ2_XS, 0xecfb_7282_f8e4_1514),
    (GgmlType::IQ2_S, 0xa246_a12b_fb0e_7f7d),
    (GgmlType::IQ3_XXS, 0x46dd_6e1a_7089_4c2d),
    (GgmlType::IQ3_S, 0xa27e_bcab_0a8a_1341),
    (GgmlType::TQ1_0, 0x604c_976f_a54b_060d),
    (GgmlType::TQ2_0, 0x2655_2e5b_a866_c34e),
    (GgmlType::Q1_0, 0x2a33_90e9_ddba_3f25),
    (GgmlType::Q2_0, 0xde04_b3d5_c475_bae8),
];

#[test]
fn random_blocks_decode_to_the_same_bits_as_elsewhere() {
    for (ty, want) in DECODED {
        let blocks = if ty.block_elems() == 1 { 256 } else { 8 };
        let bytes = random_bytes(blocks * ty.block_bytes(), u64::from(ty.id()));
        let mut values = vec![0.0; blocks * ty.block_elems()];
        brigade_quant::dequantize_row(*ty, "t", &bytes, &mut values).unwrap();
        assert_eq!(hash(&values), *want, "{ty}");
    }
    assert_eq!(DECODED.len() + 1, FORMATS.len(), "all but F32, which decodes to itself");
}

/// Near-normal values of unit variance, some blocks of them far smaller and one all zero.
fn weights(n: usize) -> Vec<f32> {
    let mut counter = 99;
    let mut normal = || {
        let sum: i64 = (0..4).map(|_| (next(&mut counter) >> 40) as i64 - (1 << 23)).sum();
        sum as f32 / (1 << 23) as f32 * 0.866
    };
    let size = |i: usize| [1.0, 0.01, 0.0, 1.0][i / 256 % 4];
    (0..n).map(|i| normal() * size(i)).collect()
}

/// Relative error of encoding and decoding: ||y - x|| / ||x||.
fn error(ty: GgmlType, values: &[f32]) -> f64 {
    let mut bytes = vec![0; ty.row_bytes(values.len()).unwrap()];
    let mut decoded = vec![0.0; values.len()];
    brigade_quant::quantize_row(ty, values, &mut bytes).unwrap();
    brigade_quant::dequantize_row(ty, "t", &bytes, &mut decoded).unwrap();
    let square = |v: f64| v * v;
    let off: f64 = values.iter().zip(&decoded).map(|(a, b)| square(f64::from(a - b))).sum();
    (off / values.iter().map(|v| square(f64::from(*v))).sum::<f64>()).sqrt()
}

/// The relative errors of ggml's own quantisers (`ggml_quantize_chunk`, all values as important) on
/// [`weights`]; of the floats, what rounding to nearest costs.
const ENCODED: &[(GgmlType, f64)] = &[
    (GgmlType::F32, 0.0),
    (GgmlType::F16, 0.000_21),
    (GgmlType::BF16, 0.001_64),
    (GgmlType::Q4_0, 0.081_06),
    (GgmlType::Q4_1, 0.074_00),
    (GgmlType::Q5_0, 0.040_23),
    (GgmlType::Q5_1, 0.036_14),
    (GgmlType::Q8_0, 0.005_031),
    (GgmlType::Q2_K, 0.285_36),
    (GgmlType::Q3_K, 0.143_87),
    (GgmlType::Q4_K, 0.067_18),
    (GgmlType::Q5_K, 0.034_52),
    (GgmlType::Q6_K, 0.016_71),
    (GgmlType::IQ4_NL, 0.073_34),
    (GgmlType::IQ4_XS, 0.073_93),
    (GgmlType::MXFP4, 0.115_07),
    (GgmlType::NVFP4, 0.096_88),
    (GgmlType::IQ1_S, 0.471_13),
    (GgmlType::IQ1_M, 0.436_74),
    (GgmlType::IQ2_XXS, 0.336_42),
    (GgmlType::IQ2_XS, 0.292_63),
    (GgmlType::IQ2_S, 0.242_11),
    (GgmlType::IQ3_XXS, 0.178_53),
    (GgmlType::IQ3_S, 0.132_40),
    (GgmlType::TQ1_0, 0.764_99),
    (GgmlType::TQ2_0, 0.764_99),
    (GgmlType::Q1_0, 0.581_10),
    (GgmlType::Q2_0, 0.691_97),
];
/// Ours search less than ggml's, and may be this much worse.
const SLACK: f64 = 1.07;
/// The same of types with codebooks, whose rows ours finds by way of the nearest levels.
const CODEBOOK_SLACK: f64 = 1.15;
const CODEBOOKS: [GgmlType; 7] = [
    GgmlType::IQ1_S,
    GgmlType::IQ1_M,
    GgmlType::IQ2_XXS,
    GgmlType::IQ2_XS,
    GgmlType::IQ2_S,
    GgmlType::IQ3_XXS,
    GgmlType::IQ3_S,
];

#[test]
fn encoded_weights_are_as_near_as_ggml_makes_them() {
    let values = weights(64 * 256);
    let mut worse = Vec::new();
    for (ty, theirs) in ENCODED {
        let error = error(*ty, &values);
        println!("{ty:8} {error:.5}, ggml {theirs:.5}");
        let slack = if CODEBOOKS.contains(ty) { CODEBOOK_SLACK } else { SLACK };
        if error > theirs * slack {
            worse.push(format!("{ty}: relative error {error:.5}, ggml's {theirs}"));
        }
    }
    assert!(worse.is_empty(), "{worse:#?}");
    assert_eq!(ENCODED.len(), FORMATS.len());
}

#[test]
fn special_rows_encode_to_what_they_are() {
    for format in FORMATS {
        let ty = format.ty;
        let mut bytes = vec![0xff; ty.row_bytes(256).unwrap()];
        let mut decoded = vec![f32::NAN; 256];
        brigade_quant::quantize_row(ty, &[0.0; 256], &mut bytes).unwrap();
        brigade_quant::dequantize_row(ty, "t", &bytes, &mut decoded).unwrap();
        assert_eq!(decoded, [0.0; 256], "{ty}: zeros");
        for value in [1.0, -1.0, 0.02] {
            let error = error(ty, &[value; 256]);
            let bound = match ty {
                // It has no level between 1 and 1.5 times a power of two: 0.02 is 1.28 of one.
                GgmlType::MXFP4 => 0.18,
                // Its scales have three bits, and levels are 6, 4, 3, 2 and so on times a scale.
                GgmlType::NVFP4 => 0.05,
                _ => 0.01,
            };
            assert!(error < bound, "{ty}: all {value} is off by {error}");
        }
        // Values that no format holds must not panic; their encoded values do not matter.
        for value in [f32::NAN, f32::INFINITY, f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1)] {
            brigade_quant::quantize_row(ty, &[value; 256], &mut bytes).unwrap();
        }
    }
}

#[test]
fn rows_are_decoded_at_any_address() {
    let ty = GgmlType::Q4_K;
    let bytes = random_bytes(ty.block_bytes() + 1, 5);
    let aligned = bytes[1..].to_vec();
    let (mut odd, mut even) = (vec![0.0; 256], vec![0.0; 256]);
    brigade_quant::dequantize_row(ty, "t", &bytes[1..], &mut odd).unwrap();
    brigade_quant::dequantize_row(ty, "t", &aligned, &mut even).unwrap();
    assert_eq!(hash(&odd), hash(&even));
}

#[test]
fn errors_name_type_and_tensor() {
    let error = brigade_quant::require_format(GgmlType::Q8_K, "blk.3.ffn_up.weight").err().unwrap();
    assert_eq!(error.to_string(), "not supported yet: Q8_K in blk.3.ffn_up.weight");
    assert!(brigade_quant::quantize_row(GgmlType::Q8_1, &[0.0; 32], &mut [0; 36]).is_err());
    let mut row = [0.0; 32];
    for bytes in [0, 17, 19, 36] {
        let error = brigade_quant::dequantize_row(GgmlType::Q4_0, "t", &vec![0; bytes], &mut row);
        assert!(matches!(error, Err(QuantError::Length { .. })), "{bytes} bytes");
    }
    assert!(brigade_quant::quantize_row(GgmlType::Q4_0, &[0.0; 31], &mut [0; 18]).is_err());
}
