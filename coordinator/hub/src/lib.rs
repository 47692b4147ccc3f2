//! Models by name: what a name means, where its files come from, and what of them lies here.
//!
//! - [`name`] reads names: `hf:user/repo:Q4_K_M`, `ollama:llama3.3:70b`, addresses, paths.
//! - [`settings`] is what the operator says: folders, the hub's address, the token, whether there is a network.
//! - [`client`] asks other hosts: what it sends to whom, and which addresses it may reach, is decided there alone
//!   ([`guard`]).
//! - [`huggingface`], [`registry`] and [`address`] resolve a name to files with sizes and hashes; [`choice`] picks the files
//!   of one quantisation.
//! - [`stores`] finds files that other programs have downloaded.
//! - [`folder`] is a folder of models that the operator fills.
//! - [`lock`] is `models.lock`: what each name was resolved to.
//! - [`own`] is brigade's own folder: the only place where anything is written or deleted. [`download`] fills it, and
//!   [`heads`] with beginnings of files, for who wants to know about a model without its weights.
//! - [`ranges`] reads stretches of files, for workers that need a part of a model; [`remote`] is a model that has none of its
//!   weights here.
//! - [`resolver`] joins them: a name in, a file that can be opened out. [`shelf`] lists, removes and prunes.

pub mod address;
pub mod choice;
pub mod client;
pub mod download;
pub mod error;
pub mod folder;
pub mod guard;
pub mod hash;
pub mod heads;
pub mod huggingface;
pub mod lock;
pub mod name;
pub mod own;
pub mod part;
pub mod ranges;
pub mod registry;
pub mod remote;
pub mod resolver;
pub mod settings;
pub mod shelf;
pub mod stores;

pub use error::HubError;
