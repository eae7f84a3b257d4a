#![doc = include_str!("../README.md")]

mod backend;
mod bell;
mod claim;
mod clock;
mod config;
mod connection;
mod error;
mod host;
mod inspect;
mod keys;
mod queue;
mod schema;
mod thread;

pub use backend::{DRIVER, SqliteBackend};
pub use config::SqliteConfig;
