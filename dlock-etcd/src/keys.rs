//! How names and claims are written in etcd. No other file knows.
//!
//! ```text
//! key    PREFIX NAME / ID              as Go's `concurrency.Mutex` writes NAME / LEASE
//! value  dlock/1 KIND LIMIT LEASE WHO  LEASE in hex for a detached claim, else `-`; empty if another program wrote it
//!        dlock/1 KIND LIMIT LEASE@ID WHO  ID of the ticket or of the claim that the hold was handed over to
//! ```
//!
//! The key of a hold that is handed over stays, because its create revision is the place in the queue and the token.
//!
//! All claims of a name are in one queue, in the order of their create revisions. A claim of another program counts as a
//! mutex.

use std::num::NonZeroU32;

use dlock_core::{ClaimId, Error, Kind, LockName, Result, driver::Request};

use crate::config::{EtcdConfig, Names};

/// With what every value of dlock begins.
const MAGIC: &str = "dlock/1";

/// The keys of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    /// With what the keys of all claims of the lock begin. It ends with a slash.
    pub(crate) folder: String,
    /// The claim's own key.
    pub(crate) own: String,
}

impl Keys {
    /// # Errors
    /// For a name that [`Names::Exact`] refuses.
    pub(crate) fn new(config: &EtcdConfig, name: &LockName, id: ClaimId) -> Result<Self> {
        let folder = folder(config, name)?;
        let own = format!("{folder}{id}");
        Ok(Self { folder, own })
    }
}

/// With what the keys of a lock begin.
///
/// # Errors
/// For a name that [`Names::Exact`] refuses.
pub(crate) fn folder(config: &EtcdConfig, name: &LockName) -> Result<String> {
    let text = name.as_str();
    if config.names == Names::Exact && text.contains('/') {
        let reason = "it has a slash, and `names=exact` does not encode one".to_owned();
        return Err(Error::InvalidName { name: text.chars().take(40).collect(), reason });
    }
    Ok(format!("{}/", beginning(config, text)))
}

/// With what the keys of all locks begin whose names begin with `prefix`.
pub(crate) fn beginning(config: &EtcdConfig, prefix: &str) -> String {
    let encoded = match config.names {
        Names::Encoded => prefix.replace('%', "%25").replace('/', "%2F"),
        Names::Exact => prefix.to_owned(),
    };
    format!("{}{encoded}", config.prefix)
}

/// The lock that a key is of, and the rest of the key. `None` for a key that is of no lock.
pub(crate) fn read<'a>(config: &EtcdConfig, key: &'a str) -> Option<(LockName, &'a str)> {
    let (name, rest) = key.strip_prefix(&config.prefix)?.rsplit_once('/')?;
    let decoded = match config.names {
        Names::Encoded => name.replace("%2F", "/").replace("%25", "%"),
        Names::Exact => name.to_owned(),
    };
    let name = LockName::new(&decoded).ok()?;
    // Another program may have a key that dlock would write otherwise.
    (key.strip_prefix(&folder(config, &name).ok()?) == Some(rest)).then_some((name, rest))
}

/// A claim as its value says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) kind: Kind,
    pub(crate) limit: NonZeroU32,
    /// The lease of its own that a detached claim has.
    pub(crate) own_lease: Option<i64>,
    /// Id that the hold was handed over to. `None` if it has the id in its key.
    pub(crate) heir: Option<ClaimId>,
    /// `None` if another program wrote it.
    pub(crate) who: Option<String>,
}

impl Record {
    pub(crate) fn read(value: &[u8]) -> Self {
        let ours = std::str::from_utf8(value).ok().and_then(Self::parse);
        ours.unwrap_or(Self {
            kind: Kind::Mutex,
            limit: NonZeroU32::MIN,
            own_lease: None,
            heir: None,
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
        let (lease, heir) = lease.split_once('@').map_or((lease, None), |(lease, heir)| (lease, Some(heir)));
        let own_lease = i64::from_str_radix(lease, 16).ok();
        let heir = heir.and_then(|heir| heir.parse().ok());
        Some(Self { kind, limit, own_lease, heir, who: Some(word()?.to_owned()) })
    }
}

/// The value of a claim.
pub(crate) fn value(request: &Request, own_lease: Option<i64>, heir: Option<ClaimId>) -> String {
    let Request { kind, limit, who, .. } = request;
    let own_lease = own_lease.map_or_else(|| "-".to_owned(), |lease| format!("{lease:x}"));
    let heir = heir.map_or_else(String::new, |heir| format!("@{heir}"));
    format!("{MAGIC} {kind} {limit} {own_lease}{heir} {}", who.text())
}

/// Whether a key without dlock's value is a claim all the same: Go's `concurrency.Mutex` ends the key with its lease.
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
    fn a_claim_is_a_key_below_the_name_as_of_go() {
        let keys = Keys::new(&config("?prefix=app."), &named("stock"), ID).unwrap();
        assert_eq!(keys.folder, "app.stock/");
        assert_eq!(keys.own, format!("app.stock/{ID}"));
    }

    #[test]
    fn every_name_is_a_lock_of_its_own_and_read_back() {
        let config = config("?prefix=p");
        let names = ["a", "a/b", "a/", "/a", "a//b", "a%2Fb", "a%b", "%", "a%252F", "..", "é b", "p"];
        let mut folders: Vec<_> = names.iter().map(|name| folder(&config, &named(name)).unwrap()).collect();
        for (name, folder) in names.iter().zip(&folders) {
            assert_eq!(read(&config, &format!("{folder}17")), Some((named(name), "17")), "{folder}");
            let first: String = name.chars().take(1).collect();
            assert!(
                folder.starts_with(&beginning(&config, &first)),
                "`{name}` is not listed by its first letter"
            );
        }
        for one in &folders {
            let inside = folders.iter().filter(|other| other.starts_with(one.as_str())).count();
            assert_eq!(inside, 1, "{one} has the keys of another lock");
        }
        folders.sort_unstable();
        folders.dedup();
        assert_eq!(folders.len(), names.len());
    }

    #[test]
    fn the_exact_form_refuses_what_would_be_two_locks() {
        let config = config("?names=exact");
        assert_eq!(folder(&config, &named("50%")).unwrap(), "50%/");
        let told = folder(&config, &named("a/b")).expect_err("a slash").to_string();
        assert!(told.contains("slash") && told.contains("names=exact"), "{told}");
    }

    #[test]
    fn keys_of_other_programs_are_of_no_lock() {
        for key in ["plain", "a/b/c", "a%2f/c", "/x", "no%/x"] {
            assert_eq!(read(&config(""), key), None, "{key}");
        }
        assert_eq!(read(&config("?prefix=app."), "other.x/1"), None);
    }

    #[test]
    fn a_value_is_read_back_and_a_foreign_one_is_a_mutex() {
        let who = Who::new("anna@web-3 pid 4711 a b").unwrap();
        let request = Request::by(who, named("x"), Kind::Permit, Duration::from_secs(1));
        let request = request.limit(NonZeroU32::new(4).unwrap());
        let record = Record::read(value(&request, Some(0xabc), None).as_bytes());
        assert_eq!((record.kind, record.limit.get(), record.own_lease), (Kind::Permit, 4, Some(0xabc)));
        assert_eq!(record.who.as_deref(), Some("anna@web-3 pid 4711 a b"));
        assert_eq!(record.heir, None);
        assert_eq!(Record::read(value(&request, None, None).as_bytes()).own_lease, None);
        let record = Record::read(value(&request, Some(0xabc), Some(ID)).as_bytes());
        assert_eq!((record.own_lease, record.heir), (Some(0xabc), Some(ID)));
        let record = Record::read(value(&request, None, Some(ID)).as_bytes());
        assert_eq!((record.own_lease, record.heir), (None, Some(ID)));
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
