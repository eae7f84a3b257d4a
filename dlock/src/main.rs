//! dlock.
fn main() {}
