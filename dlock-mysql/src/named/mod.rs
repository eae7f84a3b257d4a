//! Locks that are named locks of the server (`GET_LOCK`), each held by a session of its own.
//!
//! A named lock lives as long as the session that owns it, and the server ends a session that was
//! silent for the claim's ttl. So each claim has its own session, and the session's silence is
//! bounded by the claim's ttl. A claim that is not renewed leaves nothing behind.

mod backend;
mod claim;
mod client;
mod comment;
mod inspect;
mod watch;

pub(crate) use backend::NamedBackend;
