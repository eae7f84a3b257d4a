//! The names of the keys and channels of a lock, in Redisson's format.

use std::{fmt, io::Write, sync::Arc};

use dlock_core::{ClaimId, LockName, Who};
use redis::{RedisWrite, ToRedisArgs};

/// The names of the keys and channels of one lock.
#[derive(Clone)]
pub(crate) struct Keys {
    lock: Arc<str>,
    /// Whether the lock's name contains a `{`. Other keys then contain the name as it is, and
    /// otherwise as `{name}`.
    is_tagged: bool,
}

/// The name of a key or a channel, in parts that are joined when the command is written.
#[derive(Clone, Copy)]
pub(crate) struct Name<'a>([&'a str; 7]);

impl Keys {
    pub(crate) fn new(prefix: &str, name: &LockName) -> Self {
        Self::of(if prefix.is_empty() { name.to_arc() } else { format!("{prefix}{name}").into() })
    }

    /// Creates the names for a cluster, where all keys of a lock must be in one slot.
    ///
    /// A name whose keys would be in several slots is irregular, and dlock escapes it. dlock and
    /// Redisson do not share a lock of such a name. No usable lock is affected, because on a
    /// cluster Redisson can acquire a lock with an irregular name, but cannot release it.
    pub(crate) fn on_cluster(prefix: &str, name: &LockName) -> Self {
        let keys = Self::new(prefix, name);
        if is_regular(&keys.lock) && !name.as_str().starts_with(ESCAPED) {
            return keys;
        }
        Self::of(format!("{prefix}{}", escape(name.as_str())).into())
    }

    fn of(lock: Arc<str>) -> Self {
        let is_tagged = lock.contains('{');
        Self { lock, is_tagged }
    }

    fn name<'a>(&'a self, before: &'a str, [colon, owner, after]: [&'a str; 3]) -> Name<'a> {
        let [open, close] = if self.is_tagged { ["", ""] } else { ["{", "}"] };
        Name([before, open, &self.lock, close, colon, owner, after])
    }

    fn with_prefix<'a>(&'a self, before: &'a str) -> Name<'a> {
        self.name(before, [""; 3])
    }

    /// Key of the lock itself: a hash, or a string in the plain dialect.
    pub(crate) fn lock(&self) -> &str {
        &self.lock
    }

    /// Keys of `fair.lua`.
    pub(crate) fn for_fair(&self) -> [Name<'_>; 4] {
        [Name::whole(&self.lock), self.queue(), self.deadlines(), self.fair_heartbeats()]
    }

    /// Keys of `rw.lua`.
    pub(crate) fn for_rw<'a>(&'a self, owner: &'a str) -> [Name<'a>; 5] {
        let timeout = self.read_timeout(owner);
        [Name::whole(&self.lock), self.readers(), self.writers(), self.rw_heartbeats(), timeout]
    }

    /// Keys of `permit.lua`.
    pub(crate) fn for_permit(&self) -> [Name<'_>; 3] {
        [Name::whole(&self.lock), self.permits(), self.permit_heartbeats()]
    }

    /// The lock's name as a part of other names: in braces, unless it contains a `{`. Scripts build
    /// the names of timeout keys from it.
    pub(crate) fn tag(&self) -> Name<'_> {
        self.with_prefix("")
    }

    /// Key of the last fencing token.
    pub(crate) fn token(&self) -> Name<'_> {
        self.with_prefix("redisson_lock_token:")
    }

    /// List of the fair lock's waiters.
    pub(crate) fn queue(&self) -> Name<'_> {
        self.with_prefix(QUEUE)
    }

    /// Sorted set of the fair lock's waiters, by the time at which Redisson removes each of them.
    pub(crate) fn deadlines(&self) -> Name<'_> {
        self.with_prefix("redisson_lock_timeout:")
    }

    /// Sorted set of dlock's fair waiters, by the time at which each of them expires. Not known to
    /// Redisson.
    pub(crate) fn fair_heartbeats(&self) -> Name<'_> {
        self.with_prefix("dlock_fair_beats:")
    }

    /// Sorted set of dlock's waiting readers, by arrival. Not known to Redisson.
    pub(crate) fn readers(&self) -> Name<'_> {
        self.with_prefix(READERS)
    }

    /// Sorted set of dlock's waiting writers, by arrival. Not known to Redisson.
    pub(crate) fn writers(&self) -> Name<'_> {
        self.with_prefix(WRITERS)
    }

    /// Sorted set of dlock's waiting readers and writers, by the time at which each of them
    /// expires. Not known to Redisson.
    pub(crate) fn rw_heartbeats(&self) -> Name<'_> {
        self.with_prefix("dlock_rw_beats:")
    }

    /// Sorted set of the claims that hold a permit or wait for one, by arrival. Not known to
    /// Redisson.
    fn permits(&self) -> Name<'_> {
        self.with_prefix("dlock_permit_queue:")
    }

    /// Sorted set of the same claims, by the time at which each of them expires. `renew.lua` builds
    /// the name of the queue from this name.
    pub(crate) fn permit_heartbeats(&self) -> Name<'_> {
        self.with_prefix("dlock_permit_beats:")
    }

    /// Timeout key of a read hold, which exists as long as the hold.
    pub(crate) fn read_timeout<'a>(&'a self, owner: &'a str) -> Name<'a> {
        self.name("", [":", owner, ":rwlock_timeout:1"])
    }

    /// Channel that wakes the waiters of a mutex.
    pub(crate) fn channel(&self) -> Name<'_> {
        self.with_prefix(CHANNEL)
    }

    /// Channel that wakes one waiter of a fair lock or of a permit.
    pub(crate) fn waiter_channel<'a>(&'a self, owner: &'a str) -> Name<'a> {
        self.name(CHANNEL, [":", owner, ""])
    }

    /// Channel that wakes readers and writers.
    pub(crate) fn rw_channel(&self) -> Name<'_> {
        self.with_prefix("redisson_rwlock:")
    }
}

impl<'a> Name<'a> {
    fn whole(name: &'a str) -> Self {
        Self([name, "", "", "", "", "", ""])
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|part| f.write_str(part))
    }
}

impl ToRedisArgs for Name<'_> {
    fn write_redis_args<W: RedisWrite + ?Sized>(&self, out: &mut W) {
        let mut out = out.writer_for_next_arg();
        for part in self.0 {
            // Cannot fail, because the writer writes into memory.
            out.write_all(part.as_bytes()).ok();
        }
    }
}

/// Returns whether all keys of a lock are in one slot of a cluster. Otherwise the name is
/// irregular.
pub(crate) fn is_regular(lock: &str) -> bool {
    match lock.find('{') {
        None => !lock.contains('}'),
        Some(open) => lock[open + 1..].find('}').is_some_and(|length| length > 0),
    }
}

/// Type of the keys of waiters, and pattern of the beginning of their names. `list` uses them to
/// find locks with waiters but without a holder.
pub(crate) const WAITER_KEYS: [(&str, &str); 2] = [("list", "redisson_lock_queue:*"), ("zset", "dlock_rw_*")];

/// Beginning of the keys of irregular names on a cluster.
const ESCAPED: &str = "%odd:";

/// Returns the key of an irregular name on a cluster, or the beginning of such a key. It contains
/// no braces.
pub(crate) fn escape(name: &str) -> String {
    let escaped = name.replace('%', "%25").replace('{', "%7B").replace('}', "%7D");
    format!("{ESCAPED}{escaped}")
}

/// Returns the name of the lock that has this key on a cluster.
pub(crate) fn name_on_cluster(key: &str) -> String {
    match key.strip_prefix(ESCAPED) {
        Some(escaped) => escaped.replace("%7D", "}").replace("%7B", "{").replace("%25", "%"),
        None => key.to_owned(),
    }
}

const CHANNEL: &str = "redisson_lock__channel:";
const QUEUE: &str = "redisson_lock_queue:";
const READERS: &str = "dlock_rw_readers:";
const WRITERS: &str = "dlock_rw_writers:";

/// Returns the name of the lock if this is a key of its waiters.
pub(crate) fn lock_of_waiter_key(key: &str) -> Option<&str> {
    let tag = [QUEUE, READERS, WRITERS].iter().find_map(|prefix| key.strip_prefix(prefix))?;
    let inner = tag.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    Some(inner.filter(|inner| !inner.contains('{')).unwrap_or(tag))
}

/// Returns the name of a claim in scripts and keys, in Redisson's format `uuid:number`. The uuid
/// alone is unique. Redisson's number is the id of a thread and never 0, so 0 marks the claims of
/// dlock.
pub(crate) fn owner(id: ClaimId) -> String {
    format!("{id}:0")
}

/// Returns the key of the label of the claims whose ids begin with `key`. It belongs to no lock, so
/// on a cluster it may be in any slot.
pub(crate) fn label_key(prefix: &str, key: [u8; Who::KEY_LEN]) -> String {
    let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{prefix}dlock_who:{digits}")
}

/// Returns the beginning of a claim's id, which is the key of its label. Returns `None` for a claim
/// of another program.
pub(crate) fn who_key(owner: &str) -> Option<[u8; Who::KEY_LEN]> {
    let id = owner.strip_suffix(":0").filter(|id| id.len() == 36)?;
    let mut digits = id.bytes().filter(|byte| *byte != b'-').map(|byte| (byte as char).to_digit(16));
    let mut key = [0; Who::KEY_LEN];
    for byte in &mut key {
        *byte = u8::try_from(digits.next()?? * 16 + digits.next()??).ok()?;
    }
    Some(key)
}

/// Returns a pattern for `SCAN`: `beginning`, which is itself a pattern, then `prefix` as literal
/// text, then any text.
pub(crate) fn pattern(beginning: &str, prefix: &str) -> String {
    let mut pattern = String::from(beginning);
    for c in prefix.chars() {
        if "*?[]\\^-".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('*');
    pattern
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    fn lock_name(name: &str) -> LockName {
        LockName::new(name).expect("legal")
    }

    #[test]
    fn keys_are_named_as_redisson_names_them() {
        let keys = Keys::new("", &lock_name("foo"));
        assert_eq!(keys.lock(), "foo");
        assert_eq!(keys.channel().to_string(), "redisson_lock__channel:{foo}");
        assert_eq!(keys.rw_channel().to_string(), "redisson_rwlock:{foo}");
        assert_eq!(keys.queue().to_string(), "redisson_lock_queue:{foo}");
        assert_eq!(keys.deadlines().to_string(), "redisson_lock_timeout:{foo}");
        assert_eq!(keys.token().to_string(), "redisson_lock_token:{foo}");
        assert_eq!(keys.read_timeout("2b9e:31").to_string(), "{foo}:2b9e:31:rwlock_timeout:1");
        assert_eq!(
            keys.for_permit().map(|key| key.to_string()),
            ["foo", "dlock_permit_queue:{foo}", "dlock_permit_beats:{foo}"]
        );
        let keys = Keys::new("", &lock_name("a{b}c"));
        assert_eq!(keys.read_timeout("2b9e:31").to_string(), "a{b}c:2b9e:31:rwlock_timeout:1");
        assert_eq!(keys.channel().to_string(), "redisson_lock__channel:a{b}c");
    }

    #[test]
    fn a_name_and_the_name_in_braces_are_two_locks_that_share_queue_channel_and_token() {
        for of in [Keys::new, Keys::on_cluster] {
            let [plain, in_braces] = ["x", "{x}"].map(|name| of("", &lock_name(name)));
            assert_ne!(plain.lock(), in_braces.lock());
            let shared =
                |keys: &Keys| [keys.queue(), keys.channel(), keys.token()].map(|key| key.to_string());
            assert_eq!(shared(&plain), shared(&in_braces));
        }
    }

    #[test]
    fn a_prefix_is_part_of_every_key() {
        let keys = Keys::new("app:", &lock_name("foo"));
        assert_eq!(
            (keys.lock(), keys.token().to_string()),
            ("app:foo", "redisson_lock_token:{app:foo}".to_owned())
        );
    }

    #[test]
    fn a_name_whose_keys_would_be_in_several_slots_is_escaped_on_a_cluster() {
        for (name, key) in [
            ("foo", "foo"),
            ("a{b}c", "a{b}c"),
            ("{x}", "{x}"),
            ("50%", "50%"),
            ("a{b", "%odd:a%7Bb"),
            ("a{}b", "%odd:a%7B%7Db"),
            ("a}b%7B", "%odd:a%7Db%257B"),
            ("%odd:x", "%odd:%25odd:x"),
        ] {
            let keys = Keys::on_cluster("", &lock_name(name));
            assert_eq!(keys.lock(), key);
            assert!(is_regular(keys.lock()));
            assert_eq!(name_on_cluster(key), name);
        }
    }

    #[test]
    fn a_key_of_waiters_yields_the_name_of_its_lock() {
        for name in ["foo", "a{b}c", "é"] {
            assert_eq!(lock_of_waiter_key(&Keys::new("", &lock_name(name)).queue().to_string()), Some(name));
        }
        assert_eq!(lock_of_waiter_key("foo"), None);
    }

    #[test]
    fn the_id_of_a_claim_of_dlock_begins_with_the_key_of_its_label() {
        let anna = Who::new("anna").expect("legal");
        let ours = owner(ClaimId::random_for(&anna));
        assert_eq!(who_key(&ours), Some(anna.key()));
        assert_eq!(label_key("app:", [0, 1, 0xab, 0xcd, 0xff]), "app:dlock_who:0001abcdff");
        let of_redisson = ours.replace(":0", ":31");
        for other in [&of_redisson, "", ":0", "x:0", "ééééééééééééééééééé:0", &ours.replace('-', "x")]
        {
            assert_eq!(who_key(other), None, "{other}");
        }
    }

    #[test]
    fn a_prefix_in_a_pattern_is_literal() {
        assert_eq!(pattern("", "a*[b]\\"), "a\\*\\[b\\]\\\\*");
        assert_eq!(pattern("dlock_*", "a"), "dlock_*a*");
    }
}
