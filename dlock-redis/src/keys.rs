//! Names of keys and channels, as Redisson forms them: the only place that does.

use dlock_core::ClaimId;

/// What of a lock stands where. `tag` of the reference: a name that has a `{` is its own hash tag.
pub(crate) struct Keys {
    lock: String,
    tag: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str, name: &str) -> Self {
        Self::of(format!("{prefix}{name}"))
    }

    /// On a cluster, where all of it must be in one slot. With an odd name Redisson takes a lock there and cannot release
    /// it, so nobody is missed if dlock calls it otherwise.
    pub(crate) fn on_cluster(prefix: &str, name: &str) -> Self {
        let keys = Self::new(prefix, name);
        if is_regular(&keys.lock) && !name.starts_with(ODD) {
            return keys;
        }
        Self::new(prefix, &odd(name))
    }

    fn of(lock: String) -> Self {
        let tag = if lock.contains('{') { lock.clone() } else { format!("{{{lock}}}") };
        Self { lock, tag }
    }

    /// The lock itself: a hash, or in the plain dialect a string.
    pub(crate) fn lock(&self) -> &str {
        &self.lock
    }

    pub(crate) fn tag(&self) -> &str {
        &self.tag
    }

    /// The last fencing token.
    pub(crate) fn token(&self) -> String {
        format!("redisson_lock_token:{}", self.tag)
    }

    /// Who waits for the fair lock, a list.
    pub(crate) fn queue(&self) -> String {
        format!("{QUEUE}{}", self.tag)
    }

    /// When those who wait for the fair lock are discarded, a sorted set.
    pub(crate) fn deadlines(&self) -> String {
        format!("redisson_lock_timeout:{}", self.tag)
    }

    /// When dlock's fair waiters are dead, a sorted set. Redisson does not know it.
    pub(crate) fn fair_beats(&self) -> String {
        format!("dlock_fair_beats:{}", self.tag)
    }

    /// dlock's readers that wait, by arrival. Redisson does not know it.
    pub(crate) fn readers(&self) -> String {
        format!("{READERS}{}", self.tag)
    }

    /// dlock's writers that wait, by arrival. Redisson does not know it.
    pub(crate) fn writers(&self) -> String {
        format!("{WRITERS}{}", self.tag)
    }

    /// When dlock's readers and writers that wait are dead. Redisson does not know it.
    pub(crate) fn rw_beats(&self) -> String {
        format!("dlock_rw_beats:{}", self.tag)
    }

    /// Lives as long as a read hold.
    pub(crate) fn read_timeout(&self, owner: &str) -> String {
        format!("{}:{owner}:rwlock_timeout:1", self.tag)
    }

    /// Where a mutex's waiters are woken, and with the owner behind it a fair one.
    pub(crate) fn channel(&self) -> String {
        format!("redisson_lock__channel:{}", self.tag)
    }

    pub(crate) fn fair_channel(&self, owner: &str) -> String {
        format!("redisson_lock__channel:{}:{owner}", self.tag)
    }

    /// Where readers and writers are woken.
    pub(crate) fn rw_channel(&self) -> String {
        format!("redisson_rwlock:{}", self.tag)
    }
}

/// Whether a key and all that are named after it are in one slot of a cluster.
pub(crate) fn is_regular(lock: &str) -> bool {
    match lock.find('{') {
        None => !lock.contains('}'),
        Some(open) => lock[open + 1..].find('}').is_some_and(|length| length > 0),
    }
}

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

const QUEUE: &str = "redisson_lock_queue:";
const READERS: &str = "dlock_rw_readers:";
const WRITERS: &str = "dlock_rw_writers:";

/// The name in a key of those who wait, where nobody may hold the lock.
pub(crate) fn waited_for(key: &str) -> Option<&str> {
    let tag = [QUEUE, READERS, WRITERS].iter().find_map(|prefix| key.strip_prefix(prefix))?;
    let inner = tag.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    Some(inner.filter(|inner| !inner.contains('{')).unwrap_or(tag))
}

/// A claim on the wire, in Redisson's shape `uuid:number`; the uuid alone is unique.
pub(crate) fn owner(id: ClaimId) -> String {
    format!("{id}:1")
}

/// A prefix as a pattern of SCAN that matches it literally, anywhere in a key.
pub(crate) fn pattern(prefix: &str) -> String {
    let mut pattern = String::from("*");
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

    #[test]
    fn keys_are_named_as_redisson_names_them() {
        let keys = Keys::new("", "foo");
        assert_eq!(keys.lock(), "foo");
        assert_eq!(keys.channel(), "redisson_lock__channel:{foo}");
        assert_eq!(keys.rw_channel(), "redisson_rwlock:{foo}");
        assert_eq!(keys.queue(), "redisson_lock_queue:{foo}");
        assert_eq!(keys.deadlines(), "redisson_lock_timeout:{foo}");
        assert_eq!(keys.token(), "redisson_lock_token:{foo}");
        assert_eq!(keys.read_timeout("2b9e:31"), "{foo}:2b9e:31:rwlock_timeout:1");
        let keys = Keys::new("", "a{b}c");
        assert_eq!(keys.read_timeout("2b9e:31"), "a{b}c:2b9e:31:rwlock_timeout:1");
        assert_eq!(keys.channel(), "redisson_lock__channel:a{b}c");
    }

    #[test]
    fn a_prefix_is_part_of_every_key() {
        let keys = Keys::new("app:", "foo");
        assert_eq!((keys.lock(), keys.token().as_str()), ("app:foo", "redisson_lock_token:{app:foo}"));
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
            let keys = Keys::on_cluster("", name);
            assert_eq!(keys.lock(), key);
            assert!(is_regular(keys.lock()));
            assert_eq!(name_on_cluster(key), name);
        }
    }

    #[test]
    fn the_name_of_a_queue_is_found_again() {
        for name in ["foo", "a{b}c", "é"] {
            assert_eq!(waited_for(&Keys::new("", name).queue()), Some(name));
        }
        assert_eq!(waited_for("foo"), None);
    }

    #[test]
    fn a_pattern_is_literal() {
        assert_eq!(pattern("a*[b]\\"), "*a\\*\\[b\\]\\\\*");
    }
}
