//! How a stage of a node belongs to the cluster: it makes a key that is as old as its process, and has a coordinator certify
//! it for hours on its node's word. It has no token, and keeps nothing on the disk.
//!
//! The stage says its key on standard output. The node gives its word over the stage's standard input, and another one long
//! before that is too old. Where the coordinator certifies no stages, the node runs one stage, which has the node's own place:
//! then the word is the node's key and certificate.

use std::convert::Infallible;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use brigade_proto::address::Address;
use brigade_proto::tls::identity::certificates;
use brigade_proto::tls::{Credentials, KeyId, NodeKey, TlsError};
use tokio::time::sleep;

use super::enrolment::{Asked, BACKOFF, By, Given, NotGiven, credentials, enrol};
use super::membership::MembershipError;
use super::word::{Word, Words};

/// Start of the line by which a stage tells its node its key, on standard output.
pub const KEY_PREFIX: &str = "brigade worker key ";
/// The name that a stage asks for: it gets that of its node, and its number.
const NAME: &str = "stage";
/// What errors call the key and the certificates that a node hands over.
const OF_NODE: &str = "the node's word";

/// A stage's place in a cluster.
#[derive(Debug)]
pub struct StageMembership {
    coordinator: Address,
    words: Words,
    credentials: Arc<Credentials>,
    certified: Certified,
}

/// Where a stage's certificate comes from.
#[derive(Debug)]
enum Certified {
    /// From the coordinator, for a key of its own.
    Vouched { key: Box<NodeKey>, renew_in: Duration },
    /// From the node, whose place it has.
    AsNode,
}

impl StageMembership {
    /// Joins with the node's word: as often as it takes until a coordinator answers.
    ///
    /// # Errors
    /// The node is gone, or a coordinator refuses.
    pub async fn take(coordinator: Address, mut words: Words) -> Result<Self, MembershipError> {
        let key = NodeKey::generate()?;
        say(&key.id())?;
        let word =
            words.wait_for(Option::is_some).await.map_err(|_| MembershipError::NoNode)?.clone();
        if let Some(Word::Own { key, certificates: chain }) = word {
            let (key, chain) = (NodeKey::from_pem(OF_NODE, &key)?, certificates(OF_NODE, &chain)?);
            let credentials = Arc::new(credentials(OF_NODE, chain, &key)?);
            return Ok(Self { coordinator, words, credentials, certified: Certified::AsNode });
        }
        let (mut pause, mut last) = (*BACKOFF.start(), String::new());
        let given = loop {
            match ask(&key, &coordinator, &words).await {
                Ok(given) => break given,
                Err(NotGiven { reason, is_final: true }) => {
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
        let certified = Certified::Vouched { key: Box::new(key), renew_in: given.renew_in };
        Ok(Self { coordinator, words, credentials, certified })
    }

    /// The stage's certificate and key, and the authorities that it trusts.
    pub fn credentials(&self) -> &Arc<Credentials> {
        &self.credentials
    }

    /// Keeps the certificate good for ever.
    pub async fn keep_renewing(self) -> Infallible {
        match &self.certified {
            Certified::Vouched { key, renew_in } => self.renew(key, *renew_in).await,
            Certified::AsNode => self.follow_node().await,
        }
    }

    /// Takes the certificates that the node has.
    async fn follow_node(&self) -> Infallible {
        let mut words = self.words.clone();
        loop {
            if words.changed().await.is_err() {
                // The node is gone, and this process is about to end.
                return std::future::pending().await;
            }
            let word = words.borrow_and_update().clone();
            let Some(Word::Own { certificates: chain, .. }) = word else { continue };
            let replaced =
                certificates(OF_NODE, &chain).and_then(|chain| self.credentials.replace(chain));
            if let Err(error) = replaced {
                tracing::warn!(%error, "the node's new certificate cannot be used");
            }
        }
    }

    /// Has the certificate renewed for ever.
    async fn renew(&self, key: &NodeKey, renew_in: Duration) -> Infallible {
        let (mut wait, mut pause, mut last) = (renew_in, *BACKOFF.start(), String::new());
        loop {
            sleep(wait).await;
            let given = ask(key, &self.coordinator, &self.words).await;
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
    let Some(Word::Vouched { authority, voucher }) = words.borrow().clone() else {
        return Err(NotGiven::for_now("the node has not given its word".to_owned()));
    };
    let by = By::Voucher(&voucher);
    enrol(coordinator, &Asked { key, name: NAME, pin: authority, by }).await
}

fn say(key: &KeyId) -> Result<(), TlsError> {
    let mut out = io::stdout().lock();
    let said = writeln!(out, "{KEY_PREFIX}{key}").and_then(|()| out.flush());
    said.map_err(|source| TlsError::File { path: "standard output".into(), source })
}
