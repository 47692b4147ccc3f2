//! Tokens, valid for a limited time and number of uses. Only their hashes are stored. A token is deleted when it is
//! used up.

use std::time::Duration;

use brigade_proto::tls::files::Lock;
use brigade_proto::tls::key::{hex, unhex};
use brigade_proto::tls::token::{equal_hashes, hash_secret};
use brigade_proto::tls::{KeyId, TlsError, Token};
use serde::{Deserialize, Serialize};

use super::folder::Folder;

const FILE: &str = "tokens.json";
/// Limit of tokens that are valid at once.
pub const MAX_TOKENS: usize = 1000;
/// Time for which one that can no longer be used is remembered, so that who comes with it is told why.
const REMEMBERED_FOR: Duration = Duration::from_secs(30 * 86_400);

#[derive(Debug, Default, Serialize, Deserialize)]
struct Tokens {
    tokens: Vec<Record>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    id: String,
    /// SHA-256 of the secret.
    secret_sha256: String,
    expires: u64,
    uses_left: u32,
}

/// Why a token is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadToken {
    /// No such token was made here, or it was deleted, or its secret is wrong.
    #[error(
        "the token is not one of this cluster, or was withdrawn: make one with `brigade token create`"
    )]
    Unknown,
    /// The token has expired.
    #[error("the token has expired: make another one with `brigade token create`")]
    Expired,
    /// The token was used as often as it may be.
    #[error("the token was used already: make another one with `brigade token create`")]
    Used,
}

/// Makes a token and stores its hash.
///
/// # Errors
/// There are too many, or the files cannot be read or written.
pub fn create(
    folder: &Folder,
    authority: KeyId,
    now: u64,
    ttl: Duration,
    uses: u32,
) -> Result<Token, TlsError> {
    let lock = folder.lock()?;
    let mut all = read(folder, now)?;
    if all.tokens.len() >= MAX_TOKENS {
        let problem = format!("there are {MAX_TOKENS} tokens: wait until some expire");
        return Err(TlsError::Malformed { what: FILE.to_owned(), problem });
    }
    let token = Token::generate(authority)?;
    all.tokens.push(Record {
        id: token.id.clone(),
        secret_sha256: hex(&hash_secret(&token.secret)),
        expires: now.saturating_add(ttl.as_secs()),
        uses_left: uses,
    });
    folder.write(&lock, FILE, &all)?;
    Ok(token)
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MadeToken {
    /// The token's public id, which is useless without its secret.
    pub id: String,
    /// When it ends, in seconds since the Unix epoch.
    pub expires: u64,
    /// Machines that it still lets in.
    pub uses_left: u32,
}

/// The tokens that were made and can still be used, in the order in which they were made.
///
/// # Errors
/// The files cannot be read.
pub fn usable(folder: &Folder, now: u64) -> Result<Vec<MadeToken>, TlsError> {
    let all = read(folder, now)?.tokens.into_iter();
    let usable = all.filter(|record| now <= record.expires && record.uses_left > 0);
    let made = |r: Record| MadeToken { id: r.id, expires: r.expires, uses_left: r.uses_left };
    Ok(usable.map(made).collect())
}

/// Checks whether a token lets a node in; changes nothing. It is called before the lock is taken, so that a flood of
/// bad tokens does not block others.
///
/// # Errors
/// The files cannot be read. The inner error says why the token is not valid.
pub fn check(
    folder: &Folder,
    now: u64,
    id: &str,
    secret: &[u8],
) -> Result<Result<(), BadToken>, TlsError> {
    Ok(read(folder, now)?.usable(now, id, secret).map(|_| ()))
}

/// Takes one use of a token, while the lock is held.
///
/// # Errors
/// The files cannot be read or written. Inside: why the token is not valid.
pub fn redeem(
    folder: &Folder,
    lock: &Lock,
    now: u64,
    id: &str,
    secret: &[u8],
) -> Result<Result<(), BadToken>, TlsError> {
    let mut all = read(folder, now)?;
    match all.usable(now, id, secret) {
        Ok(record) => record.uses_left -= 1,
        Err(why) => return Ok(Err(why)),
    }
    folder.write(lock, FILE, &all)?;
    Ok(Ok(()))
}

impl Tokens {
    fn usable(&mut self, now: u64, id: &str, secret: &[u8]) -> Result<&mut Record, BadToken> {
        let record = self.tokens.iter_mut().find(|record| record.id == id);
        let record = record.ok_or(BadToken::Unknown)?;
        let kept = unhex(&record.secret_sha256).and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        // A peer that does not know the secret learns nothing else about the token.
        if !kept.is_some_and(|kept| equal_hashes(&kept, &hash_secret(secret))) {
            return Err(BadToken::Unknown);
        }
        if now > record.expires {
            return Err(BadToken::Expired);
        }
        if record.uses_left == 0 {
            return Err(BadToken::Used);
        }
        Ok(record)
    }
}

/// Withdraws a token while the lock is held: nodes that joined with it may not use it again.
///
/// # Errors
/// The files cannot be read or written.
pub fn withdraw(folder: &Folder, lock: &Lock, now: u64, id: &str) -> Result<(), TlsError> {
    let mut all = read(folder, now)?;
    all.tokens.retain(|record| record.id != id);
    folder.write(lock, FILE, &all)
}

fn read(folder: &Folder, now: u64) -> Result<Tokens, TlsError> {
    let mut all: Tokens = folder.read(FILE)?.unwrap_or_default();
    all.tokens.retain(|record| now <= record.expires.saturating_add(REMEMBERED_FOR.as_secs()));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_until_its_last_second_is_over() {
        let secret_sha256 = hex(&hash_secret(b"secret"));
        let record = Record { id: "a".into(), secret_sha256, expires: 100, uses_left: 1 };
        let mut tokens = Tokens { tokens: vec![record] };
        let mut at = |now| tokens.usable(now, "a", b"secret").err();
        assert_eq!([100, 101].map(&mut at), [None, Some(BadToken::Expired)]);
    }
}
