#![doc = include_str!("../README.md")]

mod backend;
mod claim;
mod client;
mod config;
mod connection;
mod error;
mod inspect;
mod keys;
mod queue;
mod session;
mod wake;

pub use backend::{DRIVER, EtcdBackend};
pub use config::EtcdConfig;
