//! The format of the paths and names of nodes. No other file depends on it.
//!
//! A lock is a directory, which is a node below the base path. Each claim is an ephemeral node in
//! the directory, which the server numbers:
//!
//! ```text
//! /dlock/invoice%2F42/_c_<id>-lock-0000000007            mutex, as Curator's InterProcessMutex
//!                     _c_<id>-fair-lock-0000000008       fair; a mutex to Curator
//!                     _c_<id>-permit-4-lock-0000000009   one of four permits; a mutex to Curator
//!                     _c_<id>-__READ__0000000010         read and write, as Curator's InterProcessReadWriteLock
//!                     _c_<id>-__WRIT__0000000011
//!                     _c_<id>-latch-0000000012           candidate with `elections=latch`, as Curator's LeaderLatch
//! ```
//!
//! dlock writes the id in upper case and Curator in lower case, so dlock can distinguish its own
//! nodes from Curator's.

use std::{cmp::Ordering, num::NonZeroU32};

use dlock_core::{ClaimId, Error, Kind, LockName, Result, driver::Request};
use percent_encoding::percent_decode_str;

/// Text in front of the number in the name of a claim's node. The recipes of Curator search for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marker {
    /// Mutex, and leader selector.
    Lock,
    Read,
    Write,
    /// Leader latch.
    Latch,
}

/// Text between the id and the number of permits in the name of a permit's node.
const PERMIT: &str = "-permit-";
/// Text between the id and the marker in the name of a fair lock's node.
const FAIR: &str = "-fair-";

/// Prefix of the id, as in the names of Curator's protected nodes.
const PROTECTED: &str = "_c_";

/// Node data by which another client asks a holder to release the lock, as Curator's `Revoker`
/// does.
pub(crate) const REVOKE: &[u8] = b"__REVOKE__";

/// Bytes of an id as text.
const ID_LEN: usize = 36;

/// Recipe of Curator with which the candidates of elections share their directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elections {
    /// `LeaderSelector`, whose nodes are those of Curator's mutex.
    Selector,
    /// `LeaderLatch`.
    Latch,
}

/// Rule by which the name of a lock becomes the name of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// Characters that a node's name cannot contain are written as `%` and two digits for each
    /// byte. Any name can be used.
    Encoded,
    /// The name is used unchanged. A name that no node can have is refused.
    Exact,
}

/// Returns whether servers refuse this character in a path.
fn is_refused(c: char) -> bool {
    matches!(u32::from(c), 0..=0x1f | 0x7f..=0x9f | 0xd800..=0xf8ff | 0xfff0..)
}

/// Checks a path, which is empty or has the form `/a/b`.
///
/// # Errors
/// The reason why the path cannot be used, to follow a noun such as "a path".
pub(crate) fn check_path(path: &str) -> std::result::Result<(), String> {
    let Some(path) = path.strip_prefix('/') else {
        return if path.is_empty() { Ok(()) } else { Err("that does not begin with a slash".to_owned()) };
    };
    if let Some(refused) = path.chars().find(|c| is_refused(*c)) {
        return Err(format!("with U+{:04X}, which servers refuse", u32::from(refused)));
    }
    match path.split('/').find(|part| matches!(*part, "" | "." | "..")) {
        Some("") => Err("with an empty part".to_owned()),
        Some(part) => Err(format!("with the part `{part}`, which servers refuse")),
        None => Ok(()),
    }
}

/// Returns the path of a lock's directory.
///
/// # Errors
/// [`Error::InvalidName`] with [`Names::Exact`] for a name that no node can have.
pub(crate) fn directory(base: &str, names: Names, name: &LockName) -> Result<String> {
    let node = match names {
        Names::Encoded => encode(name.as_str()),
        Names::Exact => {
            let text = name.as_str();
            let problem = check_path(&format!("/{text}")).err().or_else(|| {
                text.contains('/')
                    .then(|| "with a slash, which would make a directory inside a directory".to_owned())
            });
            let is_servers = base.is_empty() && text == "zookeeper";
            let problem = problem.or_else(|| is_servers.then(|| "of the servers' own node".to_owned()));
            if let Some(problem) = problem {
                let reason = format!(
                    "the URL has `names=exact`, and this is a name {problem}; choose another name, or use `names=encoded`"
                );
                return Err(Error::InvalidName { name: text.to_owned(), reason });
            }
            text.to_owned()
        }
    };
    if base.is_empty() && node == "zookeeper" {
        return Ok("/%7Aookeeper".to_owned());
    }
    Ok(format!("{base}/{node}"))
}

/// Returns the paths of the nodes on the way to a directory and of the directory itself, from the
/// top.
pub(crate) fn ancestors(directory: &str) -> Vec<&str> {
    let ends = directory.match_indices('/').map(|(at, _)| at).skip(1).chain([directory.len()]);
    ends.map(|end| &directory[..end]).collect()
}

/// Encodes a name, so that any name can be the name of a node.
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

/// Returns the name of the lock whose directory is the node `written` below the base path, or
/// `None` if no lock has that directory.
pub(crate) fn name_of(base: &str, names: Names, written: &str) -> Option<LockName> {
    let name = match names {
        Names::Exact => LockName::new(written).ok()?,
        Names::Encoded => LockName::new(percent_decode_str(written).decode_utf8().ok()?).ok()?,
    };
    (directory(base, names, &name).ok()? == format!("{base}/{written}")).then_some(name)
}

impl Marker {
    const ALL: [Self; 4] = [Self::Lock, Self::Read, Self::Write, Self::Latch];

    const fn text(self) -> &'static str {
        match self {
            Self::Lock => "lock-",
            Self::Read => "__READ__",
            Self::Write => "__WRIT__",
            Self::Latch => "latch-",
        }
    }

    /// Returns the marker in the name of a claim's node.
    pub(crate) fn of(request: &Request, elections: Elections) -> Self {
        match request.kind {
            Kind::Read => Self::Read,
            Kind::Write => Self::Write,
            _ if request.is_candidate && elections == Elections::Latch => Self::Latch,
            _ => Self::Lock,
        }
    }

    /// Returns whether clients of the recipe with this marker ignore nodes with the marker `other`.
    fn ignores(self, other: Self) -> bool {
        let is_shared = |marker| matches!(marker, Self::Read | Self::Write);
        self != other && !(is_shared(self) && is_shared(other))
    }
}

/// Returns the name of a claim's node without the number, which the server appends.
pub(crate) fn prefix(request: &Request, marker: Marker) -> String {
    let middle = match (marker, request.kind) {
        (Marker::Lock, Kind::Fair) => FAIR.to_owned(),
        (Marker::Lock, Kind::Permit) => format!("{PERMIT}{}-", request.limit),
        _ => "-".to_owned(),
    };
    format!("{PROTECTED}{}{middle}{}", request.id.to_string().to_uppercase(), marker.text())
}

/// Node and version that a heartbeat tries to delete. The delete always fails, because no lock uses
/// this node and no node can have this version.
pub(crate) const HEARTBEAT_PATH: &str = "/dlock heartbeat";
pub(crate) const HEARTBEAT_VERSION: i32 = -2;

/// Path of a node that cannot be created, because its parent does not exist.
pub(crate) const CONTAINER_PROBE_PATH: &str = "/dlock heartbeat/none";

/// Returns the text with which the names of all nodes of a claim begin.
pub(crate) fn stem(id: ClaimId) -> String {
    format!("{PROTECTED}{}-", id.to_string().to_uppercase())
}

/// Returns a number as the server appends it to a name.
pub(crate) fn digits(number: i64) -> String {
    let width = if number > i32::MAX.into() { 19 } else { 10 };
    format!("{number:0width$}")
}

/// The node of a claim, of dlock or another program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) limit: NonZeroU32,
    pub(crate) number: i64,
    pub(crate) marker: Marker,
}

impl Node {
    /// Parses the name of a node. Returns `None` if it is not the name of a numbered claim.
    pub(crate) fn of(name: String) -> Option<Self> {
        let (marker, at) = Marker::ALL
            .into_iter()
            .filter_map(|marker| name.rfind(marker.text()).map(|at| (marker, at)))
            .max_by_key(|(marker, at)| at + marker.text().len())?;
        let rest = &name[at + marker.text().len()..];
        let is_number =
            rest.len() >= 10 && rest.strip_prefix('-').unwrap_or(rest).bytes().all(|b| b.is_ascii_digit());
        let number = rest.parse().ok().filter(|_| is_number)?;
        let (mut kind, mut limit) = (Kind::Mutex, NonZeroU32::MIN);
        match marker {
            Marker::Read => kind = Kind::Read,
            Marker::Write => kind = Kind::Write,
            Marker::Latch => kind = Kind::Fair,
            Marker::Lock => {
                let between = if is_own(&name) { &name[PROTECTED.len() + ID_LEN..at] } else { "" };
                if between == FAIR {
                    kind = Kind::Fair;
                } else if let Some(count) =
                    between.strip_prefix(PERMIT).and_then(|rest| rest.strip_suffix('-'))
                {
                    (kind, limit) = (Kind::Permit, count.parse().ok()?);
                }
            }
        }
        Some(Self { name, kind, limit, number, marker })
    }

    /// A node that is no claim, for display.
    pub(crate) fn stray(name: String) -> Self {
        Self { name, kind: Kind::Mutex, limit: NonZeroU32::MIN, number: 0, marker: Marker::Lock }
    }

    /// Returns whether dlock created the node.
    pub(crate) fn is_own(&self) -> bool {
        is_own(&self.name)
    }

    /// Returns the claim's id, if dlock created the node.
    pub(crate) fn id(&self) -> Option<String> {
        self.is_own().then(|| self.name[PROTECTED.len()..PROTECTED.len() + ID_LEN].to_lowercase())
    }

    /// Returns whether the node belongs to another program's recipe that ignores the nodes with
    /// this marker.
    pub(crate) fn ignores(&self, marker: Marker) -> bool {
        self.marker.ignores(marker) && !self.is_own()
    }

    /// Compares the positions of two nodes in the queue. Nodes with the same number are ordered by
    /// name, as in Curator.
    pub(crate) fn order(&self, other: &Self) -> Ordering {
        self.number.cmp(&other.number).then_with(|| self.name.cmp(&other.name))
    }
}

/// Returns whether a node with this name was created by dlock.
fn is_own(name: &str) -> bool {
    let Some(id) = name.strip_prefix(PROTECTED).and_then(|rest| rest.get(..ID_LEN)) else { return false };
    id.bytes().all(|byte| byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte) || byte == b'-')
}

/// Distance from the end of the server's counter at which dlock creates no more nodes in a
/// directory.
///
/// The counter has 31 bits. At 2147483647 it stops. All further nodes get that number, so several
/// claims could hold the lock at the same time. The distance leaves room for other programs and for
/// all requests in flight.
const COUNTER_RESERVE: i64 = 1_000_000;

/// Returns whether `number` shows that the counter of its directory is used up.
pub(crate) fn is_used_up(number: i64) -> bool {
    number < 0 || number >= i64::from(i32::MAX) - COUNTER_RESERVE
}

/// Returns whether the node `stray`, which is no numbered claim, is ahead of a claim with this
/// marker and number in Curator's order. Curator sorts the nodes of a directory by the text after
/// the marker, or by their whole names.
pub(crate) fn blocks(stray: &str, marker: Marker, number: i64) -> bool {
    let key = match marker {
        Marker::Read if !stray.contains(Marker::Write.text()) => return false,
        Marker::Read | Marker::Write => suffix_after(suffix_after(stray, Marker::Read), Marker::Write),
        Marker::Lock | Marker::Latch => suffix_after(stray, marker),
    };
    key < digits(number).as_str()
}

/// Returns the text after the last `marker`, or the whole text if it has no marker.
fn suffix_after(text: &str, marker: Marker) -> &str {
    text.rfind(marker.text()).map_or(text, |at| &text[at + marker.text().len()..])
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

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
    fn a_name_that_no_node_can_have_is_encoded_or_refused() {
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
            .expect_err("this directory is the servers' own, or the one of the lock `%7Aookeeper`");
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
    fn a_nodes_name_contains_the_kind_and_the_limit() {
        let id = ClaimId::from_bytes([0xab; 16]);
        for kind in [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write, Kind::Permit] {
            let request = Request::new(name("x"), kind, Duration::from_secs(1)).id(id);
            let request = request.limit(NonZeroU32::new(4).unwrap());
            let written = prefix(&request, Marker::of(&request, Elections::Latch));
            assert_eq!(written, prefix(&request, Marker::of(&request, Elections::Selector)));
            let read = node(&format!("{written}0000000012"));
            assert_eq!((read.kind, read.number), (kind, 12));
            assert_eq!(read.limit.get(), if kind == Kind::Permit { 4 } else { 1 });
            assert_eq!(read.id().as_deref(), Some("abababab-abab-abab-abab-abababababab"));
            assert!(read.name.starts_with(&stem(id)));
            assert!(Marker::ALL.into_iter().all(|marker| !read.ignores(marker)));
        }
    }

    #[test]
    fn a_candidate_has_a_node_of_the_recipe_in_the_url() {
        let id = ClaimId::from_bytes([0xab; 16]);
        let request = Request::new(name("x"), Kind::Fair, Duration::from_secs(1)).id(id).candidate();
        for (elections, middle, marker) in
            [(Elections::Selector, "-fair-lock-", Marker::Lock), (Elections::Latch, "-latch-", Marker::Latch)]
        {
            let written = prefix(&request, Marker::of(&request, elections));
            assert_eq!(written, format!("_c_{}{middle}", id.to_string().to_uppercase()));
            let read = node(&format!("{written}0000000012"));
            assert_eq!((read.kind, read.marker, read.is_own()), (Kind::Fair, marker, true));
        }
    }

    #[test]
    fn nodes_of_curator_and_kazoo_are_read() {
        for (text, kind, number) in [
            ("_c_caa75163-f1f4-467d-9207-2ba259767d1e-lock-0000000000", Kind::Mutex, 0),
            ("_c_caa75163-f1f4-467d-9207-2ba259767d1e-latch-0000000002", Kind::Fair, 2),
            ("_c_caa75163-f1f4-467d-9207-2ba259767d1e-__WRIT__0000000003", Kind::Write, 3),
            ("caa75163f1f4467d92072ba259767d1e-__READ__0000000004", Kind::Read, 4),
            ("caa75163f1f4467d92072ba259767d1e-lock--000000005", Kind::Mutex, -5),
            ("x-lock-2147483648", Kind::Mutex, 2_147_483_648),
            ("a-lock-lock-0000000001", Kind::Mutex, 1),
        ] {
            let read = node(text);
            assert_eq!((read.kind, read.number, read.id()), (kind, number, None), "{text}");
            let others = match read.marker {
                Marker::Read | Marker::Write => [Marker::Lock, Marker::Latch].to_vec(),
                Marker::Lock => [Marker::Read, Marker::Write, Marker::Latch].to_vec(),
                Marker::Latch => [Marker::Read, Marker::Write, Marker::Lock].to_vec(),
            };
            let ignored: Vec<_> = Marker::ALL.into_iter().filter(|other| read.ignores(*other)).collect();
            assert!(ignored.iter().all(|other| others.contains(other)), "{text} ignores {ignored:?}");
            assert_eq!(ignored.len(), others.len(), "{text} ignores {ignored:?}");
        }
    }

    #[test]
    fn a_node_that_is_no_claim_is_not_parsed_as_one() {
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
        assert!(is_used_up(-2_147_483_648), "the counter of an old server has overflowed");
        assert_eq!(node("b-lock-0000000001").order(&node("a-lock-0000000002")), Ordering::Less);
    }

    /// Checks against the behaviour of Curator 5.9 with each stray node in an otherwise empty
    /// directory, for a claim with the number 1.
    #[test]
    fn a_stray_node_blocks_the_same_claims_as_in_curator() {
        for (strays, mutex, read, write) in [
            (&["0", "00", "-1", "!", " "][..], true, false, true),
            (&["1", "9", "A", "zzz", "日本", "locks", "leases"], false, false, false),
            (&["lock-", "zlock-", "lock--0000000001"], true, false, false),
            (&["zlock-a", "lock-日bcdefghi"], false, false, false),
            (&["__WRIT__", "a__WRIT__0000000000b"], false, true, true),
            (&["00000000000000000000000000000000__lock__x"], true, false, true),
        ] {
            for stray in strays {
                let markers = [Marker::Lock, Marker::Read, Marker::Write];
                let blocked = markers.map(|marker| blocks(stray, marker, 1));
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
        fn no_name_of_a_node_makes_the_parser_panic(text in "\\PC{0,60}", marker in 0..4_usize, number in "-?[0-9]{0,12}") {
            let marker = Marker::ALL[marker];
            let _ = Node::of(format!("{text}{}{number}", marker.text())).map(|node| node.id());
            blocks(&text, marker, 1);
        }
    }
}
