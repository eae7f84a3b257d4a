//! Different names are different locks, and illegal names are refused.

use std::sync::Arc;

use dlock_core::{Error, Guard, Kind, Locks, Wait, Who};

use crate::{
    Arena,
    case::{Case, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    cases! {
        "name" (Kind::Mutex) [] {
            names_that_differ_in_case_are_different,
            names_that_differ_in_accents_are_different,
            a_name_that_begins_like_another_is_different,
            odd_names_exclude_like_any_other,
            odd_names_are_shown_as_they_are,
            an_illegal_name_is_refused_before_any_io,
            waiters_with_the_longest_names_and_labels_are_woken,
        }
        "name_fair" (Kind::Fair) [] { waiters_with_the_longest_names_and_labels_are_woken }
        "name_write" (Kind::Write) [] { waiters_with_the_longest_names_and_labels_are_woken }
        "name_permit" (Kind::Permit) [] { waiters_with_the_longest_names_and_labels_are_woken }
    }
}

/// Holds locks of all these names at once, so they must be different locks.
async fn hold_all(client: &Locks, names: &[String]) -> Vec<Guard> {
    let mut held = Vec::new();
    for name in names {
        let taken = client.mutex(name).try_lock().await.expect("the name is legal");
        held.push(taken.unwrap_or_else(|| panic!("`{name}` is confused with another name of {names:?}")));
    }
    held
}

fn names(arena: &Arena, suffixes: &[&str]) -> Vec<String> {
    suffixes.iter().map(|suffix| arena.name_with(suffix)).collect()
}

pub(super) async fn names_that_differ_in_case_are_different(arena: Arc<Arena>) {
    let a = arena.client().await;
    drop(
        hold_all(
            &a,
            &names(&arena, &["i", "I", "ı", "İ", "ß", "ẞ", "ss", "SS", "σ", "ς", "Σ", "K", "\u{212a}"]),
        )
        .await,
    );
}

pub(super) async fn names_that_differ_in_accents_are_different(arena: Arc<Arena>) {
    let a = arena.client().await;
    drop(hold_all(&a, &names(&arena, &["e", "é", "e\u{301}", "ﬁ", "fi", "１", "1", "²", "2"])).await);
}

pub(super) async fn a_name_that_begins_like_another_is_different(arena: Arc<Arena>) {
    let a = arena.client().await;
    let suffixes = ["", "2", "/", "/2", "//2", "/./2", ":", ":2", " ", "  ", ".", "-2", "\u{a0}", "\u{200b}"];
    drop(hold_all(&a, &names(&arena, &suffixes)).await);
}

/// Returns legal names that a store might handle wrongly.
fn odd(arena: &Arena) -> Vec<String> {
    let mut odd = names(
        arena,
        &[
            " a b ",
            "'",
            "\"",
            "`",
            "\\",
            "{x}",
            "}{",
            "%41",
            "%",
            "_",
            "*?",
            "[a-z]",
            ":",
            ";--",
            "$1",
            "?1",
            "#",
            "@x",
            "/",
            "/..",
            "/../x",
            "🔒",
            "İstanbul",
            "{\"a\":1}",
            "\u{202e}x",
            "\u{10ffff}",
            "&lt;",
        ],
    );
    let room = 1024 - arena.name().len();
    odd.push(arena.name_with(&"x".repeat(room)));
    odd.push(arena.name_with(&format!("{}{}", "é".repeat(room / 2), "x".repeat(room % 2))));
    odd.push(format!("/{}", arena.name()));
    odd.push(format!(".{}", arena.name()));
    odd.push(format!("{{{}}}", arena.name()));
    odd
}

pub(super) async fn odd_names_exclude_like_any_other(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    let odd = odd(&arena);
    let held = hold_all(&a, &odd).await;
    for name in &odd {
        let tried = b.mutex(name).try_lock().await.expect("a busy lock is not an error");
        assert!(tried.is_none(), "two claims hold `{name}`");
    }
    for held in held {
        held.release().await.expect("the lock is still held");
    }
    drop(hold_all(&b, &odd).await);
}

pub(super) async fn odd_names_are_shown_as_they_are(arena: Arc<Arena>) {
    let a = arena.client().await;
    let odd = odd(&arena);
    let held = hold_all(&a, &odd).await;
    if a.inspect(arena.name()).await.is_ok() {
        for name in &odd {
            let state = a
                .inspect(name)
                .await
                .expect("the store can be inspected as before")
                .unwrap_or_else(|| panic!("`{name}` is not reported"));
            assert_eq!(state.name.as_str(), name);
        }
        let listed = a.list(arena.name()).await.expect("the store can be inspected as before");
        let listed: Vec<_> = listed.iter().map(|state| state.name.as_str()).collect();
        let mut expected: Vec<_> = odd.iter().map(String::as_str).collect();
        expected.retain(|name| name.starts_with(arena.name()));
        expected.sort_unstable();
        assert_eq!(listed, expected);
    }
    drop(held);
}

/// Text of this length that begins with `start` and continues with the character.
fn filled(start: &str, character: char, len: usize) -> String {
    let count = (len - start.len()) / character.len_utf8();
    let text = format!("{start}{}", character.to_string().repeat(count));
    format!("{text}{}", "x".repeat(len - text.len()))
}

/// A store may write names and labels into keys, messages, paths or statements, in which some
/// characters take several bytes.
pub(super) async fn waiters_with_the_longest_names_and_labels_are_woken(arena: Arc<Arena>) {
    let (a, b) = (arena.client().await, arena.client().await);
    for character in ['x', '\'', '\\', '%', '/', ' ', 'é', '🔒'] {
        let name = filled(arena.name(), character, 1024);
        let options = arena.options().label(filled("", character, Who::MAX_LEN));
        let held = a.of(arena.kind(), &name).lock(&options).await.expect("the lock is free");
        // The waiter makes no attempt of its own before the time limit of this case.
        let (next, patient) = (b.of(arena.kind(), &name), options.ttl(arena.long_ttl(&b)));
        let mut waiting = next.lock(&patient);
        arena.still_waits("two claims hold the lock", &mut waiting).await;
        held.release().await.expect("the lock is still held");
        let failure = format!("a waiter for a long name of `{character}` is not woken");
        let next = arena.soon(&failure, waiting).await.expect("the lock is free");
        next.release().await.expect("the lock is still held");
    }
}

pub(super) async fn an_illegal_name_is_refused_before_any_io(arena: Arc<Arena>) {
    let (a, switch) = arena.client_with_switch().await;
    switch.cut();
    for name in ["", &"x".repeat(1025), &"🔒".repeat(257), "a\nb", "a\0", "\u{7f}", "\u{85}", "\t"] {
        let result = [
            a.mutex(name).lock().await.map(drop),
            a.mutex(name).lock().wait(Wait::Never).await.map(drop),
            a.mutex(name).try_lock().await.map(drop),
            a.of(arena.kind(), name).lock(&arena.options()).await.map(drop),
            a.inspect(name).await.map(drop),
            a.force_release(name).await.map(drop),
        ];
        for result in result {
            assert!(
                matches!(result, Err(Error::InvalidName { .. })),
                "`{}` returned {result:?}",
                name.escape_debug()
            );
        }
    }
}
