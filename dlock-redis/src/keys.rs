//! Names of keys and channels, as Redisson forms them: the only place that does. With its tests a few lines over.

use std::{fmt, io::Write, sync::Arc};

use dlock_core::{ClaimId, LockName};
use redis::{RedisWrite, ToRedisArgs};

/// What of a lock stands where.
pub(crate) struct Keys {
    lock: Arc<str>,
    /// Whether the lock is its own hash tag, because it has a `{`.
    tagged: bool,
}

/// A key or a channel, in parts that are put together in the command.
#[derive(Clone, Copy)]
pub(crate) struct Name<'a>([&'a str; 7]);

impl Keys {
    pub(crate) fn new(prefix: &str, name: &LockName) -> Self {
        Self::of(if prefix.is_empty() { name.shared() } else { format!("{prefix}{name}").into() })
    }

    /// On a cluster, where all of it must be in one slot. With an odd name Redisson takes a lock there and cannot release
    /// it, so nobody is missed if dlock calls it otherwise.
    pub(crate) fn on_cluster(prefix: &str, name: &LockName) -> Self {
        let keys = Self::new(prefix, name);
        if is_regular(&keys.lock) && !name.as_str().starts_with(ODD) {
            return keys;
        }
        Self::of(format!("{prefix}{}", odd(name.as_str())).into())
    }

    fn of(lock: Arc<str>) -> Self {
        let tagged = lock.contains('{');
        Self { lock, tagged }
    }

    fn name<'a>(&'a self, before: &'a str, [colon, owner, after]: [&'a str; 3]) -> Name<'a> {
        let [open, close] = if self.tagged { ["", ""] } else { ["{", "}"] };
        Name([before, open, &self.lock, close, colon, owner, after])
    }

    fn named<'a>(&'a self, before: &'a str) -> Name<'a> {
        self.name(before, [""; 3])
    }

    /// The lock itself: a hash, or in the plain dialect a string.
    pub(crate) fn lock(&self) -> &str {
        &self.lock
    }

    /// The keys of `fair.lua`.
    pub(crate) fn of_fair(&self) -> [Name<'_>; 4] {
        [Name::whole(&self.lock), self.queue(), self.deadlines(), self.fair_beats()]
    }

    /// The keys of `rw.lua`.
    pub(crate) fn of_rw<'a>(&'a self, owner: &'a str) -> [Name<'a>; 5] {
        [Name::whole(&self.lock), self.readers(), self.writers(), self.rw_beats(), self.read_timeout(owner)]
    }

    /// The `tag` of the reference.
    pub(crate) fn tag(&self) -> Name<'_> {
        self.named("")
    }

    /// The last fencing token.
    pub(crate) fn token(&self) -> Name<'_> {
        self.named("redisson_lock_token:")
    }

    /// Who waits for the fair lock, a list.
    pub(crate) fn queue(&self) -> Name<'_> {
        self.named(QUEUE)
    }

    /// When those who wait for the fair lock are discarded, a sorted set.
    pub(crate) fn deadlines(&self) -> Name<'_> {
        self.named("redisson_lock_timeout:")
    }

    /// When dlock's fair waiters are dead, a sorted set. Redisson does not know it.
    pub(crate) fn fair_beats(&self) -> Name<'_> {
        self.named("dlock_fair_beats:")
    }

    /// dlock's readers that wait, by arrival. Redisson does not know it.
    pub(crate) fn readers(&self) -> Name<'_> {
        self.named(READERS)
    }

    /// dlock's writers that wait, by arrival. Redisson does not know it.
    pub(crate) fn writers(&self) -> Name<'_> {
        self.named(WRITERS)
    }

    /// When dlock's readers and writers that wait are dead. Redisson does not know it.
    pub(crate) fn rw_beats(&self) -> Name<'_> {
        self.named("dlock_rw_beats:")
    }

    /// Lives as long as a read hold.
    pub(crate) fn read_timeout<'a>(&'a self, owner: &'a str) -> Name<'a> {
        self.name("", [":", owner, ":rwlock_timeout:1"])
    }

    /// Where a mutex's waiters are woken, and with the owner behind it a fair one.
    pub(crate) fn channel(&self) -> Name<'_> {
        self.named(CHANNEL)
    }

    pub(crate) fn fair_channel<'a>(&'a self, owner: &'a str) -> Name<'a> {
        self.name(CHANNEL, [":", owner, ""])
    }

    /// Where readers and writers are woken.
    pub(crate) fn rw_channel(&self) -> Name<'_> {
        self.named("redisson_rwlock:")
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
            // Into memory, which takes everything.
            out.write_all(part.as_bytes()).ok();
        }
    }
}

/// Whether a key and all that are named after it are in one slot of a cluster.
pub(crate) fn is_regular(lock: &str) -> bool {
    match lock.find('{') {
        None => !lock.contains('}'),
        Some(open) => lock[open + 1..].find('}').is_some_and(|length| length > 0),
    }
}

/// Where locks that somebody waits for are found, which nobody may hold: the type of the keys, and a pattern of how they begin.
pub(crate) const WAITED_FOR: [(&str, &str); 2] = [("list", "redisson_lock_queue:*"), ("zset", "dlock_rw_*")];

/// How odd names begin on a cluster.
const ODD: &str = "%odd:";

/// What stands for an odd name, or for the beginning of one: without braces.
pub(crate) fn odd(name: &str) -> String {
    let escaped = name.replace('%', "%25").replace('{', "%7B").replace('}', "%7D");
    format!("{ODD}{escaped}")
}

/// The name that a key's stands for, on a cluster.
pub(crate) fn name_on_cluster(found: &str) -> String {
    match found.strip_prefix(ODD) {
        Some(odd) => odd.replace("%7D", "}").replace("%7B", "{").replace("%25", "%"),
        None => found.to_owned(),
    }
}

const CHANNEL: &str = "redisson_lock__channel:";
const QUEUE: &str = "redisson_lock_queue:";
const READERS: &str = "dlock_rw_readers:";
const WRITERS: &str = "dlock_rw_writers:";

/// The name in a key of those who wait, where nobody may hold the lock.
pub(crate) fn waited_for(key: &str) -> Option<&str> {
    let tag = [QUEUE, READERS, WRITERS].iter().find_map(|prefix| key.strip_prefix(prefix))?;
    let inner = tag.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    Some(inner.filter(|inner| !inner.contains('{')).unwrap_or(tag))
}

/// A claim on the wire, in Redisson's shape `uuid:number`; the uuid alone is unique. Redisson's number is a thread's, and never
/// 0: so scripts can tell which of the two wrote a field.
pub(crate) fn owner(id: ClaimId) -> String {
    format!("{id}:0")
}

/// A pattern of SCAN for what begins so, with this text, taken literally, behind it.
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
mod tests {
    use super::*;

    fn named(name: &str) -> LockName {
        LockName::new(name).expect("legal")
    }

    #[test]
    fn keys_are_named_as_redisson_names_them() {
        let keys = Keys::new("", &named("foo"));
        assert_eq!(keys.lock(), "foo");
        assert_eq!(keys.channel().to_string(), "redisson_lock__channel:{foo}");
        assert_eq!(keys.rw_channel().to_string(), "redisson_rwlock:{foo}");
        assert_eq!(keys.queue().to_string(), "redisson_lock_queue:{foo}");
        assert_eq!(keys.deadlines().to_string(), "redisson_lock_timeout:{foo}");
        assert_eq!(keys.token().to_string(), "redisson_lock_token:{foo}");
        assert_eq!(keys.read_timeout("2b9e:31").to_string(), "{foo}:2b9e:31:rwlock_timeout:1");
        let keys = Keys::new("", &named("a{b}c"));
        assert_eq!(keys.read_timeout("2b9e:31").to_string(), "a{b}c:2b9e:31:rwlock_timeout:1");
        assert_eq!(keys.channel().to_string(), "redisson_lock__channel:a{b}c");
    }

    #[test]
    fn a_prefix_is_part_of_every_key() {
        let keys = Keys::new("app:", &named("foo"));
        assert_eq!(
            (keys.lock(), keys.token().to_string()),
            ("app:foo", "redisson_lock_token:{app:foo}".to_owned())
        );
    }

    #[test]
    fn a_cluster_calls_names_otherwise_that_would_be_spread_over_slots() {
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
            let keys = Keys::on_cluster("", &named(name));
            assert_eq!(keys.lock(), key);
            assert!(is_regular(keys.lock()));
            assert_eq!(name_on_cluster(key), name);
        }
    }

    #[test]
    fn the_name_of_a_queue_is_found_again() {
        for name in ["foo", "a{b}c", "é"] {
            assert_eq!(waited_for(&Keys::new("", &named(name)).queue().to_string()), Some(name));
        }
        assert_eq!(waited_for("foo"), None);
    }

    #[test]
    fn a_pattern_is_literal() {
        assert_eq!(pattern("", "a*[b]\\"), "a\\*\\[b\\]\\\\*");
        assert_eq!(pattern("dlock_*", "a"), "dlock_*a*");
    }
}
