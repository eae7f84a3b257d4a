//! The format of keys and values. No other file depends on it.
//!
//! ```text
//! key    PREFIX NAME / ID                 as Go's `concurrency.Mutex` writes NAME / LEASE
//! value  dlock/1 KIND LIMIT LEASE WHO     LEASE of a detached hold in hex, otherwise `-`
//!        dlock/1 KIND LIMIT LEASE@ID WHO  ID to which the hold was renamed
//!        WHO                              a candidate of an election, as Go's `concurrency.Election`
//! ```
//!
//! A lock of another program has an empty value. It counts as a mutex, and another program's candidate
//! as fair.
//!
//! A detachment renames a hold to the id of its ticket, and a resumption renames it to the id of
//! the claim that takes it over. Its key does not change, because the key's create revision is the
//! position in the queue and the token.
//!
//! All claims of a name are in one queue, in the order of their create revisions.

use std::num::NonZeroU32;

use dlock_core::{ClaimId, Error, Kind, LockName, Result, Who, driver::Request};

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

/// Returns the event for which the observers of a queue wait. No key equals it, because names
/// contain no control characters.
pub(crate) fn event_of_queue(prefix: &str) -> String {
    format!("\0{prefix}")
}

/// Returns the prefix of the queue with this event. `None` for the key of a claim.
pub(crate) fn queue_of_event(event: &str) -> Option<&str> {
    event.strip_prefix('\0')
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
    /// Label of the contender. `None` if the value contains none.
    pub(crate) who: Option<String>,
}

impl Record {
    /// Parses the value of a claim. A value that dlock has not written is the label of an election's
    /// candidate. If it cannot be a label, as in an empty one, the claim is a mutex.
    pub(crate) fn read(value: &[u8]) -> Self {
        let text = std::str::from_utf8(value).ok();
        text.and_then(Self::parse).unwrap_or_else(|| {
            let who = text.and_then(|text| Who::new(text).ok()).map(|who| who.text().to_owned());
            let kind = if who.is_some() { Kind::Fair } else { Kind::Mutex };
            Self { kind, limit: NonZeroU32::MIN, own_lease: None, renamed_to: None, who }
        })
    }

    /// Parses a value in dlock's own format.
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
    let Request { kind, limit, who, is_candidate, .. } = request;
    let is_plain = *is_candidate && *kind == Kind::Fair && own_lease.is_none() && renamed_to.is_none();
    // A label that could be read as another value is written with all fields.
    if is_plain && !who.text().starts_with(MAGIC) {
        return who.text().to_owned();
    }
    let own_lease = own_lease.map_or_else(|| "-".to_owned(), |lease| format!("{lease:x}"));
    let renamed_to = renamed_to.map_or_else(String::new, |id| format!("@{id}"));
    format!("{MAGIC} {kind} {limit} {own_lease}{renamed_to} {}", who.text())
}

/// Returns whether a key is a claim, of dlock or another program. `rest` is its part behind the
/// name's slash.
///
/// Go's `concurrency.Mutex` and `Election` end their keys with their lease.
pub(crate) fn is_claim(rest: &str, value: &[u8], lease: i64) -> bool {
    is_of_dlock(rest, value) || lease != 0 && rest == format!("{lease:x}")
}

/// Returns whether a key is a claim of dlock. `rest` is its part behind the name's slash.
///
/// An application may name its keys by UUIDs, too. The id of a candidate therefore begins with the
/// key of the label that is its value.
pub(crate) fn is_of_dlock(rest: &str, value: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(value) else { return false };
    let is_labelled_by =
        |id: ClaimId| id.to_string() == rest && Who::new(text).is_ok_and(|who| id.who_key() == who.key());
    Record::parse(text).is_some() || rest.parse().is_ok_and(is_labelled_by)
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        for foreign in ["", "\u{0}", &"x".repeat(201)] {
            assert_eq!(Record::read(foreign.as_bytes()).kind, Kind::Mutex, "{foreign}");
            assert_eq!(Record::read(foreign.as_bytes()).who, None, "{foreign}");
        }
    }

    #[test]
    fn the_value_of_a_candidate_is_its_label() {
        let value_of = |label: &str, kind| {
            let who = Who::new(label).expect("legal");
            value(&Request::by(who, named("x"), kind, Duration::from_secs(1)).candidate(), None, None)
        };
        assert_eq!(value_of("10.0.0.7:9000", Kind::Fair), "10.0.0.7:9000");
        for label in ["10.0.0.7:9000", "dlock/1", "dlock/1 read 1 - x", "dlock/2 read 1 - x"] {
            let record = Record::read(value_of(label, Kind::Fair).as_bytes());
            assert_eq!((record.kind, record.who.as_deref()), (Kind::Fair, Some(label)));
        }
        assert_eq!(Record::read(value_of("a", Kind::Permit).as_bytes()).kind, Kind::Permit);
        let request = Request::new(named("x"), Kind::Fair, Duration::from_secs(1)).candidate();
        assert_eq!(Record::read(value(&request, Some(1), Some(ID)).as_bytes()).renamed_to, Some(ID));
    }

    #[test]
    fn a_claim_ends_with_its_id_or_its_lease() {
        const LEASE: i64 = 0x0ea1_a1fc_0714_9807;
        let id = ClaimId::random_for(&Who::new("label").expect("legal")).to_string();
        assert!(is_claim("ea1a1fc07149807", b"", LEASE) && is_claim("ea1a1fc07149807", b"label", LEASE));
        assert!(is_of_dlock(&id, b"label") && is_claim(&id, b"label", LEASE));
        assert!(!is_claim(&id, b"10.0.0.1:80", LEASE), "an application may name its keys by UUIDs");
        assert!(!is_claim(&id.replace('-', ""), b"label", LEASE), "dlock writes an id with dashes");
        assert!(is_claim("anything", b"dlock/1 mutex 1 - x", 0));
        for (rest, value, lease) in
            [("0", &b""[..], 0), ("ea", b"", 0xeb), ("config", b"on", LEASE), (&id, b"x", 0)]
        {
            assert!(!is_claim(rest, value, lease), "{rest}");
        }
        assert!(!is_of_dlock("ea1a1fc07149807", b"label"));
    }
}
