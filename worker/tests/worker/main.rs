//! Workers as their coordinator sees them. All of it is one program, because compiling it costs more than running it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod ahead;
mod cache;
mod common;
mod control;
mod engine;
mod gathering;
mod hashing;
mod join;
mod lane;
mod loading;
mod moving;
mod snapshots;
