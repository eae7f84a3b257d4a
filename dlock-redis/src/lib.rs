#![doc = include_str!("../README.md")]

mod backend;
mod breaker;
mod claim;
mod config;
mod connection;
mod dial;
mod error;
mod inspect;
mod keys;
mod line;
mod listen;
mod redlock;
mod renewal;
mod script;
mod server;

pub use backend::{DRIVER, RedisBackend};
pub use config::{Dialect, RedisConfig};
