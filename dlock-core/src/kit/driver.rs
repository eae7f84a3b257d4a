//! Connecting a backend by URL.

use std::{fmt, pin::Pin};

use super::StoreUrl;
use crate::{contract::Store, model::Result};

/// The entry point of a driver: the URL schemes that it handles and its connect function. Each
/// driver crate has a constant of this type.
#[derive(Clone, Copy)]
pub struct Driver {
    /// Schemes of the URLs that the driver handles.
    pub schemes: &'static [&'static str],
    /// Connects to the store of a URL. Must reject unknown parameters with [`StoreUrl::allow`].
    pub connect: fn(StoreUrl) -> ConnectFuture,
}

/// Future of [`Driver::connect`].
pub type ConnectFuture = Pin<Box<dyn Future<Output = Result<Store>> + Send>>;

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Driver").field(&self.schemes).finish()
    }
}
