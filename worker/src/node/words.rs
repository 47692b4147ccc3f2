//! The node's word for its stages: that a key which a stage has made is of one of them. The coordinator certifies the key
//! on it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use brigade_proto::net::handover::Giver;
use brigade_proto::tls::KeyId;
use brigade_proto::tls::voucher::VOUCHED_FOR_S;
use tokio::time::sleep;

use crate::identity::membership::Membership;
use crate::identity::stage::Word;

/// The time between two words: so the stage's newest is good for a while when it needs one.
const VOUCH_EVERY: Duration = Duration::from_secs(VOUCHED_FOR_S / 3);

/// Gives stage `number`, which has this key, the node's word again and again, until the stage is gone.
pub async fn keep_vouching(membership: Arc<Membership>, number: u8, key: KeyId, way: Giver) {
    loop {
        let told = membership.vouch(number, &key).map(|voucher| {
            way.tell(&Word { authority: membership.authority(), voucher }.to_bytes())
        });
        match told {
            Ok(Ok(())) => {}
            // It has not taken what came before.
            Ok(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(Err(_)) => return,
            Err(error) => {
                tracing::error!(stage = number, %error, "the node cannot vouch for its stage");
            }
        }
        sleep(VOUCH_EVERY).await;
    }
}
