//! Locks that are session-level advisory locks of the server, each held by a session of its own.
//!
//! An advisory lock lives as long as the session that owns it, and the server ends a session that was
//! silent for the claim's ttl. So each claim has its own session, and a claim that is not renewed
//! leaves nothing behind.

mod backend;
mod claim;
mod client;
mod comment;
mod inspect;
mod key;
mod session;

pub(crate) use backend::AdvisoryBackend;
