//! The format of keys and values. No other file depends on it.
//!
//! ```text
//! key    PREFIX NAME / ID                 as Go's `concurrency.Mutex` writes NAME / LEASE
//! value  dlock/1 KIND LIMIT LEASE WHO     LEASE of a detached hold in hex, otherwise `-`
//!        dlock/1 KIND LIMIT LEASE@ID WHO  ID to which the hold was renamed
//! ```
//!
//! Another program writes an empty value. Its claim counts as a mutex.
//!
//! A detachment renames a hold to the id of its ticket, and a resumption renames it to the id of
//! the claim that takes it over. Its key does not change, because the key's create revision is the
//! position in the queue and the token.
//!
//! All claims of a name are in one queue, in the order of their create revisions.

use std::num::NonZeroU32;

use dlock_core::{ClaimId, Error, Kind, LockName, Result, driver::Request};

use crate::config::{EtcdConfig, Names};

/// First word of every value that dlock writes.
const MAGIC: &str = "dlock/1";

/// The keys of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    /// Prefix of the keys of all claims of the lock. It ends with a slash.
    pub(crate) queue: String,
    /// The claim's own key.
    pub(crate) own: String,
}

impl Keys {
    /// Returns the keys of the claim with this id.
    ///
    /// # Errors
    /// For a name that [`Names::Exact`] refuses.
    pub(crate) fn new(config: &EtcdConfig, name: &LockName, id: ClaimId) -> Result<Self> {
        let queue = queue_prefix(config, name)?;
        let own = format!("{queue}{id}");
        Ok(Self { queue, own })
    }
}

/// Returns the prefix of the keys of a lock's claims, with its slash.
///
/// # Errors
/// For a name that [`Names::Exact`] refuses.
pub(crate) fn queue_prefix(config: &EtcdConfig, name: &LockName) -> Result<String> {
    let text = name.as_str();
    if config.names == Names::Exact && text.contains('/') {
        let reason = "it has a slash, and `names=exact` does not encode one".to_owned();
        return Err(Error::InvalidName { name: text.chars().take(40).collect(), reason });
    }
    Ok(format!("{}/", name_prefix(config, text)))
}

/// Returns the common prefix of the keys of all locks whose names begin with `prefix`.
pub(crate) fn name_prefix(config: &EtcdConfig, prefix: &str) -> String {
    let encoded = match config.names {
        Names::Encoded => prefix.replace('%', "%25").replace('/', "%2F"),
        Names::Exact => prefix.to_owned(),
    };
    format!("{}{encoded}", config.prefix)
}

/// Splits a key into the name of its lock and the part behind the name's slash. Returns `None` if
/// the key belongs to no lock.
pub(crate) fn parse_key<'a>(config: &EtcdConfig, key: &'a str) -> Option<(LockName, &'a str)> {
    let (name, rest) = key.strip_prefix(&config.prefix)?.rsplit_once('/')?;
    let decoded = match config.names {
        Names::Encoded => name.replace("%2F", "/").replace("%25", "%"),
        Names::Exact => name.to_owned(),
    };
    let name = LockName::new(&decoded).ok()?;
    // Another program may have written a name that dlock encodes differently.
    (key.strip_prefix(&queue_prefix(config, &name).ok()?) == Some(rest)).then_some((name, rest))
}

/// Content of a claim's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) kind: Kind,
    pub(crate) limit: NonZeroU32,
    /// Own lease of a detached hold. `None` if the claim uses its client's lease.
    pub(crate) own_lease: Option<i64>,
    /// Id to which the hold was renamed. `None` if the id in its key is valid.
    pub(crate) renamed_to: Option<ClaimId>,
    /// Label of the contender. `None` if another program wrote the value.
    pub(crate) who: Option<String>,
}

impl Record {
    /// Parses a value. A value in another format is the mutex of another program.
    pub(crate) fn read(value: &[u8]) -> Self {
        let record = std::str::from_utf8(value).ok().and_then(Self::parse);
        record.unwrap_or(Self {
            kind: Kind::Mutex,
            limit: NonZeroU32::MIN,
            own_lease: None,
            renamed_to: None,
            who: None,
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.splitn(5, ' ');
        let mut word = || words.next();
        (word()? == MAGIC).then_some(())?;
        let kind = Kind::from_name(word()?)?;
        let limit = word()?.parse().ok()?;
        let lease = word()?;
        let (lease, renamed_to) =
            lease.split_once('@').map_or((lease, None), |(lease, id)| (lease, Some(id)));
        let own_lease = i64::from_str_radix(lease, 16).ok();
        let renamed_to = renamed_to.and_then(|id| id.parse().ok());
        Some(Self { kind, limit, own_lease, renamed_to, who: Some(word()?.to_owned()) })
    }
}

/// Returns the value of a claim.
pub(crate) fn value(request: &Request, own_lease: Option<i64>, renamed_to: Option<ClaimId>) -> String {
    let Request { kind, limit, who, .. } = request;
    let own_lease = own_lease.map_or_else(|| "-".to_owned(), |lease| format!("{lease:x}"));
    let renamed_to = renamed_to.map_or_else(String::new, |id| format!("@{id}"));
    format!("{MAGIC} {kind} {limit} {own_lease}{renamed_to} {}", who.text())
}

/// Returns whether a key without a value of dlock is a claim. Go's `concurrency.Mutex` ends its
/// keys with their lease.
pub(crate) fn is_native(rest: &str, lease: i64) -> bool {
    lease != 0 && rest == format!("{lease:x}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dlock_core::Who;

    use super::*;

    fn config(params: &str) -> EtcdConfig {
        EtcdConfig::from_url(&format!("etcd://h{params}").parse().unwrap()).unwrap()
    }

    fn named(name: &str) -> LockName {
        LockName::new(name).expect("legal")
    }

    const ID: ClaimId = ClaimId::from_bytes([7; 16]);

    #[test]
    fn a_claim_is_a_key_below_the_name_as_in_go() {
        let keys = Keys::new(&config("?prefix=app."), &named("stock"), ID).unwrap();
        assert_eq!(keys.queue, "app.stock/");
        assert_eq!(keys.own, format!("app.stock/{ID}"));
    }

    #[test]
    fn every_name_is_a_different_lock_and_is_read_back() {
        let config = config("?prefix=p");
        let names = ["a", "a/b", "a/", "/a", "a//b", "a%2Fb", "a%b", "%", "a%252F", "..", "é b", "p"];
        let mut prefixes: Vec<_> =
            names.iter().map(|name| queue_prefix(&config, &named(name)).unwrap()).collect();
        for (name, prefix) in names.iter().zip(&prefixes) {
            assert_eq!(parse_key(&config, &format!("{prefix}17")), Some((named(name), "17")), "{prefix}");
            let first: String = name.chars().take(1).collect();
            assert!(
                prefix.starts_with(&name_prefix(&config, &first)),
                "`{name}` is not listed by its first letter"
            );
        }
        for prefix in &prefixes {
            let matching = prefixes.iter().filter(|other| other.starts_with(prefix.as_str())).count();
            assert_eq!(matching, 1, "{prefix} includes the keys of another lock");
        }
        prefixes.sort_unstable();
        prefixes.dedup();
        assert_eq!(prefixes.len(), names.len());
    }

    #[test]
    fn the_exact_form_refuses_a_name_that_would_block_another_lock() {
        let config = config("?names=exact");
        assert_eq!(queue_prefix(&config, &named("50%")).unwrap(), "50%/");
        let error = queue_prefix(&config, &named("a/b")).expect_err("a slash").to_string();
        assert!(error.contains("slash") && error.contains("names=exact"), "{error}");
    }

    #[test]
    fn other_keys_of_other_programs_belong_to_no_lock() {
        for key in ["plain", "a/b/c", "a%2f/c", "/x", "no%/x"] {
            assert_eq!(parse_key(&config(""), key), None, "{key}");
        }
        assert_eq!(parse_key(&config("?prefix=app."), "other.x/1"), None);
    }

    #[test]
    fn a_value_is_read_back_and_a_foreign_one_is_a_mutex() {
        let who = Who::new("anna@web-3 pid 4711 a b").unwrap();
        let request = Request::by(who, named("x"), Kind::Permit, Duration::from_secs(1));
        let request = request.limit(NonZeroU32::new(4).unwrap());
        let record = Record::read(value(&request, Some(0xabc), None).as_bytes());
        assert_eq!((record.kind, record.limit.get(), record.own_lease), (Kind::Permit, 4, Some(0xabc)));
        assert_eq!(record.who.as_deref(), Some("anna@web-3 pid 4711 a b"));
        assert_eq!(record.renamed_to, None);
        assert_eq!(Record::read(value(&request, None, None).as_bytes()).own_lease, None);
        let record = Record::read(value(&request, Some(0xabc), Some(ID)).as_bytes());
        assert_eq!((record.own_lease, record.renamed_to), (Some(0xabc), Some(ID)));
        let record = Record::read(value(&request, None, Some(ID)).as_bytes());
        assert_eq!((record.own_lease, record.renamed_to), (None, Some(ID)));
        for foreign in ["", "dlock/2 read 1 - x", "dlock/1 read 0 - x", "dlock/1 read 1 x", "\u{0}"] {
            assert_eq!(Record::read(foreign.as_bytes()).kind, Kind::Mutex, "{foreign}");
            assert_eq!(Record::read(foreign.as_bytes()).who, None, "{foreign}");
        }
    }

    #[test]
    fn the_keys_of_go_end_with_their_lease() {
        assert!(is_native("ea1a1fc07149807", 0x0ea1_a1fc_0714_9807));
        assert!(!is_native("0", 0) && !is_native("ea", 0xeb));
    }
}
