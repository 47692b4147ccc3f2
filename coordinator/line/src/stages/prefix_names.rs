//! Names of records of prefixes on the workers: hashes with a salt that only this coordinator has. Workers see
//! nothing else of a prompt, so no worker can test whether a prompt was used.
//!
//! The name of a page stands for its tokens, for all tokens before it, and for the namespace that may reuse them. The
//! name of a position stands for the last full page before it and for the tokens behind that.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use brigade_engine::kernels::KV_PAGE;
use ring::rand::{SecureRandom, SystemRandom};

/// A record's name, a keyed hash.
pub type Key = [u8; 16];

/// The file of the salt, in the data folder.
const SALT_FILE: &str = "prefix-salt";

/// Domain separators: the kind of thing that is hashed.
const ROOT: &[u8] = b"root";
const PAGE: &[u8] = b"page";
const TAIL: &[u8] = b"tail";
const REALM: &[u8] = b"realm";
const OWNER: &[u8] = b"owner";

/// The secret key of the hashes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Salt([u8; blake3::KEY_LEN]);

impl std::fmt::Debug for Salt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Salt(..)")
    }
}

impl Salt {
    /// The salt in a data folder; makes a new one where there is none. Blocks.
    ///
    /// # Errors
    /// The file cannot be read or written, or is damaged.
    pub fn kept_in(folder: &Path) -> io::Result<Self> {
        let path = folder.join(SALT_FILE);
        match fs::read(&path) {
            Ok(bytes) => {
                let salt = bytes.as_slice().try_into();
                let damaged = || {
                    format!("{} is damaged: remove it, and records are made anew", path.display())
                };
                return salt.map(Self).map_err(|_| io::Error::other(damaged()));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        fs::create_dir_all(folder)?;
        let mut salt = [0; blake3::KEY_LEN];
        let no_randomness = |_| io::Error::other("the system has no randomness");
        SystemRandom::new().fill(&mut salt).map_err(no_randomness)?;
        let draft = folder.join(format!("{SALT_FILE}-{}", std::process::id()));
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        file.write_all(&salt)?;
        file.sync_data()?;
        // Another process may start beside this one: the first salt stays.
        let linked = fs::hard_link(&draft, &path);
        fs::remove_file(&draft)?;
        match linked {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Self::kept_in(folder),
            linked => linked.map(|()| Self(salt)),
        }
    }

    /// A salt for tests.
    #[cfg(test)]
    pub fn of(byte: u8) -> Self {
        Self([byte; blake3::KEY_LEN])
    }

    fn name(&self, of: &[u8], parts: [&[u8]; 2]) -> Key {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(of);
        parts.iter().for_each(|part| {
            hasher.update(part);
        });
        let mut name = Key::default();
        name.copy_from_slice(&hasher.finalize().as_bytes()[..size_of::<Key>()]);
        name
    }

    /// Stands for all that is named with this salt.
    pub fn realm(&self) -> Key {
        self.name(REALM, [&[], &[]])
    }

    /// Stands for an owner.
    pub fn owner(&self, number: u64) -> Key {
        self.name(OWNER, [&number.to_le_bytes(), &[]])
    }
}

/// The names of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    salt: Salt,
    tokens: Vec<u32>,
    /// The names for 0, 1, 2 ... full pages.
    chain: Vec<Key>,
    /// The hash of the owner.
    pub owner: Key,
}

impl Names {
    /// Names of `tokens` in a namespace.
    pub fn of(salt: Salt, space: &[u8], owner: u64, tokens: Vec<u32>) -> Self {
        let mut chain = vec![salt.name(ROOT, [space, &[]])];
        for page in tokens.chunks_exact(KV_PAGE) {
            let last = *chain.last().unwrap_or(&Key::default());
            chain.push(salt.name(PAGE, [&last, &bytes(page)]));
        }
        Self { salt, tokens, chain, owner: salt.owner(owner) }
    }

    /// The prompt's tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The hash that stands for all records of this salt.
    pub fn realm(&self) -> Key {
        self.salt.realm()
    }

    /// The names for 0, 1, 2 ... full pages up to position `len`.
    pub fn chain(&self, len: u32) -> &[Key] {
        &self.chain[..=len as usize / KV_PAGE]
    }

    /// The names for all full pages.
    pub fn whole_chain(&self) -> &[Key] {
        &self.chain
    }

    /// Stands for the tokens between the last full page and position `len`.
    pub fn tail(&self, len: u32) -> Key {
        let (full, len) = (len as usize / KV_PAGE, len as usize);
        self.salt.name(TAIL, [&self.chain[full], &bytes(&self.tokens[full * KV_PAGE..len])])
    }
}

fn bytes(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(salt: u8, space: &[u8], tokens: &[u32]) -> Names {
        Names::of(Salt::of(salt), space, 7, tokens.to_vec())
    }

    #[test]
    fn a_page_is_named_by_all_that_its_bits_depend_on_here() {
        let tokens: Vec<u32> = (0..200).collect();
        let this = names(1, b"a", &tokens);
        assert_eq!(
            (this.whole_chain().len(), this.chain(130).len(), this.chain(64).len()),
            (4, 3, 2)
        );
        let longer = names(1, b"a", &(0..300).collect::<Vec<_>>());
        assert_eq!(longer.chain(200), this.chain(200));
        assert_eq!((longer.tail(199), longer.tail(128)), (this.tail(199), this.tail(128)));
        assert_ne!(this.tail(198), this.tail(199));
        let mut other = tokens.clone();
        other[3] = 9;
        for other in [names(2, b"a", &tokens), names(1, b"b", &tokens), names(1, b"a", &other)] {
            assert!(other.chain(192).iter().skip(1).all(|key| !this.chain(192).contains(key)));
            assert_ne!(other.tail(199), this.tail(199));
        }
        assert_ne!(Salt::of(1).owner(1), Salt::of(1).owner(2));
        assert_ne!(Salt::of(1).realm(), Salt::of(2).realm());
    }

    #[test]
    fn the_salt_is_made_once_and_only_its_owner_reads_it() {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("brigade-salt-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let salt = Salt::kept_in(&folder).unwrap();
        assert_eq!(Salt::kept_in(&folder).unwrap(), salt);
        let path = folder.join(SALT_FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::write(&path, "short").unwrap();
        assert!(Salt::kept_in(&folder).unwrap_err().to_string().contains("damaged"));
        fs::remove_dir_all(folder).unwrap();
    }
}
