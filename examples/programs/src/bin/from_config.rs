//! Stores from a file, so that a test has its locks in memory and production in Redis:
//! `cargo run --bin from_config -- dlock.toml`, with a file such as
//!
//! ```toml
//! default = "here"
//!
//! [stores.here]
//! url = "sqlite:locks.db"
//!
//! [stores.all]
//! url = "redis://:${REDIS_PASSWORD}@redis.internal"
//! ttl = "20s"
//!
//! [[rules]]
//! lock = "billing/*"
//! store = "all"
//! wait = "5s"
//! ```

use std::env;

use dlock::config::Config;

/// Without a file.
const TEXT: &str = r#"
    default = "here"
    [stores.here]
    url = "memory:"
    [stores.all]
    url = "memory:programs"
    [[rules]]
    lock = "billing/*"
    store = "all"
    wait = "5s"
"#;

#[tokio::main(flavor = "current_thread")]
async fn main() -> dlock::Result<()> {
    let config = match env::args_os().nth(1) {
        Some(file) => Config::from_file(file)?,
        None => Config::from_toml(TEXT)?,
    };
    // One client for each store that the file names.
    let stores = config.connect(&dlock::registry()).await?;
    for name in ["billing/42", "cache/42"] {
        // The rest of the program does not know which store it is.
        let guard = stores.of(name).mutex(name).lock().await?;
        println!("{name} is locked in the store `{}`", config.store_of(name));
        guard.release().await?;
    }
    stores.close().await;
    Ok(())
}
