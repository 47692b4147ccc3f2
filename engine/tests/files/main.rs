//! Files and block formats from outside: reading, writing, mutating, decoding, making models.

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
