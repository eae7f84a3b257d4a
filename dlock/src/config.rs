//! Configuration by TOML: several named stores, and rules that say which lock is in which store. Feature `config`. Over the
//! usual length with its tests.
//!
//! ```toml
//! default = "main"                    # the store of locks that no rule names; may be left out if there is one store
//!
//! [stores.main]
//! url = "redis://app:${REDIS_PASSWORD}@localhost"   # `${…}`: from the environment, in any value
//! ttl = "20s"                         # defaults for all locks in it: ttl, lease, renew_every, wait
//!
//! [stores.local]
//! url = "sqlite:locks.db"
//!
//! [stores.quorum]
//! redlock = ["main", "local", "memory-of-this-process"]   # a majority of other stores of this file
//! member_timeout = "200ms"
//!
//! [stores.memory-of-this-process]
//! url = "memory:"
//!
//! [[rules]]                           # the first that matches counts
//! lock = "billing/*"                  # `*` any text, `?` one character
//! store = "quorum"
//! wait = "5s"
//! ```

use std::{collections::BTreeMap, fmt, time::Duration};

use dlock_core::{Error, LockOptions, Locks, RedLock, Registry, Result, driver::Store};
use serde::{Deserialize, Deserializer, de};
use toml::{Table, Value};
use wildmatch::WildMatch;

/// What a TOML text says. `Debug` shows no URL, since one may hold a password.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    default: Option<String>,
    stores: BTreeMap<String, NamedStore>,
    #[serde(default)]
    rules: Vec<Rule>,
}

/// A store: a URL, or a majority of others.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedStore {
    url: Option<String>,
    redlock: Option<Vec<String>>,
    member_timeout: Option<Span>,
    ttl: Option<Span>,
    lease: Option<Span>,
    renew_every: Option<Span>,
    wait: Option<Span>,
}

/// Which locks are where, and how they are held.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    lock: String,
    store: Option<String>,
    ttl: Option<Span>,
    lease: Option<Span>,
    renew_every: Option<Span>,
    wait: Option<Span>,
}

/// A duration as people write it: `20s`, `1m 30s`, `200ms`.
#[derive(Clone, Copy, Debug)]
struct Span(Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let span = humantime::parse_duration(&text);
        span.map(Self)
            .map_err(|_| de::Error::custom(format!("`{text}` is no duration; write for example `20s`")))
    }
}

/// The connected stores of a configuration. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Stores {
    default: String,
    stores: BTreeMap<String, Locks>,
    rules: Vec<(WildMatch, Locks)>,
}

impl Config {
    /// Reads a text, with `${…}` taken from the environment.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`], with what is wrong and what there is to choose from.
    pub fn from_toml(text: &str) -> Result<Self> {
        let mut table: Table = text.parse().map_err(|error: toml::de::Error| invalid(error.message()))?;
        table.iter_mut().try_for_each(|(_, value)| substitute(value))?;
        let config: Self = table.try_into().map_err(|error: toml::de::Error| invalid(error.message()))?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        let exists = |name: &String, who: &str| match self.stores.contains_key(name) {
            true => Ok(()),
            false => Err(invalid(&format!("{who} names the store `{name}`; there are: {}", self.known()))),
        };
        self.default_store()?;
        for (name, place) in &self.stores {
            match (&place.url, &place.redlock) {
                (Some(_), None) if place.member_timeout.is_some() => {
                    return Err(invalid(&format!("store `{name}` has a `member_timeout` and is no redlock")));
                }
                (Some(_), None) => {}
                (None, Some(members)) => {
                    for member in members {
                        exists(member, &format!("the redlock `{name}`"))?;
                        if self.stores[member].url.is_none() {
                            return Err(invalid(&format!(
                                "the redlock `{name}` has another, `{member}`, as a member"
                            )));
                        }
                    }
                }
                _ => return Err(invalid(&format!("store `{name}` must have either `url` or `redlock`"))),
            }
        }
        self.rules
            .iter()
            .filter_map(|rule| Some((rule, rule.store.as_ref()?)))
            .try_for_each(|(rule, store)| exists(store, &format!("the rule for `{}`", rule.lock)))
    }

    /// The names to choose from.
    fn known(&self) -> String {
        self.stores.keys().cloned().collect::<Vec<_>>().join(", ")
    }

    /// The name of the store of locks that no rule names.
    fn default_store(&self) -> Result<&String> {
        let only = || Some(self.stores.keys().next()?).filter(|_| self.stores.len() == 1);
        let default = self.default.as_ref().or_else(only);
        let default = default
            .ok_or_else(|| invalid("there is more than one store, or none: say which is the `default`"))?;
        let unknown =
            || invalid(&format!("`default` names the store `{default}`; there are: {}", self.known()));
        self.stores.contains_key(default).then_some(default).ok_or_else(unknown)
    }

    /// Connects to every store. The members of a redlock must all be there.
    ///
    /// # Errors
    /// Those of [`Registry::connect`], and [`Error::InvalidOptions`] for options that clash.
    ///
    /// # Cancel safety
    /// Safe: dropping the future ends the attempt.
    pub async fn connect(&self, registry: &Registry) -> Result<Stores> {
        let mut opened: BTreeMap<&String, Store> = BTreeMap::new();
        for (name, place) in &self.stores {
            if let Some(url) = &place.url {
                opened.insert(name, registry.open(url).await?);
            }
        }
        for (name, place) in &self.stores {
            if let Some(members) = &place.redlock {
                let lock = RedLock::new(members.iter().map(|member| opened[member].clone()))?;
                let limit = place.member_timeout.map(|Span(limit)| limit);
                opened.insert(name, limit.into_iter().fold(lock, RedLock::member_timeout).into_store());
            }
        }
        let mut stores = BTreeMap::new();
        for (name, store) in opened {
            let place = &self.stores[name];
            let options = LockOptions::new();
            let options = with(options, place.ttl, place.lease, place.renew_every, place.wait);
            options.validate(store.backend.info())?;
            stores.insert(name.clone(), (Locks::new(store).with_defaults(options), options));
        }
        let default = self.default_store()?.clone();
        let mut rules = Vec::with_capacity(self.rules.len());
        for rule in &self.rules {
            let (locks, options) = &stores[rule.store.as_ref().unwrap_or(&default)];
            let options = with(*options, rule.ttl, rule.lease, rule.renew_every, rule.wait);
            options.validate(locks.info())?;
            rules.push((WildMatch::new(&rule.lock), locks.clone().with_defaults(options)));
        }
        let stores = stores.into_iter().map(|(name, (locks, _))| (name, locks)).collect();
        Ok(Stores { default, stores, rules })
    }
}

impl Stores {
    /// The client for the lock `name`, with the options of its rule. The first rule that matches counts; without one it is
    /// the default store.
    pub fn of(&self, name: &str) -> &Locks {
        let ruled = self.rules.iter().find(|(glob, _)| glob.matches(name)).map(|(_, locks)| locks);
        ruled.unwrap_or_else(|| &self.stores[&self.default])
    }

    /// The client of a store, by the name that the configuration gives it.
    pub fn store(&self, name: &str) -> Option<&Locks> {
        self.stores.get(name)
    }

    /// Closes every client; see [`Locks::close`].
    ///
    /// # Cancel safety
    /// Safe: the clients stay closed, the waiting can be taken up again.
    pub async fn close(&self) {
        for locks in self.stores.values() {
            locks.close().await;
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { default, stores, rules } = self;
        let stores: Vec<_> = stores.keys().collect();
        f.debug_struct("Config")
            .field("default", default)
            .field("stores", &stores)
            .field("rules", rules)
            .finish()
    }
}

fn with(
    options: LockOptions,
    ttl: Option<Span>,
    lease: Option<Span>,
    renew_every: Option<Span>,
    wait: Option<Span>,
) -> LockOptions {
    let options = ttl.into_iter().fold(options, |options, Span(ttl)| options.ttl(ttl));
    let options = lease.into_iter().fold(options, |options, Span(lease)| options.lease(lease));
    let options =
        renew_every.into_iter().fold(options, |options, Span(cadence)| options.renew_every(cadence));
    wait.into_iter().fold(options, |options, Span(wait)| options.wait(wait))
}

/// Puts the environment's values in place of `${…}`, in every text of a value.
fn substitute(value: &mut Value) -> Result<()> {
    match value {
        Value::String(text) => {
            // The value of a variable is not expanded again, because it may contain a `${` itself.
            let (mut done, mut rest) = (String::new(), text.as_str());
            while let Some((before, after)) = rest.split_once("${") {
                let unclosed = || invalid("a `${` has no `}`");
                let (variable, after) = after.split_once('}').ok_or_else(unclosed)?;
                let unset = |_| invalid(&format!("the variable `{variable}` is not set in the environment"));
                done = done + before + &std::env::var(variable).map_err(unset)?;
                rest = after;
            }
            *text = done + rest;
            Ok(())
        }
        Value::Array(values) => values.iter_mut().try_for_each(substitute),
        Value::Table(table) => table.iter_mut().try_for_each(|(_, value)| substitute(value)),
        _ => Ok(()),
    }
}

fn invalid(reason: &str) -> Error {
    Error::InvalidConfig { reason: format!("configuration: {}", reason.trim_end().replace('\n', " ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORES: &str = r#"
        default = "a"
        [stores.a]
        url = "memory:config-a"
        ttl = "20s"
        [stores.b]
        url = "memory:config-b"
        [stores.c]
        url = "memory:config-c"
        [stores.most]
        redlock = ["a", "b", "c"]
        member_timeout = "200ms"
        [[rules]]
        lock = "billing/*"
        store = "most"
        wait = "50ms"
        [[rules]]
        lock = "billing/never"
        store = "b"
    "#;

    #[tokio::test]
    async fn the_first_rule_that_matches_says_where_a_lock_is() {
        let stores = Config::from_toml(STORES).unwrap().connect(&crate::registry()).await.unwrap();
        assert_eq!(stores.of("x").info().identity, "memory:config-a");
        assert!(stores.of("billing/7").info().identity.starts_with("redlock:"));
        assert!(
            stores.of("billing/never").info().identity.starts_with("redlock:"),
            "a later rule was taken, not the first that matches"
        );
        assert_eq!(stores.store("b").unwrap().info().identity, "memory:config-b");
    }

    #[tokio::test]
    async fn a_majority_of_mixed_stores_is_one_lock_with_the_options_of_its_rule() {
        let stores = Config::from_toml(STORES).unwrap().connect(&crate::registry()).await.unwrap();
        let held = stores.of("billing/7").mutex("billing/7").lock().await.unwrap();
        let member = stores.store("c").unwrap().mutex("billing/7").try_lock().await.unwrap();
        assert!(member.is_none(), "the majority holds the lock, and its member does not");
        let error = stores.of("billing/7").mutex("billing/7").lock().await.unwrap_err().to_string();
        assert_eq!(error, "timed out after 50ms waiting for lock `billing/7`");
        held.release().await.unwrap();
    }

    #[test]
    fn a_mistake_is_named_together_with_the_known_values() {
        for (text, words) in [
            ("[stores.a]\nurl='memory:'\nttt='1s'", ["unknown field `ttt`", "expected one of"]),
            ("[stores.a]\nurl='memory:'\nttl='soon'", ["`soon` is no duration", "20s"]),
            ("default='b'\n[stores.a]\nurl='memory:'", ["names the store `b`", "there are: a"]),
            ("[stores.a]\nurl='memory:'\n[[rules]]\nlock='x'\nstore='b'", ["rule for `x`", "there are: a"]),
            ("[stores.a]\nttl='1s'", ["store `a`", "either `url` or `redlock`"]),
            ("[stores.a]\nurl='${DLOCK_TEST_NOT_SET}'", ["DLOCK_TEST_NOT_SET", "not set"]),
            ("[stores.a]\nurl='memory:'\n[stores.b]\nurl='memory:'", ["more than one store", "`default`"]),
        ] {
            let error = Config::from_toml(text).expect_err(text).to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }

    #[test]
    fn variables_are_replaced_once_and_a_password_is_never_shown() {
        let mut value = Value::String("a-${CARGO_PKG_NAME}-${CARGO_PKG_NAME}-$z".to_owned());
        substitute(&mut value).unwrap();
        assert_eq!(value.as_str(), Some("a-dlock-rs-dlock-rs-$z"));
        let config = Config::from_toml("[stores.a]\nurl='redis://u:hunter2@h'").unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
