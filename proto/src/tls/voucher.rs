//! A node's word for a stage: the node signs with its own key that a stage with another key is its own, so that the
//! cluster's authority certifies that key. The stage proves its key itself, over TLS, when it shows the voucher.

use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};

use super::TlsError;
use super::key::{KeyId, NodeKey, PublicKey};
use super::verify::CLOCK_SKEW_S;
use crate::address::{FIRST_STAGE, MAX_STAGES_AT_ADDRESS};

/// Seconds for which a voucher is good. A node gives its stages another one long before.
pub const VOUCHED_FOR_S: u64 = 3600;
/// What is signed begins with this, so that no other signature of a node's key is a voucher.
const PURPOSE: &[u8] = b"brigade: a node's word for a stage, 1\0";
/// Bytes of the time in a voucher.
const TIME_BYTES: usize = 8;
/// Bytes of a P-256 public key as a certificate has it.
const PUBLIC_KEY_BYTES: usize = 91;
/// Bytes before the signature.
const HEAD_BYTES: usize = 1 + TIME_BYTES + PUBLIC_KEY_BYTES;
/// Bytes of a voucher at most.
pub const MAX_VOUCHER_BYTES: usize = HEAD_BYTES + 80;

/// A voucher that has been checked: whose word it is, and for which stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vouched {
    /// The node's key.
    pub node: KeyId,
    /// The stage's number, from 1 on.
    pub stage: u8,
}

/// The word of the node with `key`, from `now` on, that its stage `number` has the key `stage`.
///
/// # Errors
/// The key cannot sign.
pub fn vouch(key: &NodeKey, number: u8, stage: &KeyId, now: u64) -> Result<Vec<u8>, TlsError> {
    let mut voucher = [&[number], &now.to_be_bytes()[..], key.public().as_spki()].concat();
    let signature = key.sign(&statement(&voucher, stage))?;
    voucher.extend(signature);
    Ok(voucher)
}

/// Checks a voucher that the holder of the key `stage` shows at `now`, in seconds since the Unix epoch.
///
/// # Errors
/// It is for another key, of another time, or not signed by the key in it. Whether that is a node's key is not known here.
pub fn check(voucher: &[u8], stage: &KeyId, now: u64) -> Result<Vouched, TlsError> {
    let bad = |problem: &str| TlsError::malformed("a node's word for its stage", problem);
    let (head, signature) = voucher
        .split_at_checked(HEAD_BYTES)
        .filter(|_| voucher.len() <= MAX_VOUCHER_BYTES)
        .ok_or_else(|| bad("has not the length of one"))?;
    let (number, rest) = (head[0], &head[1..]);
    let (time, spki) = rest.split_at(TIME_BYTES);
    let made = time.iter().fold(0_u64, |made, byte| made << 8 | u64::from(*byte));
    let node = PublicKey::from_spki(spki).ok_or_else(|| bad("names no key of a node"))?;
    let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, node.as_point());
    if public.verify(&statement(head, stage), signature).is_err() {
        return Err(bad("is not signed by the node, or is for another key"));
    }
    if !(FIRST_STAGE..=MAX_STAGES_AT_ADDRESS).contains(&number) {
        return Err(bad("is for a number that no stage has"));
    }
    if made > now.saturating_add(CLOCK_SKEW_S) {
        return Err(bad("is of the future: set the clocks of both machines"));
    }
    if now > made.saturating_add(VOUCHED_FOR_S + CLOCK_SKEW_S) {
        return Err(bad("is too old: the node gives another one while it runs"));
    }
    Ok(Vouched { node: node.id(), stage: number })
}

fn statement(head: &[u8], stage: &KeyId) -> Vec<u8> {
    [PURPOSE, head, stage.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000;

    #[test]
    fn a_voucher_is_for_one_key_and_one_hour() {
        let [node, stage, other] = std::array::from_fn(|_| NodeKey::generate().unwrap());
        let voucher = vouch(&node, 2, &stage.id(), NOW).unwrap();
        assert!(voucher.len() <= MAX_VOUCHER_BYTES);
        let vouched = Vouched { node: node.id(), stage: 2 };
        let late = NOW + VOUCHED_FOR_S + CLOCK_SKEW_S;
        for now in [NOW - CLOCK_SKEW_S, NOW, late] {
            assert_eq!(check(&voucher, &stage.id(), now).unwrap(), vouched, "{now}");
        }
        let refused = |voucher: &[u8], key: &NodeKey, now| {
            check(voucher, &key.id(), now).unwrap_err().to_string()
        };
        assert!(refused(&voucher, &other, NOW).contains("another key"));
        assert!(refused(&voucher, &stage, late + 1).contains("too old"));
        assert!(refused(&voucher, &stage, NOW - CLOCK_SKEW_S - 1).contains("the future"));
        let none = vouch(&node, 0, &stage.id(), NOW).unwrap();
        assert!(refused(&none, &stage, NOW).contains("no stage has"));
    }

    #[test]
    fn what_was_changed_anywhere_is_none() {
        let [node, stage] = std::array::from_fn(|_| NodeKey::generate().unwrap());
        let voucher = vouch(&node, 2, &stage.id(), NOW).unwrap();
        for at in 0..voucher.len() {
            let mut changed = voucher.clone();
            changed[at] ^= 1;
            assert!(check(&changed, &stage.id(), NOW).is_err(), "byte {at}");
            assert!(check(&voucher[..at], &stage.id(), NOW).is_err(), "{at} bytes");
        }
        let long = [&voucher[..], &[0; MAX_VOUCHER_BYTES]].concat();
        assert!(check(&long, &stage.id(), NOW).is_err());
        // Under the name of another node: the key in it must have signed.
        let thief = NodeKey::generate().unwrap();
        let mut stolen = vouch(&thief, 2, &stage.id(), NOW).unwrap();
        stolen[..HEAD_BYTES].copy_from_slice(&voucher[..HEAD_BYTES]);
        assert!(check(&stolen, &stage.id(), NOW).is_err());
    }
}
