//! One server, or what stands for it: what it can do wrong, how it is found, and whom it lets in.

#[path = "../common/mod.rs"]
mod common;
mod faults;
mod moves;
mod proxies;
mod reach;
mod rights;
