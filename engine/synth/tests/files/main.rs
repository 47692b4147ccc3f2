//! Tests of files and block formats, as a user of the crate meets them: reading, writing, damaging, decoding,
//! and making models.

#[cfg(test)]
mod damage;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod malformed;
#[cfg(test)]
mod quant;
#[cfg(test)]
mod raw;
#[cfg(test)]
mod round_trip;
#[cfg(test)]
mod split;
#[cfg(test)]
mod support;
#[cfg(test)]
mod synth;
