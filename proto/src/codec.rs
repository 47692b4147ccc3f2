//! Turns messages into bytes and back, for the generated services and clients. It does what tonic's own codec
//! for prost does, but decodes nothing before its fields have been counted.

use std::marker::PhantomData;

use bytes::Buf;
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

use crate::count::{Countable, count_fields};
use crate::failure::{Failure, FailureKind};
use crate::frame_error::FrameError;

/// Encodes `T`; counts and decodes `U`.
#[derive(Debug)]
pub struct CountedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for CountedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for CountedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Countable + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = CountedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        CountedDecoder(PhantomData)
    }
}

/// Counts and decodes `U`.
#[derive(Debug)]
pub struct CountedDecoder<U>(PhantomData<U>);

impl<U: Countable + Default> Decoder for CountedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        if buffer.chunk().len() != buffer.remaining() {
            return Err(Status::internal("a message in pieces"));
        }
        count_fields::<U>(buffer.chunk()).map_err(refused)?;
        U::decode(buffer).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

fn refused(error: FrameError) -> Status {
    match error {
        // As prost's own errors: the transport's status, which has no failure in it.
        FrameError::Decode(why) => Status::internal(format!("not a message: {why}")),
        other => Failure::refusal(FailureKind::BadMessage, other.to_string()).into(),
    }
}
