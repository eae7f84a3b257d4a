#![doc = include_str!("../README.md")]

mod backend;
mod claim;
mod config;
mod error;
mod table;

pub use backend::{DRIVER, FolderBackend};
pub use config::FolderConfig;
