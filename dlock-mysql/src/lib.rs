#![doc = include_str!("../README.md")]

mod backend;
mod config;
mod connection;
mod error;
mod keys;
mod named;
mod queue;
mod session;
mod sql;

pub use backend::{DRIVER, MysqlBackend};
pub use config::MysqlConfig;
