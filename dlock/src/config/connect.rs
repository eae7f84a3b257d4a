//! Connecting to the stores of a configuration.

use std::{collections::BTreeMap, future::ready, time::Duration};

use dlock_core::{
    Error, LockOptions, Locks, RedLock, Registry, Result, Who,
    driver::{ConnectFuture, Store, StoreUrl, connect_majority},
};

use super::{Config, NamedStore, Rule, Source, Stores};

impl Config {
    /// Connects to every store. A minority of the members of a redlock may be unreachable, if they
    /// are Redis servers. Such a member connects when it is first used.
    ///
    /// # Errors
    /// Those of [`Registry::connect`], and [`Error::InvalidConfig`] for options that contradict
    /// each other.
    ///
    /// # Cancel safety
    /// Safe: dropping the future ends the attempt.
    pub async fn connect(&self, registry: &Registry) -> Result<Stores> {
        let mut opened: BTreeMap<String, Store> = BTreeMap::new();
        let mut stores: BTreeMap<String, (Locks, LockOptions)> = BTreeMap::new();
        for (name, store) in &self.stores {
            if let Source::Majority { members, member_timeout } = &store.source {
                let opened_members = self.open_members(registry, members, &opened).await?;
                let locks = store.majority(opened_members.iter().cloned(), *member_timeout)?;
                opened.extend(members.iter().cloned().zip(opened_members));
                stores.insert(name.clone(), store.with_options(locks)?);
            }
        }
        for (name, store) in &self.stores {
            if let Source::Url(url) = &store.source {
                // A member shares one client with the redlock.
                let locks = match opened.get(name) {
                    Some(member) => {
                        label_of(url).into_iter().fold(Locks::new(member.clone()), Locks::with_who)
                    }
                    None => store.with_place(registry.connect(url).await)?,
                };
                stores.insert(name.clone(), store.with_options(locks)?);
            }
        }
        let rules = self.rules.iter().map(|rule| {
            let (locks, options) = &stores[&rule.store];
            Ok((rule.glob.clone(), rule.with_options(locks, options)?))
        });
        let rules = rules.collect::<Result<_>>()?;
        let stores = stores.into_iter().map(|(name, (locks, _))| (name, locks)).collect();
        Ok(Stores { default: self.default.clone(), stores, rules })
    }

    /// Connects only to the store of one lock, with the options of its rule.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// Safe: dropping the future ends the attempt.
    pub async fn connect_for(&self, registry: &Registry, lock: &str) -> Result<Locks> {
        let (locks, options) = self.connected(registry, self.store_of(lock)).await?;
        match self.rule(lock) {
            Some(rule) => rule.with_options(&locks, &options),
            None => Ok(locks),
        }
    }

    /// Connects only to one store.
    ///
    /// [`Locks::on_own_thread`] runs this method and [`connect_for`](Self::connect_for) on a thread
    /// of their own. The members of a redlock then share that thread:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock::Result<()> {
    /// use dlock::{Locks, config::Config};
    /// let config = Config::from_toml("stores.main.url = 'memory:'")?;
    /// let connecting = async move { config.connect_store(&dlock::registry(), "main").await };
    /// let locks = Locks::on_own_thread(connecting).await?;
    /// # locks.close().await;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and [`Error::InvalidConfig`] if there is no such store.
    ///
    /// # Cancel safety
    /// Safe: dropping the future ends the attempt.
    pub async fn connect_store(&self, registry: &Registry, store: &str) -> Result<Locks> {
        self.connected(registry, store).await.map(|(locks, _)| locks)
    }

    async fn connected(&self, registry: &Registry, name: &str) -> Result<(Locks, LockOptions)> {
        let unknown = || Error::InvalidConfig {
            reason: format!(
                "there is no store `{name}`; there are: {}",
                self.stores().collect::<Vec<_>>().join(", ")
            ),
        };
        let store = self.stores.get(name).ok_or_else(unknown)?;
        let locks = match &store.source {
            Source::Url(url) => store.with_place(registry.connect(url).await)?,
            Source::Majority { members, member_timeout } => {
                let members = self.open_members(registry, members, &BTreeMap::new()).await?;
                store.majority(members, *member_timeout)?
            }
        };
        store.with_options(locks)
    }

    /// Connects to the members of a redlock, except those that are open already.
    async fn open_members(
        &self,
        registry: &Registry,
        names: &[String],
        opened: &BTreeMap<String, Store>,
    ) -> Result<Vec<Store>> {
        let members = names.iter().map(|name| {
            let member = &self.stores[name];
            if let Some(opened) = opened.get(name) {
                return Ok((Box::pin(ready(Ok(opened.clone()))) as ConnectFuture, None));
            }
            // `Text::read` has refused other members.
            let Source::Url(url) = &member.source else { unreachable!("`{name}` is no URL") };
            let (connecting, later) = member.with_place(registry.open_or_later(url))?;
            let place = member.place.clone();
            let connecting = async move { connecting.await.map_err(|error| with_place(&place, error)) };
            Ok((Box::pin(connecting) as ConnectFuture, later))
        });
        connect_majority(members.collect::<Result<_>>()?).await
    }
}

/// Returns the label of a URL, or `None` if the URL has no valid label.
fn label_of(url: &str) -> Option<Who> {
    url.parse::<StoreUrl>().ok()?.param("who").map(Who::new)?.ok()
}

impl NamedStore {
    fn majority(&self, members: impl IntoIterator<Item = Store>, limit: Option<Duration>) -> Result<Locks> {
        let lock = self.with_place(RedLock::new(members))?;
        Ok(Locks::new(limit.into_iter().fold(lock, RedLock::member_timeout).into_store()))
    }

    fn with_options(&self, locks: Locks) -> Result<(Locks, LockOptions)> {
        let options = self.options.over(LockOptions::new());
        self.with_place(options.validate(locks.info()))?;
        Ok((self.options.apply(locks, options.clone()), options))
    }

    fn with_place<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| with_place(&self.place, error))
    }
}

impl Rule {
    /// Returns the client with the options of its store, overridden by those of the rule.
    fn with_options(&self, locks: &Locks, options: &LockOptions) -> Result<Locks> {
        let options = self.options.over(options.clone());
        options.validate(locks.info()).map_err(|error| with_place(&self.place, error))?;
        Ok(self.options.apply(locks.clone(), options))
    }
}

/// Adds the place in the text to an error of the configuration, such as an option that the store
/// does not support. Other errors, such as an unreachable server, are not caused by the text.
fn with_place(place: &str, error: Error) -> Error {
    match error {
        Error::InvalidConfig { reason } | Error::InvalidOptions { reason } => {
            Error::InvalidConfig { reason: format!("{place}: {reason}") }
        }
        Error::Unsupported { store, what } => {
            Error::InvalidConfig { reason: format!("{place}: {store} cannot {what}") }
        }
        error => error,
    }
}
