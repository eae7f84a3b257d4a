//! The names of keys and channels, as Redisson forms them. No other file forms names. With its tests a few lines over the usual
//! length.

use std::{fmt, io::Write, sync::Arc};

use dlock_core::{ClaimId, LockName, Who};
use redis::{RedisWrite, ToRedisArgs};

/// The names of one lock's keys and channels.
#[derive(Clone)]
pub(crate) struct Keys {
    lock: Arc<str>,
    /// Whether the lock's name has a `{`. It is then taken to have a hash tag, and stands without further braces in other names.
    tagged: bool,
}

/// The name of a key or a channel, in parts that are put together when the command is written.
#[derive(Clone, Copy)]
pub(crate) struct Name<'a>([&'a str; 7]);

impl Keys {
    pub(crate) fn new(prefix: &str, name: &LockName) -> Self {
        Self::of(if prefix.is_empty() { name.to_arc() } else { format!("{prefix}{name}").into() })
    }

    /// The names on a cluster, where all keys of a lock must be in one slot. If they would not be, the lock's name is odd, and
    /// dlock gives its key another name. That excludes nobody: Redisson can take a lock with an odd name, but cannot release it.
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

    /// The keys of `permit.lua`.
    pub(crate) fn of_permit(&self) -> [Name<'_>; 3] {
        [Name::whole(&self.lock), self.permits(), self.permit_beats()]
    }

    /// The lock's name as it stands in other names: in braces, unless it has a `{`. Scripts form the names of timeout keys with it.
    pub(crate) fn tag(&self) -> Name<'_> {
        self.named("")
    }

    /// The last fencing token.
    pub(crate) fn token(&self) -> Name<'_> {
        self.named("redisson_lock_token:")
    }

    /// The list of those who wait for the fair lock.
    pub(crate) fn queue(&self) -> Name<'_> {
        self.named(QUEUE)
    }

    /// A sorted set: when each waiter of the fair lock is discarded.
    pub(crate) fn deadlines(&self) -> Name<'_> {
        self.named("redisson_lock_timeout:")
    }

    /// A sorted set: from when each of dlock's fair waiters counts as dead. Redisson does not know it.
    pub(crate) fn fair_beats(&self) -> Name<'_> {
        self.named("dlock_fair_beats:")
    }

    /// A sorted set: dlock's waiting readers, by arrival. Redisson does not know it.
    pub(crate) fn readers(&self) -> Name<'_> {
        self.named(READERS)
    }

    /// A sorted set: dlock's waiting writers, by arrival. Redisson does not know it.
    pub(crate) fn writers(&self) -> Name<'_> {
        self.named(WRITERS)
    }

    /// A sorted set: from when each of dlock's waiting readers and writers counts as dead. Redisson does not know it.
    pub(crate) fn rw_beats(&self) -> Name<'_> {
        self.named("dlock_rw_beats:")
    }

    /// A sorted set: who holds a permit or waits for one, by arrival. Redisson does not know it.
    fn permits(&self) -> Name<'_> {
        self.named("dlock_permit_queue:")
    }

    /// A sorted set: from when each of those counts as dead. `renew.lua` makes the name of the queue of this one.
    pub(crate) fn permit_beats(&self) -> Name<'_> {
        self.named("dlock_permit_beats:")
    }

    /// The timeout key of a read hold, which lives as long as the hold.
    pub(crate) fn read_timeout<'a>(&'a self, owner: &'a str) -> Name<'a> {
        self.name("", [":", owner, ":rwlock_timeout:1"])
    }

    /// The channel that wakes the waiters of a mutex.
    pub(crate) fn channel(&self) -> Name<'_> {
        self.named(CHANNEL)
    }

    /// The channel that wakes this one waiter of a fair lock or of a permit.
    pub(crate) fn fair_channel<'a>(&'a self, owner: &'a str) -> Name<'a> {
        self.name(CHANNEL, [":", owner, ""])
    }

    /// The channel that wakes readers and writers.
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
            // Cannot fail: the writer writes into memory.
            out.write_all(part.as_bytes()).ok();
        }
    }
}

/// Whether a lock's key and all its other keys are in one slot of a cluster. A name for which they are not is odd.
pub(crate) fn is_regular(lock: &str) -> bool {
    match lock.find('{') {
        None => !lock.contains('}'),
        Some(open) => lock[open + 1..].find('}').is_some_and(|length| length > 0),
    }
}

/// The keys of waiters: their type, and a pattern of how they begin. `list` finds locks by them that have waiters but no holder.
pub(crate) const WAITED_FOR: [(&str, &str); 2] = [("list", "redisson_lock_queue:*"), ("zset", "dlock_rw_*")];

/// How the keys of odd names begin on a cluster.
const ODD: &str = "%odd:";

/// The key of an odd name on a cluster, or the beginning of such a key. It has no braces.
pub(crate) fn odd(name: &str) -> String {
    let escaped = name.replace('%', "%25").replace('{', "%7B").replace('}', "%7D");
    format!("{ODD}{escaped}")
}

/// The name of the lock that has this key on a cluster.
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

/// The name of the lock, if this is a key of its waiters.
pub(crate) fn waited_for(key: &str) -> Option<&str> {
    let tag = [QUEUE, READERS, WRITERS].iter().find_map(|prefix| key.strip_prefix(prefix))?;
    let inner = tag.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    Some(inner.filter(|inner| !inner.contains('{')).unwrap_or(tag))
}

/// A claim as scripts and keys name it, in Redisson's form `uuid:number`. The uuid alone is unique. Redisson's number is the id of
/// a thread and never 0, so scripts can tell whether dlock or Redisson wrote a field.
pub(crate) fn owner(id: ClaimId) -> String {
    format!("{id}:0")
}

/// The key of the text that says who has the claims whose ids begin with `key`. It is of no lock, so on a cluster it may be in any
/// slot.
pub(crate) fn who(prefix: &str, key: [u8; Who::KEY_LEN]) -> String {
    let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{prefix}dlock_who:{digits}")
}

/// With what the id of a claim begins; `None` for a claim that dlock did not make.
pub(crate) fn who_key(owner: &str) -> Option<[u8; Who::KEY_LEN]> {
    let id = owner.strip_suffix(":0").filter(|id| id.len() == 36)?;
    let mut digits = id.bytes().filter(|byte| *byte != b'-').map(|byte| (byte as char).to_digit(16));
    let mut key = [0; Who::KEY_LEN];
    for byte in &mut key {
        *byte = u8::try_from(digits.next()?? * 16 + digits.next()??).ok()?;
    }
    Some(key)
}

/// A pattern for `SCAN`: `beginning`, which is a pattern itself, then `prefix` taken literally, then anything.
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
        assert_eq!(
            keys.of_permit().map(|key| key.to_string()),
            ["foo", "dlock_permit_queue:{foo}", "dlock_permit_beats:{foo}"]
        );
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
    fn the_id_of_a_claim_of_dlock_leads_to_the_text_that_says_who_has_it() {
        let anna = Who::new("anna").expect("legal");
        let ours = owner(ClaimId::random_for(&anna));
        assert_eq!(who_key(&ours), Some(anna.key()));
        assert_eq!(who("app:", [0, 1, 0xab, 0xcd, 0xff]), "app:dlock_who:0001abcdff");
        let of_redisson = ours.replace(":0", ":31");
        for other in [&of_redisson, "", ":0", "x:0", "ééééééééééééééééééé:0", &ours.replace('-', "x")]
        {
            assert_eq!(who_key(other), None, "{other}");
        }
    }

    #[test]
    fn a_pattern_is_literal() {
        assert_eq!(pattern("", "a*[b]\\"), "a\\*\\[b\\]\\\\*");
        assert_eq!(pattern("dlock_*", "a"), "dlock_*a*");
    }
}
