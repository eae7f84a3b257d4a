#![doc = include_str!("../README.md")]

mod backend;
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
pub use config::PostgresConfig;
