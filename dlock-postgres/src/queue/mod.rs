//! Locks of all kinds, kept in a queue in a table.

mod backend;
mod claim;
mod client;
mod inspect;
mod wake;

pub(crate) use backend::QueueBackend;
