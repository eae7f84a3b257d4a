//! How a backend is connected by URL.

use std::{fmt, pin::Pin};

use super::{Result, Store, StoreUrl};

/// How a backend says what URLs it connects: a constant of each backend crate.
#[derive(Clone, Copy)]
pub struct Driver {
    /// The schemes of its URLs.
    pub schemes: &'static [&'static str],
    /// Connects. Must refuse parameters it does not know with [`StoreUrl::allow`].
    pub connect: fn(StoreUrl) -> Connecting,
}

/// A connection being made.
pub type Connecting = Pin<Box<dyn Future<Output = Result<Store>> + Send>>;

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Driver").field(&self.schemes).finish()
    }
}
