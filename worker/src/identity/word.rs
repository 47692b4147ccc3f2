//! What a node tells a stage about who it is: its word for the stage, or who the node is itself, where it runs as one worker.

use brigade_proto::tls::KeyId;
use brigade_proto::tls::key::KEY_ID_BYTES;
use tokio::sync::watch;

/// Begins the node's word for a stage.
const VOUCHED: u8 = 1;
/// Begins the node's own key and certificates.
const OWN: u8 = 2;

/// What a node tells a stage.
#[derive(Clone, PartialEq, Eq)]
pub enum Word {
    /// The node's word that the stage is one of its stages.
    Vouched {
        /// Key of the cluster's authority.
        authority: KeyId,
        /// What the stage shows to the coordinator.
        voucher: Vec<u8>,
    },
    /// The place of the node itself, which has no other stage.
    Own {
        /// The node's key (PEM).
        key: String,
        /// Its certificate, then the authority's (PEM).
        certificates: String,
    },
}

/// The node's newest word; `None` before the first.
pub type Words = watch::Receiver<Option<Word>>;

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Keys are secret.
        f.write_str(match self {
            Self::Vouched { .. } => "Vouched",
            Self::Own { .. } => "Own",
        })
    }
}

impl Word {
    /// The word as it travels.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Vouched { authority, voucher } => {
                [&[VOUCHED], &authority.as_bytes()[..], voucher].concat()
            }
            Self::Own { key, certificates } => {
                let length = u32::try_from(key.len()).unwrap_or(u32::MAX).to_le_bytes();
                [&[OWN], &length[..], key.as_bytes(), certificates.as_bytes()].concat()
            }
        }
    }

    /// A word as [`Word::to_bytes`] wrote it; `None` for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        match *kind {
            VOUCHED => {
                let (authority, voucher) = rest.split_at_checked(KEY_ID_BYTES)?;
                let authority = KeyId::from_bytes(authority)?;
                Some(Self::Vouched { authority, voucher: voucher.to_vec() })
            }
            OWN => {
                let (length, rest) = rest.split_first_chunk()?;
                let (key, certificates) =
                    rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
                let text = |bytes: &[u8]| Some(std::str::from_utf8(bytes).ok()?.to_owned());
                Some(Self::Own { key: text(key)?, certificates: text(certificates)? })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_crosses_the_way_to_the_stage_whole() {
        let vouched = Word::Vouched { authority: KeyId::of_spki(b"ca"), voucher: vec![1, 2, 3] };
        let own = Word::Own { key: "key\n".to_owned(), certificates: "one\ntwo\n".to_owned() };
        for word in [&vouched, &own] {
            assert!(Word::from_bytes(&word.to_bytes()).as_ref() == Some(word), "{word:?}");
        }
        assert!(Word::from_bytes(&vouched.to_bytes()[..KEY_ID_BYTES]).is_none());
        assert!(Word::from_bytes(&own.to_bytes()[..7]).is_none());
        assert!(Word::from_bytes(&[]).is_none() && Word::from_bytes(&[3, 1]).is_none());
        assert!(!format!("{own:?}").contains("key"), "a key is not shown");
    }
}
