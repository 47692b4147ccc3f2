//! The bytes of tokens become text as they come. Only whole characters leave.

/// Joins the bytes of consecutive tokens into text.
///
/// The pieces given back, joined, equal `String::from_utf8_lossy` of all bytes, however they were cut. A byte
/// that can begin or continue a character is held until the character is complete or broken. Every broken
/// sequence becomes one U+FFFD.
#[derive(Clone, Debug, Default)]
pub struct StreamDecoder {
    /// The beginning of a character, at most three bytes.
    held: Vec<u8>,
}

impl StreamDecoder {
    /// A stream that holds nothing back yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the bytes of a token; gives the text that is complete now.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.held.as_slice();
        while !rest.is_empty() {
            let error = match str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => error,
            };
            let (valid, tail) = rest.split_at(error.valid_up_to());
            text.push_str(str::from_utf8(valid).expect("valid up to here, as the error says"));
            rest = tail;
            let Some(broken) = error.error_len() else { break };
            text.push(char::REPLACEMENT_CHARACTER);
            rest = &rest[broken..];
        }
        self.held = rest.to_vec();
        text
    }

    /// The end: an unfinished character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_character_is_given_once_it_is_complete() {
        let mut d = StreamDecoder::new();
        assert_eq!(d.push(&[b'a', 0xf0, 0x9f]), "a");
        assert_eq!(d.push(&[0x98]), "");
        assert_eq!(d.push(&[0x80, b'!']), "😀!");
        assert_eq!(d.push(&[0xe2, 0x82]), "");
        assert_eq!(d.push(b"x"), "\u{fffd}x");
        assert_eq!(d.push(&[0xc3]), "");
        assert_eq!(d.finish(), "\u{fffd}");
        assert_eq!(d.finish(), "");
    }

    fn bytes() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let chunk = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..4),
            ".{0,3}".prop_map(String::into_bytes),
            prop::collection::vec(0x80u8..0xf8, 0..3),
        ];
        prop::collection::vec(chunk, 0..12)
    }

    proptest! {
        #[test]
        fn any_cut_of_any_bytes_gives_the_lossy_text(chunks in bytes(), cut in 1usize..5) {
            let all = chunks.concat();
            let whole = String::from_utf8_lossy(&all).into_owned();
            for pieces in [chunks, all.chunks(cut).map(<[u8]>::to_vec).collect()] {
                let mut d = StreamDecoder::new();
                let mut text: String = pieces.iter().map(|c| d.push(c)).collect();
                text.push_str(&d.finish());
                prop_assert_eq!(&text, &whole);
            }
        }
    }
}
