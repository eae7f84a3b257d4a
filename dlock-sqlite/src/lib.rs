#![doc = include_str!("../README.md")]

mod backend;
mod bell;
mod check_in;
mod claim;
mod client;
mod config;
mod connection;
mod error;
#[cfg_attr(not(unix), path = "files/any.rs")]
mod files;
#[cfg_attr(not(any(target_os = "linux", target_os = "android")), path = "gate/none.rs")]
mod gate;
mod host;
mod inspect;
mod keys;
mod queue;

pub use backend::{DRIVER, SqliteBackend};
pub use check_in::CheckIn;
pub use config::SqliteConfig;
