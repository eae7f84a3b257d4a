#![doc = include_str!("../README.md")]

pub mod check;
pub mod keeper;
pub mod late;
pub mod redlock;
pub mod waiters;
