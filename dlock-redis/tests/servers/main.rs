//! Several servers: those that belong together, and independent ones of which a majority counts.

#[path = "../common/mod.rs"]
mod common;
mod redlock;
mod redlock_foreign;
mod replicas;
mod sentinel_login;
mod topologies;
