//! Fuzz targets of the paths and names of nodes.

use std::time::Duration;

use dlock_core::Who;

use super::*;

const NAMES: [Names; 2] = [Names::Encoded, Names::Exact];

#[test]
fn two_names_never_have_the_same_directory() {
    dlock_fuzz::names!("directory").check(|input| {
        let base = input.pick(0, &["", "/dlock", "/a/b"]);
        let names = input.pick(1, &NAMES);
        let (Ok(first), Ok(second)) = (LockName::new(input.text()), LockName::new(input.other_text())) else {
            return;
        };
        let directories = [&first, &second].map(|name| directory(base, names, name).ok());
        for (name, directory) in [&first, &second].into_iter().zip(&directories) {
            let Some(directory) = directory else {
                assert_eq!(names, Names::Exact, "{name} has no directory");
                continue;
            };
            let node = directory.strip_prefix(&format!("{base}/")).expect("below the base path");
            assert!(!node.contains('/') && check_path(directory).is_ok(), "{directory}");
            assert_ne!(directory, "/zookeeper");
            assert_eq!(name_of(base, names, node).as_ref(), Some(name), "{directory}");
            assert_eq!(ancestors(directory).last(), Some(&directory.as_str()));
        }
        assert!(
            first == second || directories[0].is_none() || directories[0] != directories[1],
            "{directories:?}"
        );
    });
}

#[test]
fn a_node_is_no_directory_or_the_directory_of_its_name() {
    dlock_fuzz::target!("directory").check(|input| {
        let (text, base, names) = (input.text(), input.pick(0, &["", "/dlock"]), input.pick(1, &NAMES));
        if let Some(name) = name_of(base, names, &text) {
            assert_eq!(directory(base, names, &name).ok(), Some(format!("{base}/{text}")));
        }
        if check_path(&text).is_ok() && !text.is_empty() {
            let parts: Vec<_> = ancestors(&text);
            assert!(parts.iter().all(|part| check_path(part).is_ok()), "{parts:?}");
        }
    });
}

#[test]
fn a_node_is_read_as_it_was_written() {
    dlock_fuzz::names!("node").check(|input| {
        let Ok(who) = Who::new(&*input.text()) else { return };
        let name = LockName::new("x").expect("legal");
        let limit = NonZeroU32::new(input.number(0) as u32).unwrap_or(NonZeroU32::MIN);
        let request = Request::by(who, name, input.pick(1, Kind::ALL), Duration::from_secs(1)).limit(limit);
        let request = if input.number(2) % 2 == 0 { request } else { request.candidate() };
        let marker = Marker::of(&request, input.pick(3, &[Elections::Selector, Elections::Latch]));
        let number = input.signed(4);
        let written = format!("{}{}", prefix(&request, marker), digits(number));
        assert!(written.starts_with(&stem(request.id)), "{written}");
        // The counter of the server has 31 bits, or 63. Its numbers above the limit are negative.
        let node = Node::of(written.clone()).unwrap_or_else(|| panic!("{written} is no node"));
        assert_eq!((node.number, node.marker, &*node.name), (number, marker, &*written));
        assert!(node.is_own() && node.id() == Some(request.id.to_string()), "{written}");
        let kind = match (request.kind, marker) {
            (_, Marker::Latch) => Kind::Fair,
            (kind, _) => kind,
        };
        assert_eq!(node.kind, kind, "{written}");
        assert!(kind != Kind::Permit || node.limit == request.limit, "{written}");
        assert_eq!(is_used_up(number), !(0..i64::from(i32::MAX) - 1_000_000).contains(&number));
        for marker in Marker::ALL {
            assert!(!node.ignores(marker), "a claim of dlock ignores another");
        }
    });
}

#[test]
fn the_node_of_another_program_is_a_claim_with_its_number_or_none() {
    dlock_fuzz::target!("node").check(|input| {
        let text = input.text();
        let other = input.other_text();
        if let Some(node) = Node::of(text.to_string()) {
            let (_, rest) = text.rsplit_once(node.marker.text()).expect("it has its marker");
            assert!(rest.len() >= 10 && rest.parse() == Ok(node.number), "{text}");
            assert_eq!(node.is_own(), node.id().is_some());
            if let Some(second) = Node::of(other.to_string()) {
                assert_eq!(node.order(&second), second.order(&node).reverse());
                assert_eq!(node.order(&second).is_eq(), node == second, "{text} {other}");
            }
        } else {
            let stray = Node::stray(text.to_string());
            assert_eq!((stray.kind, stray.number), (Kind::Mutex, 0));
        }
        for marker in Marker::ALL {
            // A node with a greater number is behind every node that is behind a smaller one.
            let (low, high) = (input.number(0) as i32, input.number(1) as i32);
            let (low, high) = (i64::from(low.min(high).max(0)), i64::from(low.max(high).max(0)));
            assert!(!blocks(&text, marker, low) || blocks(&text, marker, high), "{text} {low} {high}");
        }
    });
}
