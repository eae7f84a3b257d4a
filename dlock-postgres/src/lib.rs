#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod advisory;
mod backend;
mod check_in;
mod config;
mod connection;
mod error;
mod keys;
mod queue;
mod session;
mod sql;

pub use backend::{DRIVER, PostgresBackend};
pub use check_in::CheckIn;
pub use config::PostgresConfig;
