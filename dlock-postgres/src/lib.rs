#![doc = include_str!("../README.md")]

mod backend;
mod check_in;
mod claim;
mod client;
mod config;
mod connection;
mod error;
mod inspect;
mod keys;
mod session;
mod sql;
mod wake;

pub use backend::{DRIVER, PostgresBackend};
pub use check_in::CheckIn;
pub use config::PostgresConfig;
