//! A `dlock run` that no longer reaches the store.

use std::net::SocketAddr;

use dlock_conformance::Proxy;

use crate::place::{Place, Started, lives, until};

/// Cuts a running `dlock run` off from its server, and checks that its command has ended before the
/// next one begins. The command ignores TERM.
///
/// `store` is a URL with the address of the server. It or `args` must have a session or a ttl of
/// which a margin of 4 s is at most half.
pub(crate) async fn the_command_ends_before_the_next_one_begins(
    place: &Place,
    server: SocketAddr,
    store: &str,
    args: &[&str],
) {
    let proxy = Proxy::to(server).await.unwrap();
    let cut_off = store.replace(&server.to_string(), &proxy.address().to_string());
    assert_ne!(cut_off, store, "the URL does not have the address of the server");
    let dlock = |url: &str, args: &[&str], text: &str| {
        let store = ["run", "--store", url];
        place.dlock([&store[..], args, &["x", "--", "sh", "-c", text]].concat())
    };
    let args = [args, &["--fair", "--margin", "4s", "--kill-after", "500ms"]].concat();
    let text = "trap '' TERM; echo $$; while :; do sleep 0.02; done";
    let first = Started::of(&mut dlock(&cut_off, &args, text));
    // A process that has ended may still have an entry, in the state Z.
    let stat = format!("/proc/{}/stat", first.first);
    let text = format!(
        r#"case "$(cat {stat} 2>/dev/null)" in ""|*") Z "*) echo alone;; *) echo beside the first;; esac"#
    );
    let next = std::thread::spawn({
        let mut next = dlock(store, &["--fair", "-w", "90s"], &text);
        move || {
            let next = Started::of(&mut next);
            let first_line = next.first.clone();
            (next.end().status, first_line)
        }
    });
    until("the next dlock waits", || {
        let state = place.run(["inspect", "--store", store, "--json", "x"]).out;
        let state: serde_json::Value = serde_json::from_str(&state).unwrap();
        state["queue"].as_array().is_some_and(|queue| !queue.is_empty())
    });
    proxy.stall();
    assert!(lives(&first.first), "the first command has ended before the partition");
    until("the next command begins", || next.is_finished());
    assert_eq!(next.join().unwrap(), (0, "alone".to_owned()));
    let ended = first.end();
    assert_eq!(ended.status, 74, "{}", ended.err);
}
