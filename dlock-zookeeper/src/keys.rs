//! How names and claims are written as nodes. No other file knows. Over the usual length with its tests.
//!
//! A lock is a directory: a node below the base path. Each claim is an ephemeral node in it, which the server numbers:
//!
//! ```text
//! /dlock/invoice%2F42/_c_<id>-lock-0000000007            mutex, as Curator's InterProcessMutex
//!                     _c_<id>-fair-lock-0000000008       fair; Curator takes it for a mutex
//!                     _c_<id>-permit-4-lock-0000000009   one of four permits; Curator takes it for a mutex
//!                     _c_<id>-__READ__0000000010         read and write, as Curator's InterProcessReadWriteLock
//!                     _c_<id>-__WRIT__0000000011
//! ```
//!
//! The id is in capital letters. Curator writes small ones, so dlock can tell its own nodes from Curator's.

use std::{cmp::Ordering, num::NonZeroU32};

use dlock_core::{ClaimId, Error, Kind, LockName, Result};
use percent_encoding::percent_decode_str;

/// What Curator looks for in the name of a mutex's node.
const LOCK: &str = "lock-";
const READ: &str = "__READ__";
const WRITE: &str = "__WRIT__";
const MARKERS: [&str; 3] = [LOCK, READ, WRITE];

/// What stands before the number of permits.
const PERMIT: &str = "-permit-";
const FAIR: &str = "-fair-";

/// Before the id, as Curator's protected names have it.
const PROTECTED: &str = "_c_";

/// What somebody writes into a holder's node to ask the holder to release the lock.
pub(crate) const REVOKE: &[u8] = b"__REVOKE__";

/// The length of an id as text.
const ID: usize = 36;

/// How a lock's name becomes the name of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// What a node's name cannot have in it is written as `%` and two digits. Any name can be used.
    Encoded,
    /// As it is. A name that no node can have is refused.
    Exact,
}

/// Whether no server takes this character in a path.
fn is_refused(c: char) -> bool {
    matches!(u32::from(c), 0..=0x1f | 0x7f..=0x9f | 0xd800..=0xf8ff | 0xfff0..)
}

/// Checks a path: empty, or `/a/b`.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn check_path(path: &str) -> std::result::Result<(), String> {
    let Some(path) = path.strip_prefix('/') else {
        return if path.is_empty() { Ok(()) } else { Err("that does not begin with a slash".to_owned()) };
    };
    if let Some(refused) = path.chars().find(|c| is_refused(*c)) {
        return Err(format!("with U+{:04X}, which no server takes", u32::from(refused)));
    }
    match path.split('/').find(|part| matches!(*part, "" | "." | "..")) {
        Some("") => Err("with an empty part".to_owned()),
        Some(part) => Err(format!("with the part `{part}`, which no server takes")),
        None => Ok(()),
    }
}

/// The path of a lock's directory.
///
/// # Errors
/// [`Error::InvalidName`] for a name that no node can have, if names are to be exact.
pub(crate) fn directory(base: &str, names: Names, name: &LockName) -> Result<String> {
    let written = match names {
        Names::Encoded => encode(name.as_str()),
        Names::Exact => {
            let text = name.as_str();
            let wrong = check_path(&format!("/{text}")).err().or_else(|| {
                text.contains('/')
                    .then(|| "with a slash, which would be a directory in a directory".to_owned())
            });
            let is_servers = base.is_empty() && text == "zookeeper";
            let wrong = wrong.or_else(|| is_servers.then(|| "of the servers' own node".to_owned()));
            if let Some(wrong) = wrong {
                let reason = format!("`names=exact`, and this is a name {wrong}");
                return Err(Error::InvalidName { name: text.to_owned(), reason });
            }
            text.to_owned()
        }
    };
    if base.is_empty() && written == "zookeeper" {
        return Ok("/%7Aookeeper".to_owned());
    }
    Ok(format!("{base}/{written}"))
}

/// The nodes that must be there for a directory, the first first.
pub(crate) fn ancestors(directory: &str) -> Vec<&str> {
    let ends = directory.match_indices('/').map(|(at, _)| at).skip(1).chain([directory.len()]);
    ends.map(|end| &directory[..end]).collect()
}

fn encode(name: &str) -> String {
    let is_relative = matches!(name, "." | "..");
    let mut written = String::with_capacity(name.len());
    for c in name.chars() {
        if is_refused(c) || matches!(c, '/' | '%') || is_relative {
            c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| written.push_str(&format!("%{byte:02X}")));
        } else {
            written.push(c);
        }
    }
    written
}

/// The name of the lock whose directory has this name below the base path. `None` if no lock's directory has it.
pub(crate) fn name_of(base: &str, names: Names, written: &str) -> Option<LockName> {
    let name = match names {
        Names::Exact => LockName::new(written).ok()?,
        Names::Encoded => LockName::new(percent_decode_str(written).decode_utf8().ok()?).ok()?,
    };
    (directory(base, names, &name).ok()? == format!("{base}/{written}")).then_some(name)
}

/// What the name of a claim's node begins with. The server appends the number.
pub(crate) fn prefix(id: ClaimId, kind: Kind, limit: NonZeroU32) -> String {
    let id = id.to_string().to_uppercase();
    match kind {
        Kind::Read => format!("{PROTECTED}{id}-{READ}"),
        Kind::Write => format!("{PROTECTED}{id}-{WRITE}"),
        Kind::Fair => format!("{PROTECTED}{id}{FAIR}{LOCK}"),
        Kind::Permit => format!("{PROTECTED}{id}{PERMIT}{limit}-{LOCK}"),
        _ => format!("{PROTECTED}{id}-{LOCK}"),
    }
}

/// What a heartbeat deletes: a node that no lock has, in a version that no node has, so that nothing is deleted.
pub(crate) const NO_NODE: &str = "/dlock heartbeat";
pub(crate) const NO_VERSION: i32 = -2;

/// What nobody can create, since there is no node above it.
pub(crate) const BELOW_NO_NODE: &str = "/dlock heartbeat/none";

/// What every node of a claim begins with.
pub(crate) fn stem(id: ClaimId) -> String {
    format!("{PROTECTED}{}-", id.to_string().to_uppercase())
}

/// A number as the server writes it behind a name.
pub(crate) fn digits(number: i64) -> String {
    let width = if number > i32::MAX.into() { 19 } else { 10 };
    format!("{number:0width$}")
}

/// A claim's node, of whatever program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) limit: NonZeroU32,
    pub(crate) number: i64,
}

impl Node {
    /// Reads the name of a node. `None` if it is not that of a numbered claim.
    pub(crate) fn of(name: String) -> Option<Self> {
        let (marker, at) = MARKERS
            .iter()
            .filter_map(|marker| name.rfind(marker).map(|at| (*marker, at)))
            .max_by_key(|(marker, at)| at + marker.len())?;
        let rest = &name[at + marker.len()..];
        let is_number =
            rest.len() >= 10 && rest.strip_prefix('-').unwrap_or(rest).bytes().all(|b| b.is_ascii_digit());
        let number = rest.parse().ok().filter(|_| is_number)?;
        let (mut kind, mut limit) = (Kind::Mutex, NonZeroU32::MIN);
        match marker {
            READ => kind = Kind::Read,
            WRITE => kind = Kind::Write,
            _ => {
                let between = if is_own(&name) { &name[PROTECTED.len() + ID..at] } else { "" };
                if between == FAIR {
                    kind = Kind::Fair;
                } else if let Some(count) =
                    between.strip_prefix(PERMIT).and_then(|rest| rest.strip_suffix('-'))
                {
                    (kind, limit) = (Kind::Permit, count.parse().ok()?);
                }
            }
        }
        Some(Self { name, kind, limit, number })
    }

    /// A node that is no claim, to show it.
    pub(crate) fn stray(name: String) -> Self {
        Self { name, kind: Kind::Mutex, limit: NonZeroU32::MIN, number: 0 }
    }

    /// Whether dlock made it.
    pub(crate) fn is_own(&self) -> bool {
        is_own(&self.name)
    }

    /// The claim's id, if dlock made the node.
    pub(crate) fn id(&self) -> Option<String> {
        self.is_own().then(|| self.name[PROTECTED.len()..PROTECTED.len() + ID].to_lowercase())
    }

    /// Whether another program made it for a kind of lock whose nodes do not heed those of `kind`.
    pub(crate) fn ignores(&self, kind: Kind) -> bool {
        is_shared(self.kind) != is_shared(kind) && !self.is_own()
    }

    /// Compares the places of two nodes in the queue. Names decide between nodes with one number, as in Curator.
    pub(crate) fn order(&self, other: &Self) -> Ordering {
        self.number.cmp(&other.number).then_with(|| self.name.cmp(&other.name))
    }
}

/// Whether a name is a node's of dlock.
fn is_own(name: &str) -> bool {
    let Some(id) = name.strip_prefix(PROTECTED).and_then(|rest| rest.get(..ID)) else { return false };
    id.bytes().all(|byte| byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte) || byte == b'-')
}

fn is_shared(kind: Kind) -> bool {
    matches!(kind, Kind::Read | Kind::Write)
}

/// Distance from the end of the server's counter at which dlock makes no more nodes in a directory.
///
/// The counter has 31 bits. At 2147483647 it stands still: all further nodes get that number, so several claims could hold
/// together. The distance leaves room for other programs, and for all requests that are under way.
const RESERVE: i64 = 1_000_000;

/// Whether the counter of the directory in which the server gave this number is used up.
pub(crate) fn is_used_up(number: i64) -> bool {
    number < 0 || number >= i64::from(i32::MAX) - RESERVE
}

/// Whether Curator would let a node that is no numbered claim go before a claim of this kind and number. Curator sorts the
/// nodes of a directory by the text behind the marker, or by their whole names.
pub(crate) fn blocks(stray: &str, kind: Kind, number: i64) -> bool {
    let key = match kind {
        Kind::Read if !stray.contains(WRITE) => return false,
        Kind::Read | Kind::Write => after(after(stray, READ), WRITE),
        _ => after(stray, LOCK),
    };
    key < digits(number).as_str()
}

fn after<'a>(text: &'a str, marker: &str) -> &'a str {
    text.rfind(marker).map_or(text, |at| &text[at + marker.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> LockName {
        LockName::new(text).expect(text)
    }

    fn node(text: &str) -> Node {
        Node::of(text.to_owned()).expect(text)
    }

    #[test]
    fn an_ordinary_name_is_written_as_it_is() {
        assert_eq!(directory("/dlock", Names::Encoded, &name("job-7 é")).unwrap(), "/dlock/job-7 é");
        assert_eq!(directory("", Names::Exact, &name("job%7")).unwrap(), "/job%7");
    }

    #[test]
    fn what_no_node_can_be_called_is_encoded_or_refused() {
        for (text, written) in [
            ("a/b", "/b/a%2Fb"),
            ("100%", "/b/100%25"),
            (".", "/b/%2E"),
            ("..", "/b/%2E%2E"),
            ("🔒", "/b/%F0%9F%94%92"),
            ("\u{e000}", "/b/%EE%80%80"),
        ] {
            assert_eq!(directory("/b", Names::Encoded, &name(text)).unwrap(), written);
            let is_legal = directory("/b", Names::Exact, &name(text)).is_ok();
            assert_eq!(is_legal, text == "100%", "{text}");
        }
    }

    #[test]
    fn the_servers_own_node_is_no_locks_directory() {
        let (own, other) = (name("zookeeper"), name("%7Aookeeper"));
        assert_eq!(directory("", Names::Encoded, &own).unwrap(), "/%7Aookeeper");
        directory("", Names::Exact, &own)
            .expect_err("it would be the directory of `%7Aookeeper`, or the servers' own");
        assert_eq!(directory("", Names::Exact, &other).unwrap(), "/%7Aookeeper");
        assert_eq!(directory("/b", Names::Exact, &own).unwrap(), "/b/zookeeper");
        assert_eq!(name_of("", Names::Encoded, "%7Aookeeper"), Some(own.clone()));
        assert_eq!(name_of("", Names::Exact, "%7Aookeeper"), Some(other));
        assert_eq!(name_of("/b", Names::Encoded, "zookeeper"), Some(own));
        for (base, names, foreign) in [
            ("", Names::Encoded, "zookeeper"),
            ("", Names::Exact, "zookeeper"),
            ("/b", Names::Encoded, "%7Aookeeper"),
        ] {
            assert_eq!(name_of(base, names, foreign), None, "{base}/{foreign}");
        }
    }

    #[test]
    fn a_nodes_name_tells_what_the_claim_wants() {
        let id = ClaimId::from_bytes([0xab; 16]);
        let four = NonZeroU32::new(4).unwrap();
        for kind in [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit] {
            let read = node(&format!("{}0000000012", prefix(id, kind, four)));
            assert_eq!((read.kind, read.number), (kind, 12));
            assert_eq!(read.limit.get(), if kind == Kind::Permit { 4 } else { 1 });
            assert_eq!(read.id().as_deref(), Some("abababab-abab-abab-abab-abababababab"));
            assert!(
                read.name.starts_with(&stem(id)) && !read.ignores(Kind::Mutex) && !read.ignores(Kind::Write)
            );
        }
    }

    #[test]
    fn nodes_of_curator_and_kazoo_are_read() {
        for (text, kind, number) in [
            ("_c_caa75163-f1f4-467d-9207-2ba259767d1e-lock-0000000000", Kind::Mutex, 0),
            ("_c_caa75163-f1f4-467d-9207-2ba259767d1e-__WRIT__0000000003", Kind::Write, 3),
            ("caa75163f1f4467d92072ba259767d1e-__READ__0000000004", Kind::Read, 4),
            ("caa75163f1f4467d92072ba259767d1e-lock--000000005", Kind::Mutex, -5),
            ("x-lock-2147483648", Kind::Mutex, 2_147_483_648),
            ("a-lock-lock-0000000001", Kind::Mutex, 1),
        ] {
            let read = node(text);
            assert_eq!((read.kind, read.number, read.id()), (kind, number, None), "{text}");
            let other = if kind == Kind::Mutex { Kind::Read } else { Kind::Fair };
            assert!(read.ignores(other) && !read.ignores(kind), "{text}");
        }
    }

    #[test]
    fn what_is_no_claim_is_not_taken_for_one() {
        for text in
            ["0", "", "lock-", "zlock-a", "lock-日bcdefghi", "日本", "x__lock__0000000001", "lock-000000001"]
        {
            assert_eq!(Node::of(text.to_owned()), None, "{text}");
        }
    }

    #[test]
    fn a_counter_near_its_end_is_used_up() {
        for (number, is_near) in
            [(0, false), (2_146_000_000, false), (2_147_000_000, true), (2_147_483_647, true)]
        {
            assert_eq!(is_used_up(number), is_near, "{number}");
        }
        assert!(is_used_up(-2_147_483_648), "an old server's counter has passed its end");
        assert_eq!(node("b-lock-0000000001").order(&node("a-lock-0000000002")), Ordering::Less);
    }

    /// What Curator 5.9 did with each stray node in an otherwise empty directory, for a claim with the number 1.
    #[test]
    fn a_stray_node_blocks_whom_it_blocks_in_curator() {
        for (strays, mutex, read, write) in [
            (&["0", "00", "-1", "!", " "][..], true, false, true),
            (&["1", "9", "A", "zzz", "日本", "locks", "leases"], false, false, false),
            (&["lock-", "zlock-", "lock--0000000001"], true, false, false),
            (&["zlock-a", "lock-日bcdefghi"], false, false, false),
            (&["__WRIT__", "a__WRIT__0000000000b"], false, true, true),
            (&["00000000000000000000000000000000__lock__x"], true, false, true),
        ] {
            for stray in strays {
                let blocked = [Kind::Mutex, Kind::Read, Kind::Write].map(|kind| blocks(stray, kind, 1));
                assert_eq!(blocked, [mutex, read, write], "`{stray}`");
            }
        }
    }

    proptest! {
        #[test]
        fn no_two_names_have_one_directory(a in "\\PC{1,20}", b in "\\PC{1,20}") {
            let (Ok(a), Ok(b)) = (LockName::new(a), LockName::new(b)) else { return Ok(()) };
            let written = [&a, &b].map(|name| directory("", Names::Encoded, name).unwrap());
            prop_assert_eq!(written[0] == written[1], a == b);
            prop_assert!(check_path(&written[0]).is_ok(), "{}", written[0]);
            prop_assert_eq!(name_of("", Names::Encoded, &written[0][1..]), Some(a));
        }

        #[test]
        fn no_name_of_a_node_makes_the_parser_panic(text in "\\PC{0,60}", marker in 0..3_usize, number in "-?[0-9]{0,12}") {
            let _ = Node::of(format!("{text}{}{number}", MARKERS[marker])).map(|node| node.id());
            blocks(&text, Kind::Write, 1);
        }
    }
}
