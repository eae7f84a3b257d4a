#![doc = include_str!("../README.md")]

pub mod check;
pub mod late;
pub mod redlock;
