//! One server, or a proxy in its place: what it can do wrong, how clients find it, and which users it lets in.

#[path = "../common/mod.rs"]
mod common;
mod faults;
mod moves;
mod proxies;
mod reach;
mod rights;
