//! The registry of drivers, which connects to the store of a URL.

use super::Locks;
use crate::{
    contract::Store,
    kit::{ConnectFuture, Driver, StoreUrl},
    model::{Error, Result, Who},
    stores::memory,
};

/// The drivers that a program can connect with, by the scheme of a URL. A new registry has the
/// driver of the memory store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
/// use dlock_core::{Registry, memory};
/// let registry = Registry::new().with(memory::DRIVER); // a store of your own goes here
/// let locks = registry.connect("memory:jobs").await?;
/// # drop(locks);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Registry {
    /// In order of precedence.
    drivers: Vec<Driver>,
    /// Schemes of drivers that are not compiled in, each with the feature that enables it.
    disabled: Vec<(&'static str, &'static str)>,
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    /// Creates a registry with the driver of the memory store.
    pub fn new() -> Self {
        Self { drivers: vec![memory::DRIVER], disabled: Vec::new() }
    }

    /// Adds a driver. It takes precedence over earlier drivers with the same scheme.
    #[must_use]
    pub fn with(mut self, driver: Driver) -> Self {
        self.drivers.insert(0, driver);
        self
    }

    /// Adds a scheme whose driver is not compiled in, and the feature that enables it. The error of
    /// [`connect`](Self::connect) for this scheme names the feature.
    #[must_use]
    pub fn without(mut self, scheme: &'static str, feature: &'static str) -> Self {
        self.disabled.push((scheme, feature));
        self
    }

    /// Returns the schemes of all drivers, in alphabetical order.
    pub fn schemes(&self) -> Vec<&'static str> {
        let mut schemes: Vec<_> = self.drivers.iter().flat_map(|driver| driver.schemes).copied().collect();
        schemes.sort_unstable();
        schemes.dedup();
        schemes
    }

    /// Connects to the store of a URL. Every store has the parameter `who`, which sets the client's
    /// label as [`Locks::with_who`] does. The driver's timeout limits the time of the call.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the URL is not valid, or if its scheme or a parameter is
    /// unknown. The store's error if the store is unreachable or refuses.
    ///
    /// # Cancel safety
    /// Safe. Dropping the future ends the attempt.
    pub async fn connect(&self, url: &str) -> Result<Locks> {
        let (store, who) = self.open_with_label(url).await?;
        let locks = Locks::new(store);
        Ok(match who {
            Some(who) => locks.with_who(who),
            None => locks,
        })
    }

    /// Connects as [`connect`](Self::connect) does, with the client [on a thread of its
    /// own](Locks::on_own_thread).
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and [`Error::Unavailable`] if the system cannot start a
    /// thread.
    ///
    /// # Cancel safety
    /// Safe. Dropping the future ends the attempt and the thread.
    pub async fn connect_on_own_thread(&self, url: &str) -> Result<Locks> {
        let (registry, url) = (self.clone(), url.to_owned());
        Locks::on_own_thread(async move { registry.connect(&url).await }).await
    }

    /// Connects to the store of a URL without a client. This is for a store that becomes part of
    /// another, such as a member of a [`RedLock`](crate::RedLock). The parameter `who` has no effect,
    /// because a label belongs to a client.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// Safe. Dropping the future ends the attempt.
    pub async fn open(&self, url: &str) -> Result<Store> {
        self.open_with_label(url).await.map(|(store, _)| store)
    }

    /// Returns a future that connects to the store of a URL, as [`open`](Self::open) does. Also
    /// returns the store that connects when it is first used, if the driver [has
    /// it](Driver::connecting_later). Both together are a member for [`connect_majority`].
    ///
    /// # Errors
    /// [`Error::InvalidConfig`], as [`connect`](Self::connect).
    ///
    /// [`connect_majority`]: crate::driver::connect_majority
    pub fn open_or_later(&self, url: &str) -> Result<(ConnectFuture, Option<Store>)> {
        let (url, _) = parse(url)?;
        let driver = self.driver(&url)?;
        let later = driver.connect_later.map_or(Ok(None), |connect_later| connect_later(url.clone()))?;
        Ok((driver.connect(url), later))
    }

    async fn open_with_label(&self, url: &str) -> Result<(Store, Option<Who>)> {
        let (url, who) = parse(url)?;
        Ok((self.driver(&url)?.connect(url).await?, who))
    }

    fn driver(&self, url: &StoreUrl) -> Result<Driver> {
        let has_scheme = |driver: &&Driver| driver.schemes.contains(&url.scheme());
        if let Some(driver) = self.drivers.iter().find(has_scheme) {
            return Ok(*driver);
        }
        let known = self.schemes().join(", ");
        let reason = match self.disabled.iter().find(|(scheme, _)| *scheme == url.scheme()) {
            Some((scheme, feature)) => {
                format!(
                    "`{scheme}:` is not compiled in; build with feature `{feature}`, or use one of: {known}"
                )
            }
            None => format!("`{}:` is no store's scheme; there are: {known}", url.scheme()),
        };
        Err(Error::InvalidConfig { reason })
    }
}

/// Parses a URL, and takes the label out of it.
fn parse(url: &str) -> Result<(StoreUrl, Option<Who>)> {
    let mut url: StoreUrl = url.parse()?;
    let invalid = |error| Error::InvalidConfig { reason: format!("`who` of a store's URL: {error}") };
    let who = url.take_param("who").map(Who::new).transpose().map_err(invalid)?;
    Ok((url, who))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unknown_scheme_is_refused_and_the_known_schemes_are_named() {
        let error = Registry::new().connect("rediss://h").await.unwrap_err().to_string();
        assert_eq!(error, "`rediss:` is no store's scheme; there are: memory");
    }

    #[tokio::test]
    async fn a_scheme_that_is_not_compiled_in_names_its_feature() {
        let registry = Registry::new().without("zk", "zk");
        let error = registry.connect("zk://h").await.unwrap_err().to_string();
        assert_eq!(error, "`zk:` is not compiled in; build with feature `zk`, or use one of: memory");
    }

    #[tokio::test]
    async fn a_driver_that_is_added_takes_precedence_over_an_older_one_of_its_scheme() {
        async fn connect(url: StoreUrl) -> Result<Store> {
            Err(Error::InvalidConfig { reason: format!("mine got {}", url.scheme()) })
        }
        let mine = Driver::new(&["memory", "mine"], |url| Box::pin(connect(url)));
        assert!(format!("{mine:?}").contains("mine"), "{mine:?}");
        let registry = Registry::new().with(mine);
        assert_eq!(registry.schemes(), ["memory", "mine"]);
        for scheme in ["memory", "mine"] {
            let error = registry.connect(&format!("{scheme}:x")).await.unwrap_err().to_string();
            assert!(error.ends_with(&format!("mine got {scheme}")), "{error}");
        }
    }

    #[tokio::test]
    async fn an_unknown_parameter_is_refused() {
        let error = Registry::new().connect("memory:?tls=on").await.unwrap_err().to_string();
        assert_eq!(error, "`memory:` has an unknown parameter `tls`; there are none");
    }

    #[tokio::test]
    async fn the_parameter_who_of_a_url_sets_the_label_of_holders() {
        let locks = Registry::new().connect("memory:who?who=worker%203").await.unwrap();
        let held = locks.mutex("x").lock().await.unwrap();
        let labelled = locks.mutex("y").lock().label("the nightly run").await.unwrap();
        for (name, who) in [("x", "worker 3"), ("y", "the nightly run")] {
            let state = locks.inspect(name).await.unwrap().expect("held");
            assert_eq!(state.holders[0].who.as_deref(), Some(who));
        }
        drop((held, labelled));
        let error = Registry::new().connect("memory:?who=a%0Ab").await.unwrap_err().to_string();
        assert_eq!(error, "`who` of a store's URL: a label has a control character at byte 1");
    }

    #[tokio::test]
    async fn memory_stores_of_one_name_are_one_store() {
        let registry = Registry::new();
        let (a, b) =
            (registry.connect("memory:one").await.unwrap(), registry.connect("memory:one").await.unwrap());
        let other = registry.connect("memory:other").await.unwrap();
        let guard = a.mutex("x").lock().await.unwrap();
        assert!(b.mutex("x").try_lock().await.unwrap().is_none(), "one name connected to two stores");
        assert!(other.mutex("x").try_lock().await.unwrap().is_some(), "two names connected to one store");
        drop(guard);
    }
}
