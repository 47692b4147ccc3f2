//! Unpredictable numbers for ids and default seeds. They come from the keys of the standard library's hash
//! maps, which the operating system seeds. They are not fit for secrets.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A number that differs between calls and between processes.
pub fn u64() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// 32 characters of letters and digits, as in OpenAI's ids.
pub fn id() -> String {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    const PER_NUMBER: usize = 8;
    (0..4)
        .flat_map(|_| {
            let mut number = u64();
            std::iter::repeat_with(move || {
                let letter = LETTERS[(number % LETTERS.len() as u64) as usize];
                number /= LETTERS.len() as u64;
                char::from(letter)
            })
            .take(PER_NUMBER)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn ids_differ_and_have_32_characters() {
        let (a, b) = (super::id(), super::id());
        assert_ne!(a, b);
        assert_eq!(a.len(), 32);
        assert!(a.chars().all(|c| c.is_ascii_alphanumeric()));
    }
}
