//! Locks of all kinds, kept in a queue in a table.

mod backend;
mod claim;
mod client;
mod doorbells;
mod inspect;
mod local_claims;
mod presence;
mod renewal_clock;
mod renewals;

pub(crate) use backend::QueueBackend;
