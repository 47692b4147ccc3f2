//! How a stage of a node belongs to the cluster: it makes a key that is as old as its process, and has a coordinator certify
//! it for hours on its node's word. It has no token, and keeps nothing on the disk.
//!
//! The stage says its key on standard output. The node gives its word over the stage's standard input, and another one long
//! before that is too old.

use std::convert::Infallible;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use brigade_proto::address::Address;
use brigade_proto::tls::key::KEY_ID_BYTES;
use brigade_proto::tls::{Credentials, KeyId, NodeKey, TlsError};
use tokio::sync::watch;
use tokio::time::sleep;

use super::enrolment::{Asked, BACKOFF, By, Given, NotGiven, enrol};
use super::membership::MembershipError;

/// Start of the line by which a stage tells its node its key, on standard output.
pub const KEY_PREFIX: &str = "brigade worker key ";
/// The name that a stage asks for: it gets that of its node, and its number.
const NAME: &str = "stage";

/// A node's word for a stage, as it reaches the stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// Key of the cluster's authority.
    pub authority: KeyId,
    /// What the stage shows to the coordinator.
    pub voucher: Vec<u8>,
}

impl Word {
    /// The word as it travels.
    pub fn to_bytes(&self) -> Vec<u8> {
        [&self.authority.as_bytes()[..], &self.voucher].concat()
    }

    /// A word as [`Word::to_bytes`] wrote it; `None` for anything shorter.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (authority, voucher) = bytes.split_at_checked(KEY_ID_BYTES)?;
        Some(Self { authority: KeyId::from_bytes(authority)?, voucher: voucher.to_vec() })
    }
}

/// The node's newest word; `None` before the first.
pub type Words = watch::Receiver<Option<Word>>;

/// A stage's place in a cluster.
#[derive(Debug)]
pub struct StageMembership {
    key: NodeKey,
    coordinator: Address,
    words: Words,
    credentials: Arc<Credentials>,
    renew_in: Duration,
}

impl StageMembership {
    /// Joins with the node's word: as often as it takes until a coordinator answers.
    ///
    /// # Errors
    /// The node is gone, or a coordinator refuses.
    pub async fn take(coordinator: Address, mut words: Words) -> Result<Self, MembershipError> {
        let key = NodeKey::generate()?;
        say(&key.id())?;
        words.wait_for(Option::is_some).await.map_err(|_| MembershipError::NoNode)?;
        let (mut pause, mut last) = (*BACKOFF.start(), String::new());
        let given = loop {
            match ask(&key, &coordinator, &words).await {
                Ok(given) => break given,
                Err(NotGiven { reason, is_final: true }) => {
                    let reason = format!(
                        "{reason} (a coordinator of an older release certifies no stages of nodes: upgrade it first)"
                    );
                    return Err(MembershipError::Refused { coordinator, reason });
                }
                Err(NotGiven { reason, .. }) => {
                    if reason != last {
                        tracing::warn!(%coordinator, reason, "this stage cannot join the cluster yet; trying again");
                    }
                    last = reason;
                    sleep(pause).await;
                    pause = (pause * 2).min(*BACKOFF.end());
                }
            }
        };
        let credentials = Arc::new(given.credentials(&key)?);
        Ok(Self { key, coordinator, words, credentials, renew_in: given.renew_in })
    }

    /// The stage's certificate and key, and the authorities that it trusts.
    pub fn credentials(&self) -> &Arc<Credentials> {
        &self.credentials
    }

    /// Has the certificate renewed for ever.
    pub async fn keep_renewing(&self) -> Infallible {
        let (mut wait, mut pause, mut last) = (self.renew_in, *BACKOFF.start(), String::new());
        loop {
            sleep(wait).await;
            let given = ask(&self.key, &self.coordinator, &self.words).await;
            let renewed = given.and_then(|given| {
                self.credentials.replace(given.chain).map_err(NotGiven::of_ours)?;
                Ok(given.renew_in)
            });
            match renewed {
                Ok(renew_in) => {
                    tracing::info!("this stage's certificate is renewed");
                    (wait, pause) = (renew_in, *BACKOFF.start());
                    last.clear();
                }
                Err(NotGiven { reason, .. }) => {
                    if reason != last {
                        tracing::warn!(
                            reason,
                            "this stage's certificate cannot be renewed; trying again"
                        );
                    }
                    last = reason;
                    wait = pause;
                    pause = (pause * 2).min(*BACKOFF.end());
                }
            }
        }
    }
}

/// One attempt, with the node's newest word.
async fn ask(key: &NodeKey, coordinator: &Address, words: &Words) -> Result<Given, NotGiven> {
    let word = words.borrow().clone();
    let word =
        word.ok_or_else(|| NotGiven::for_now("the node has not given its word".to_owned()))?;
    let by = By::Voucher(&word.voucher);
    enrol(coordinator, &Asked { key, name: NAME, pin: word.authority, by }).await
}

fn say(key: &KeyId) -> Result<(), TlsError> {
    let mut out = io::stdout().lock();
    let said = writeln!(out, "{KEY_PREFIX}{key}").and_then(|()| out.flush());
    said.map_err(|source| TlsError::File { path: "standard output".into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_crosses_the_way_to_the_stage_whole() {
        let word = Word { authority: KeyId::of_spki(b"ca"), voucher: vec![1, 2, 3] };
        assert_eq!(Word::from_bytes(&word.to_bytes()), Some(word.clone()));
        assert_eq!(Word::from_bytes(&word.to_bytes()[..KEY_ID_BYTES - 1]), None);
    }
}
