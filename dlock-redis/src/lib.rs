#![doc = include_str!("../README.md")]

mod backend;
mod claim;
mod client;
mod config;
mod connection;
mod error;
mod inspect;
mod keys;
mod scripts;
mod wake;

pub use backend::{DRIVER, RedisBackend};
pub use config::{Dialect, RedisConfig};
