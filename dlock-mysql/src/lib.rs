#![doc = include_str!("../README.md")]

mod backend;
mod claim;
mod client;
mod config;
mod connection;
mod error;
mod inspect;
mod keys;
mod named;
mod sql;

pub use backend::{DRIVER, MysqlBackend};
pub use config::MysqlConfig;
