//! The node's word for its stages: that a key which a stage has made is of one of them. The coordinator certifies the key
//! on it. A stage that stands for the whole node gets the node's own key and certificates.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use brigade_proto::net::handover::Giver;
use brigade_proto::tls::voucher::VOUCHED_FOR_S;
use brigade_proto::tls::{KeyId, TlsError};
use tokio::time::sleep;

use crate::identity::membership::{ASKS_FOR_NEWER_EVERY, Membership};
use crate::identity::word::Word;

/// The time between two words: so the stage's newest is good for a while when it needs one.
const VOUCH_EVERY: Duration = Duration::from_secs(VOUCHED_FOR_S / 3);

/// Tells the stage behind `way` again and again who it is, until it is gone: stage `number` with this key, or where `is_alone`,
/// the node itself.
pub async fn keep_vouching(
    membership: Arc<Membership>,
    number: u8,
    key: KeyId,
    is_alone: bool,
    way: Giver,
) {
    let word = || {
        if is_alone {
            return Ok(membership.own_word());
        }
        let voucher = membership.vouch(number, &key)?;
        Ok::<_, TlsError>(Word::Vouched { authority: membership.authority(), voucher })
    };
    loop {
        match word().map(|word| way.tell(&word.to_bytes())) {
            Ok(Ok(())) => {}
            // It has not taken what came before.
            Ok(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(Err(_)) => return,
            Err(error) => {
                tracing::error!(stage = number, %error, "the node cannot vouch for its stage");
            }
        }
        // A certificate that is the node's own is as new as the node's.
        sleep(if is_alone { ASKS_FOR_NEWER_EVERY } else { VOUCH_EVERY }).await;
    }
}
