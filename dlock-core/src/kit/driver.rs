//! Connecting a backend by URL.

use std::{fmt, pin::Pin};

use super::StoreUrl;
use crate::{contract::Store, model::Result};

/// The entry point of a driver: the URL schemes that it handles, and its connect function. Each
/// driver crate has a constant of this type.
///
/// # Examples
///
/// A driver whose stores are in [memory](crate::memory):
///
/// ```
/// use std::sync::Arc;
///
/// use dlock_core::{
///     Result,
///     driver::{Driver, Store, StoreUrl},
///     memory::MemoryBackend,
/// };
///
/// pub const DRIVER: Driver = Driver::new(&["table"], |url| Box::pin(connect(url)));
///
/// async fn connect(url: StoreUrl) -> Result<Store> {
///     url.allow(&[])?;
///     Ok(Store::new(Arc::new(MemoryBackend::new())))
/// }
/// ```
#[derive(Clone, Copy)]
pub struct Driver {
    pub(crate) schemes: &'static [&'static str],
    pub(crate) connect: fn(StoreUrl) -> ConnectFuture,
    pub(crate) connect_later: Option<ConnectLater>,
}

impl Driver {
    /// Creates the driver of URLs with these schemes. `connect` connects to the store of a URL, and
    /// must reject unknown parameters with [`StoreUrl::allow`].
    pub const fn new(schemes: &'static [&'static str], connect: fn(StoreUrl) -> ConnectFuture) -> Self {
        Self { schemes, connect, connect_later: None }
    }

    /// Adds a function that returns the store of a URL without any I/O. The store connects when it
    /// is first used. `None` means that this is not possible for the URL.
    ///
    /// A [`RedLock`](crate::RedLock) of a configuration file then connects while a minority of its
    /// members is unreachable.
    #[must_use]
    pub const fn connecting_later(mut self, connect_later: ConnectLater) -> Self {
        self.connect_later = Some(connect_later);
        self
    }

    /// Connects to the store of a URL with one of the [schemes](Self::schemes).
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Cancel safety
    /// Safe. Dropping the future ends the attempt.
    pub fn connect(&self, url: StoreUrl) -> ConnectFuture {
        (self.connect)(url)
    }

    /// Returns the schemes of the URLs that the driver handles.
    pub const fn schemes(&self) -> &'static [&'static str] {
        self.schemes
    }
}

/// Function of [`Driver::connecting_later`].
pub type ConnectLater = fn(StoreUrl) -> Result<Option<Store>>;

/// Future that connects to a store.
pub type ConnectFuture = Pin<Box<dyn Future<Output = Result<Store>> + Send>>;

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Driver").field(&self.schemes).finish()
    }
}
