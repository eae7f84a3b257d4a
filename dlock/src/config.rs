//! TOML configuration of named stores, and of rules that assign locks to them. Feature
//! `config`. The command `dlock` reads the same format. `docs/config.md` describes every key, the
//! precedence of rules and options, secrets and errors.
//!
//! ```toml
//! default = "main"         # store of locks without a rule; optional with one store
//!
//! [stores.main]
//! url = "redis://app:${REDIS_PASSWORD}@localhost"   # `${…}`: environment variable, in any string
//! ttl = 20                 # an option of all its locks, in seconds
//! who = "the backup"       # who has the claims, as in the URL parameter `who=`
//!
//! [stores.local]
//! url = "sqlite:locks.db"
//!
//! [stores.quorum]
//! redlock = ["main", "local", "memory"]   # a majority of other stores of this file
//! member_timeout = "200ms"
//!
//! [stores.memory]
//! url = "memory:"
//!
//! [[rules]]                # the first rule that matches a lock applies
//! lock = "billing/*"       # `*` is any text, `?` is one character
//! store = "quorum"
//! wait = "5s"              # or a number of seconds, or "forever"
//! ```
//!
//! The options of a store, and of the locks of a rule, are those of [`LockOptions`]: `ttl`, `lease`,
//! `renew_every`, `max_hold`, `margin`, `at_least`, `wait`, `class`, and its `label` as `who`. An option
//! of a rule overrides the same option of the store.

mod connect;
mod duration;
mod read;
mod stores;
mod variables;

use std::{collections::BTreeMap, fmt, path::Path, sync::Arc, time::Duration};

use dlock_core::{Error, LockOptions, Locks, Result, Wait, Who, driver::StoreUrl};
use wildmatch::WildMatch;

pub use duration::{duration, wait};
use read::Text;
pub use stores::Stores;

/// A configuration: stores and rules. `Debug` shows no password.
#[derive(Clone, Debug)]
pub struct Config {
    default: String,
    stores: BTreeMap<String, NamedStore>,
    rules: Vec<Rule>,
}

/// A store and the options of its locks.
#[derive(Clone, Debug)]
struct NamedStore {
    /// Place in the text, for errors: file, line, column and the store's name.
    place: String,
    source: Source,
    options: Options,
}

/// Source of a store.
#[derive(Clone)]
enum Source {
    Url(String),
    /// A majority of other stores.
    Majority {
        members: Vec<String>,
        member_timeout: Option<Duration>,
    },
}

/// A rule: the store and the options of the locks whose names match.
#[derive(Clone, Debug)]
struct Rule {
    place: String,
    glob: WildMatch,
    store: String,
    options: Options,
}

/// Options of locks; `None` where the text sets none.
#[derive(Clone, Debug)]
struct Options {
    ttl: Option<Duration>,
    lease: Option<Duration>,
    renew_every: Option<Duration>,
    max_hold: Option<Duration>,
    margin: Option<Duration>,
    at_least: Option<Duration>,
    wait: Option<Wait>,
    class: Option<Arc<str>>,
    /// Label of the claims. It becomes the label of the client, so that a program can still replace
    /// it with [`Locks::with_who`].
    who: Option<Who>,
}

impl Options {
    /// Returns `options`, overridden by these options.
    fn over(&self, options: LockOptions) -> LockOptions {
        let options = self.ttl.into_iter().fold(options, LockOptions::ttl);
        let options = self.lease.into_iter().fold(options, LockOptions::lease);
        let options = self.renew_every.into_iter().fold(options, LockOptions::renew_every);
        let options = self.max_hold.into_iter().fold(options, LockOptions::max_hold);
        let options = self.margin.into_iter().fold(options, LockOptions::margin);
        let options = self.at_least.into_iter().fold(options, LockOptions::at_least);
        let options = self.wait.into_iter().fold(options, LockOptions::wait);
        self.class.iter().cloned().fold(options, LockOptions::class)
    }

    /// Returns the client with `defaults`, and with the label of these options if they have one.
    fn apply(&self, locks: Locks, defaults: LockOptions) -> Locks {
        self.who.iter().cloned().fold(locks.with_defaults(defaults), Locks::with_who)
    }
}

impl Config {
    /// Reads a text, and replaces `${…}` by environment variables.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`], with the line and column, the store and key, the mistake, and the
    /// valid values.
    pub fn from_toml(text: &str) -> Result<Self> {
        Text { text, file: None }.read()
    }

    /// Reads a file, as [`from_toml`](Self::from_toml) does. Its errors begin with
    /// `FILE:LINE:COLUMN`.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`], also if the file cannot be read.
    pub fn from_file(file: impl AsRef<Path>) -> Result<Self> {
        let file = file.as_ref();
        let unreadable =
            |error| Error::InvalidConfig { reason: format!("cannot read `{}`: {error}", file.display()) };
        Text { text: &std::fs::read_to_string(file).map_err(unreadable)?, file: Some(file) }.read()
    }

    /// Returns the names of the stores, in alphabetical order.
    pub fn stores(&self) -> impl Iterator<Item = &str> {
        self.stores.keys().map(String::as_str)
    }

    /// Returns the name of a lock's store. The first rule that matches applies.
    pub fn store_of(&self, lock: &str) -> &str {
        self.rule(lock).map_or(&self.default, |rule| &rule.store)
    }

    /// Returns the name of the store of the locks without a rule.
    pub fn default_store(&self) -> &str {
        &self.default
    }

    /// Returns the wait limit of a lock, if its rule or its store sets one.
    pub fn wait_of(&self, lock: &str) -> Option<Wait> {
        let of_store = || self.store_wait(self.store_of(lock));
        self.rule(lock).and_then(|rule| rule.options.wait).or_else(of_store)
    }

    /// Returns the wait limit that the table of this store sets. It applies to the store's locks
    /// without a rule. `None` if the table sets none, or if there is no such store.
    pub fn store_wait(&self, store: &str) -> Option<Wait> {
        self.stores.get(store)?.options.wait
    }

    /// Returns the label of the claims of a lock, if its rule or its store sets one.
    pub fn who_of(&self, lock: &str) -> Option<&Who> {
        let of_store = || self.store_who(self.store_of(lock));
        self.rule(lock).and_then(|rule| rule.options.who.as_ref()).or_else(of_store)
    }

    /// Returns the label of claims that the table of this store sets. It applies to the store's locks
    /// without a rule. `None` if the table sets none, or if there is no such store.
    pub fn store_who(&self, store: &str) -> Option<&Who> {
        self.stores.get(store)?.options.who.as_ref()
    }

    /// Returns the URL of a store, or the URLs of the members of a redlock. Empty if there is no
    /// such store. The URLs contain passwords; [`shown`](Self::shown) is for messages.
    pub fn urls(&self, store: &str) -> Vec<&str> {
        match self.stores.get(store).map(|store| &store.source) {
            Some(Source::Url(url)) => vec![url],
            Some(Source::Majority { members, .. }) => {
                members.iter().flat_map(|member| self.urls(member)).collect()
            }
            None => Vec::new(),
        }
    }

    /// Describes a store without secrets: its URL, or the members of a redlock.
    pub fn shown(&self, store: &str) -> Option<String> {
        self.stores.get(store).map(|store| store.source.to_string())
    }

    fn rule(&self, lock: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.glob.matches(lock))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => match url.parse::<StoreUrl>() {
                Ok(url) => write!(f, "{url}"),
                // An invalid URL may be a password.
                Err(_) => f.write_str("***"),
            },
            Self::Majority { members, .. } => write!(f, "a majority of {}", members.join(", ")),
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dlock_core::{
        DistributedLock, Kind, Registry,
        driver::{Backend, Claim, Driver, Info, Request, Store},
    };

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
        for (name, store) in [("x", "memory:config-a"), ("billing/7", "redlock:")] {
            let found = [
                stores.mutex(name).store().to_owned(),
                stores.fair(name).store().to_owned(),
                stores.rwlock(name).write().store().to_owned(),
                stores.semaphore(name, 2).store().to_owned(),
            ];
            assert!(found.iter().all(|found| found.starts_with(store)), "{name}: {found:?}");
        }
        let term = stores.election("y").candidate().elect().await.unwrap();
        assert!(stores.of("y").election("y").is_leading());
        term.resign().await.unwrap();
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

    #[tokio::test]
    async fn a_lock_has_the_class_of_its_rule_or_else_of_its_store_and_never_a_pattern() {
        let text = "default='a'\n[stores.a]\nurl='memory:class-a'\nclass='cron'\n[stores.b]\nurl='memory:class-b'\n\
                    [[rules]]\nlock='orders/*'\nclass='orders'\n[[rules]]\nlock='none/*'\nclass=''\n\
                    [[rules]]\nlock='wait/*'\nwait=1\n[[rules]]\nlock='invoice/42'\nstore='b'";
        let config = Config::from_toml(text).unwrap();
        let stores = config.connect(&crate::registry()).await.unwrap();
        let class = |class: &str| LockOptions::new().class(class);
        for (name, options) in [
            ("orders/42", class("orders")),
            ("none/42", class("")),
            ("wait/42", class("cron").wait(Duration::from_secs(1))),
            ("other", class("cron")),
            ("invoice/42", LockOptions::new()),
        ] {
            assert_eq!(stores.of(name).defaults(), &options, "{name}");
            let locks = config.connect_for(&crate::registry(), name).await.unwrap();
            assert_eq!(locks.defaults(), &options, "{name}");
        }
    }

    #[tokio::test]
    async fn a_class_that_is_too_long_is_refused_with_its_place() {
        let long = "x".repeat(65);
        let text = format!("[stores.a]\nurl='memory:long-class'\n[[rules]]\nlock='orders/*'\nclass='{long}'");
        let config = Config::from_toml(&text).unwrap();
        let error = config.connect(&crate::registry()).await.unwrap_err().to_string();
        let expected = "line 3, column 1: the rule for `orders/*`: a class has 65 bytes; the limit is 64";
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn a_mistake_is_named_with_its_place_and_the_known_values() {
        for (text, words) in [
            (
                "[stores.a]\nurl='memory:'\nttt='1s'",
                &["line 3, column 1", "store `a`", "`ttt`", "there are: url"][..],
            ),
            (
                "[stores.a]\nurl='memory:'\nttl='soon'",
                &["line 3, column 5", "store `a`, `ttl`", "`soon`", "30s"],
            ),
            ("[stores.a]\nurl='memory:'\nwait=true", &["line 3, column 6", "store `a`, `wait`", "boolean"]),
            ("default='b'\n[stores.a]\nurl='memory:'", &["line 1, column 9", "no store `b`", "there are: a"]),
            (
                "[stores.a]\nurl='memory:'\n[[rules]]\nlock='x'\nstore='b'",
                &["line 5, column 7", "rule for `x`, `store`", "there are: a"],
            ),
            ("[stores.a]\nurl='memory:'\n[[rules]]\nstore='a'", &["line 3", "a rule", "`lock = "]),
            ("[stores.a]\nttl='1s'", &["line 1, column 9", "store `a`", "either `url` or `redlock`"]),
            ("[stores.a]\nredlock=['a','b']", &["store `a`, `redlock`", "`a` is a redlock itself"]),
            (
                "[stores.a]\nurl='${DLOCK_TEST_NOT_SET}'",
                &["line 2, column 5", "`url`", "DLOCK_TEST_NOT_SET", "not set"],
            ),
            (
                "[stores.a]\nurl='memory:'\n[stores.b]\nurl='memory:'",
                &["`default` must name", "there are: a, b"],
            ),
            ("[stores.a]\nurl='memory:'\nwho=''", &["line 3, column 5", "store `a`, `who`", "empty"]),
            ("# nothing", &["stores.main.url"]),
            ("[stores]", &["line 1", "stores.main.url"]),
            ("[stores.a]\nurl=hunter2", &["line 2, column 5"]),
        ] {
            let error = Config::from_toml(text).expect_err(text).to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[tokio::test]
    async fn what_a_store_refuses_is_named_with_its_place_in_the_file() {
        let file = std::env::temp_dir().join(format!("dlock-config-{}.toml", std::process::id()));
        let text = "[stores.a]\nurl='memory:'\n[[rules]]\nlock='é*'\nttl='1s'\nrenew_every='900ms'\n[stores.b]\nurl='nosuch:'";
        std::fs::write(&file, format!("default='a'\n{text}")).unwrap();
        let config = Config::from_file(&file);
        std::fs::remove_file(&file).unwrap();
        let (config, registry) = (config.unwrap(), crate::registry());
        let clash = config.connect_for(&registry, "é1").await.unwrap_err().to_string();
        let (place, words) = (format!("{}:4:1: the rule for `é*`", file.display()), "900ms");
        assert!(clash.starts_with(&place) && clash.contains(words), "{clash}");
        let unknown = config.connect(&registry).await.unwrap_err().to_string();
        assert!(unknown.starts_with(&format!("{}:8:9: store `b`", file.display())), "{unknown}");
        config.connect_for(&registry, "other").await.expect("the store of another lock was contacted");
        let absent = Config::from_file(&file).unwrap_err().to_string();
        assert!(absent.contains(&file.display().to_string()), "{absent}");
    }

    #[tokio::test]
    async fn every_lock_option_of_a_store_and_of_a_rule_reaches_the_lock() {
        let s = Duration::from_secs;
        let text = "default='a'\n[stores.a]\nurl='memory:'\nttl=9\nrenew_every=2\nmax_hold='1h'\nmargin=4\nat_least=3\nwait=4\nwho='store'\n\
                    [stores.b]\nurl='memory:'\n[[rules]]\nlock='x'\nmax_hold=7\nmargin='1500ms'\nat_least=0.5\nwho='rule'\n\
                    [[rules]]\nlock='y'\nstore='b'\nlease=5";
        let config = Config::from_toml(text).expect("a key of a lock option is refused");
        let of_store = LockOptions::new().ttl(s(9)).renew_every(s(2)).max_hold(s(3600)).margin(s(4));
        let of_store = of_store.at_least(s(3)).wait(s(4));
        let of_rule = of_store.clone().max_hold(s(7)).margin(s(3) / 2).at_least(s(1) / 2);
        let stores = config.connect(&crate::registry()).await.unwrap();
        for (lock, options, who) in [
            ("other", of_store, Some("store")),
            ("x", of_rule, Some("rule")),
            ("y", LockOptions::new().lease(s(5)), None),
        ] {
            let locks = stores.of(lock);
            assert_eq!(locks.of(Kind::Mutex, lock).defaults(), options, "of {lock}");
            assert_eq!(config.who_of(lock).map(Who::text), who, "of {lock}");
            let _guard = locks.mutex(lock).lock().await.unwrap();
            let holder = locks.inspect(lock).await.unwrap().expect("held").holders.remove(0);
            let this_process = Who::this_process();
            assert_eq!(holder.who.as_deref(), who.or(Some(this_process.text())), "of {lock}");
        }
    }

    #[tokio::test]
    async fn a_member_of_a_redlock_may_have_a_label_in_its_url() {
        let text = "default='a'\n[stores.a]\nurl='memory:label-a?who=ci'\n[stores.b]\nurl='memory:label-b'\n\
                    [stores.c]\nurl='memory:label-c'\n[stores.all]\nredlock=['a','b','c']";
        let config = Config::from_toml(text).unwrap();
        let registry = crate::registry();
        config.connect_store(&registry, "all").await.expect("the label of a member is refused");
        let stores = config.connect(&registry).await.expect("the label of a member is refused");
        let _guard = stores.of("x").mutex("x").lock().await.unwrap();
        let holder = stores.of("x").inspect("x").await.unwrap().expect("held").holders.remove(0);
        assert_eq!(holder.who.as_deref(), Some("ci"), "the client of the member alone has no label");
    }

    /// Stores in memory. That of `late://down` is unreachable at first, and that of `never://down`
    /// for ever.
    fn with_unreachable_stores() -> Registry {
        async fn connect(url: StoreUrl) -> Result<Store> {
            if url.hosts() == ["down"] {
                let reason = format!("{}://down is unreachable", url.scheme());
                return Err(Error::Unavailable { store: "test", source: reason.into() });
            }
            Registry::new().open(&format!("memory:unreachable-{}", url.hosts().join(","))).await
        }
        let later = |_| Ok(Some(dlock_core::memory::MemoryBackend::new().into_store()));
        Registry::new()
            .with(Driver::new(&["never"], |url| Box::pin(connect(url))))
            .with(Driver::new(&["late"], |url| Box::pin(connect(url))).connecting_later(later))
    }

    #[tokio::test]
    async fn a_redlock_connects_while_a_minority_that_can_connect_later_is_unreachable() {
        let of_members = |members: [&str; 3]| {
            let store = |(name, url): (char, &str)| format!("[stores.{name}]\nurl='{url}'\n");
            let stores: String = ('a'..='c').zip(members).map(store).collect();
            Config::from_toml(&format!("default='all'\n{stores}[stores.all]\nredlock=['a','b','c']")).unwrap()
        };
        let registry = with_unreachable_stores();
        let config = of_members(["late://x", "late://y", "late://down"]);
        for locks in [
            config.connect_store(&registry, "all").await.expect("a majority is reachable"),
            config.connect(&registry).await.expect("a majority is reachable").of("x").clone(),
        ] {
            locks.mutex("x").lock().await.expect("a majority is reachable").release().await.unwrap();
        }
        for (members, problem) in [
            (["late://x", "late://y", "never://down"], "never://down"),
            (["late://x", "late://down", "late://down"], "late://down"),
        ] {
            let config = of_members(members);
            let one = config.connect_store(&registry, "all").await.unwrap_err();
            let all = config.connect(&registry).await.unwrap_err();
            for error in [one, all] {
                assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
                assert!(format!("{error:?}").contains(problem), "{error:?}");
            }
        }
    }

    #[tokio::test]
    async fn an_option_that_the_store_does_not_support_is_named_with_its_place() {
        let registry = Registry::new().with(Driver::new(&["sessions"], |_| {
            Box::pin(async { Ok(Store::new(Arc::new(WithoutDetach::new()))) })
        }));
        let config = Config::from_toml("[stores.a]\nurl='sessions:'\nat_least=1").unwrap();
        let error = config.connect(&registry).await.unwrap_err();
        let words = ["line 1, column 9: store `a`", "sessions cannot keep a lock without its holder"];
        assert!(matches!(error, Error::InvalidConfig { .. }), "{error:?}");
        assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
    }

    /// A store that cannot keep a lock without its holder, and takes no locks.
    #[derive(Debug)]
    struct WithoutDetach(Info);

    impl WithoutDetach {
        fn new() -> Self {
            Self(Info::new("sessions", "sessions:1").detaches(false))
        }
    }

    impl Backend for WithoutDetach {
        fn info(&self) -> &Info {
            &self.0
        }

        fn claim(&self, _: Request) -> Box<dyn Claim> {
            unreachable!("its options were refused")
        }
    }

    #[test]
    fn durations_are_those_of_the_command() {
        let config = Config::from_toml(
            "[stores.a]\nurl='memory:'\nttl=20\nwait='forever'\n[[rules]]\nlock='x'\nwait=0\n[[rules]]\nlock='y'\nwait=0.5",
        );
        let config = config.unwrap();
        assert_eq!(config.stores["a"].options.ttl, Some(Duration::from_secs(20)));
        assert_eq!(config.wait_of("z"), Some(Wait::Forever));
        assert_eq!(config.wait_of("x"), Some(Wait::Never));
        assert_eq!(config.wait_of("y"), Some(Wait::For(Duration::from_millis(500))));
    }

    #[test]
    fn a_password_is_never_shown() {
        let config = Config::from_toml("[stores.a]\nurl='redis://u:hunter2@h'").unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
        assert_eq!(config.shown("a").unwrap(), "redis://u:***@h");
    }
}
