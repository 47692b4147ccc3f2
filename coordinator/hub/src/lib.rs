//! Models by name: resolves names to files, downloads files, and keeps track of those on this machine.
//!
//! - [`name`] reads names: `hf:user/repo:Q4_K_M`, `ollama:llama3.3:70b`, addresses, paths.
//! - [`settings`] are the operator's: folders, the hub's address, the token, whether the network may be used.
//! - [`client`] talks to other hosts. It alone decides which token goes where, and which addresses may be reached
//!   ([`guard`]).
//! - [`huggingface`], [`registry`] and [`address`] resolve a name to files with sizes and hashes; [`choice`] picks the files
//!   of one quantisation.
//! - [`stores`] finds files that other programs have downloaded.
//! - [`folder`] is a folder of models that the operator fills.
//! - [`lock`] is `models.lock`: the commit, sizes and hashes of each name.
//! - [`own_folder`] is brigade's own folder: the only place where anything is written or deleted. [`download`] fills it.
//!   [`heads`] fetches beginnings of files only, to plan or inspect a model without its weights.
//! - [`ranges`] reads stretches of files, for workers that need a part of a model; [`remote`] is a model that has none of its
//!   weights here.
//! - [`pulls`] are models that requests have fetched, by names that the operator opens with a [`pattern`].
//! - [`resolver`] joins them: a name in, a file that can be opened out. [`local_models`] lists, removes and prunes.

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
pub mod local_models;
pub mod lock;
pub mod name;
pub mod own_folder;
pub mod part;
pub mod pattern;
pub mod pulls;
pub mod ranges;
pub mod registry;
pub mod remote;
pub mod resolver;
pub mod settings;
pub mod stores;

pub use error::HubError;
