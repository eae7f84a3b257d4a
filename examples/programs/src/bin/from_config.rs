//! Stores from a file, so that locks are in memory in a test, and in Redis in production:
//! `cargo run --bin from_config -- dlock.toml`, with a file such as
//!
//! ```toml
//! default = "local"
//!
//! [stores.local]
//! url = "sqlite:locks.db"
//!
//! [stores.shared]
//! url = "redis://:${REDIS_PASSWORD}@redis.internal"
//! ttl = "20s"
//!
//! [[rules]]
//! lock = "billing/*"
//! store = "shared"
//! wait = "5s"
//! ```

use std::env;

use dlock::config::Config;

/// Configuration if no file is given.
const DEFAULT_CONFIG: &str = r#"
    default = "local"
    [stores.local]
    url = "memory:"
    [stores.shared]
    url = "memory:programs"
    [[rules]]
    lock = "billing/*"
    store = "shared"
    wait = "5s"
"#;

#[tokio::main(flavor = "current_thread")]
async fn main() -> dlock::Result<()> {
    let config = match env::args_os().nth(1) {
        Some(file) => Config::from_file(file)?,
        None => Config::from_toml(DEFAULT_CONFIG)?,
    };
    // One client for each store of the configuration.
    let stores = config.connect(&dlock::registry()).await?;
    for name in ["billing/42", "cache/42"] {
        // The rest of the program does not depend on the choice of the store.
        let guard = stores.mutex(name).lock().await?;
        println!("{name} is locked in the store `{}`", config.store_of(name));
        guard.release().await?;
    }
    stores.close().await;
    Ok(())
}
