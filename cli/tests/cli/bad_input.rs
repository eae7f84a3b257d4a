//! Invalid input, after which dlock prints one clear message, exits with the documented status, and
//! leaves no files behind.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
};

use crate::place::{Ended, Place, until};

fn refused(ended: &Ended, status: i32, words: &[&str]) {
    assert_eq!(ended.status, status, "{}", ended.err);
    assert_eq!(ended.out, "", "the command was run");
    for word in words {
        assert!(ended.err.contains(word), "`{word}` is not in: {}", ended.err);
    }
}

/// Checks as [`refused`] does, and that the message is one line that begins with `dlock: `.
fn refused_in_a_line(ended: &Ended, status: i32, words: &[&str]) {
    refused(ended, status, words);
    assert!(ended.err.starts_with("dlock: "), "{}", ended.err);
    assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
}

#[test]
fn an_illegal_name_is_refused() {
    let place = Place::new();
    let long = "x".repeat(1025);
    for (name, words) in [
        (OsStr::new(""), "it is empty"),
        (OsStr::new(&long), "it has 1025 bytes"),
        (OsStr::new("a\nb"), "control character at byte 1"),
        (OsStr::new("\u{1b}[2J"), "control character at byte 0"),
        (OsStr::from_bytes(b"a\xffb"), "is not UTF-8"),
    ] {
        for (before, after) in [
            (&["run"][..], &["--", "echo", "ran"][..]),
            (&["try"], &[]),
            (&["inspect"], &[]),
            (&["unlock", "--force"], &[]),
        ] {
            let args: Vec<OsString> = before
                .iter()
                .map(OsStr::new)
                .chain([name])
                .chain(after.iter().map(OsStr::new))
                .map(OsString::from)
                .collect();
            let ended = place.run(&args);
            refused_in_a_line(&ended, 64, &[words]);
            assert!(
                !ended.err.trim_end().contains(char::is_control),
                "the message has control characters: {:?}",
                ended.err
            );
        }
    }
    assert!(!place.path("locks.db").exists(), "a refused call has created a store");
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let place = Place::new();
    for (args, word) in [
        (&["run", "--ttl", "0", "x", "--", "echo"][..], "ttl"),
        (&["run", "--ttl", "soon", "x", "--", "echo"], "30s"),
        (&["run", "--wait", "-1", "x", "--", "echo"], "wait"),
        (&["run", "-n", "-w", "1", "x", "--", "echo"], "cannot be used with"),
        (&["run", "--read", "--fair", "x", "--", "echo"], "cannot be used with"),
        (&["run", "--slots", "0", "x", "--", "echo"], "slots"),
        (&["run", "--slots", "-1", "x", "--", "echo"], "slots"),
        (&["run", "--slots", "2", "--fair", "x", "--", "echo"], "cannot be used with"),
        (&["run", "-E", "256", "x", "--", "echo"], "256"),
        (&["run", "-c", "echo", "x", "--", "echo"], "cannot be used with"),
        (&["run", "--nowait", "x", "--", "echo"], "--no-wait"),
        (&["run"], "NAME"),
        (&["bogus"], "bogus"),
        (&[], "Usage"),
        (&["completions", "cobol"], "cobol"),
    ] {
        refused(&place.run(args), 64, &[word]);
    }
    refused_in_a_line(&place.run(["run", "x"]), 64, &["no command", "dlock run NAME -- CMD"]);
    refused_in_a_line(&place.run(["run", "x", "--"]), 64, &["no command"]);
    refused_in_a_line(&place.run(["unlock", "x"]), 64, &["--force"]);
    refused_in_a_line(&place.run(["__exec"]), 64, &["dlock run NAME"]);
    for ttl in ["1ns", "1000years"] {
        refused_in_a_line(&place.run(["run", "--ttl", ttl, "x", "--", "echo", "ran"]), 64, &["ttl"]);
    }
}

#[test]
fn help_and_version_are_no_errors() {
    let place = Place::new();
    for args in [&["--help"][..], &["--version"], &["run", "--help"], &["help", "try"]] {
        let ended = place.run(args);
        assert_eq!((ended.status, &*ended.err), (0, ""));
    }
}

#[test]
fn the_help_shows_no_value_of_the_environment() {
    let place = Place::new();
    for command in ["run", "try", "acquire", "ls", "inspect", "info", "unlock"] {
        let mut help = place.dlock([command, "--help"]);
        for variable in ["DLOCK_STORE", "DLOCK_CONFIG", "DLOCK_WHO"] {
            help.env(variable, "hunter2");
        }
        let help = Ended::of(&mut help);
        assert!(help.status == 0 && help.out.contains("DLOCK_STORE"), "{command}: {}", help.err);
        assert!(!help.out.contains("hunter2"), "{command}: {}", help.out);
    }
}

#[test]
fn the_package_page_says_of_each_status_what_the_help_says() {
    let page = include_str!("../../README.md");
    let cells =
        page.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
    let mut on_page: Vec<_> = cells.filter(|(status, _)| status.parse::<u8>().is_ok()).collect();
    on_page.sort_unstable();
    let place = Place::new();
    for args in [&["--help"][..], &["run", "--help"], &["try", "--help"]] {
        let help = place.run(args).out;
        let rows = help.lines().filter_map(|line| line.trim_start().split_once("   "));
        let mut in_help: Vec<_> = rows.filter(|(status, _)| status.parse::<u8>().is_ok()).collect();
        in_help.sort_unstable();
        assert_eq!(in_help, on_page, "{args:?}: {help}");
    }
}

#[test]
fn the_help_names_the_stores_that_there_are() {
    let place = Place::new();
    for command in ["run", "try", "ls", "inspect", "unlock"] {
        let help = place.run([command, "--help"]).out;
        let words: Vec<_> = help.split_whitespace().collect();
        let is_there = |scheme| words.iter().any(|word| word.trim_end_matches(',') == scheme);
        assert!(is_there("sqlite:"), "not in the help of {command}: {help}");
        assert!(
            !is_there("memory:"),
            "it excludes no other process, and is in the help of {command}: {help}"
        );
        // A build without Redis refuses such a URL and names the missing feature.
        let absent = !words.iter().any(|word| word.trim_end_matches(',') == "redis:");
        let refused = Ended::of(place.dlock(["ls"]).env("DLOCK_STORE", "redis:?no=such"));
        assert_eq!(absent, refused.err.contains("build with feature `redis`"), "{}", refused.err);
    }
}

#[test]
fn an_unusable_store_url_is_refused_without_being_shown() {
    let place = Place::new();
    for (url, words) in [
        ("nosuch://u:hunter2@h/0", "no store's scheme; there are: "),
        ("hunter2", "not a store's URL"),
        ("", "not a store's URL"),
        ("sqlite:locks.db?password=hunter2", "unknown parameter `password`"),
        ("memory:", "two commands would not exclude each other"),
        ("Memory://u:hunter2@h", "two commands would not exclude each other"),
        ("sqlite://u:hunter2@h/locks.db", ""),
    ] {
        for args in [
            &["run", "x", "--", "echo", "ran"][..],
            &["try", "x"],
            &["ls"],
            &["inspect", "x"],
            &["unlock", "--force", "x"],
        ] {
            let ended = Ended::of(place.dlock(args).env("DLOCK_STORE", url));
            refused_in_a_line(&ended, 78, &[words]);
            assert!(!ended.err.contains("hunter2"), "{}", ended.err);
        }
        let ended = place.run(["run", "--store", url, "x", "--", "echo"]);
        assert!(!ended.err.contains("hunter2"), "{}", ended.err);
        for args in [&["--help"][..], &["run", "--help"], &["run", "--bogus"], &["ls", "a", "b"]] {
            let ended = Ended::of(place.dlock(args).env("DLOCK_STORE", url));
            assert!(!(ended.out + &ended.err).contains("hunter2"), "{args:?}");
        }
    }
    let ended = Ended::of(place.dlock(["ls"]).env("DLOCK_STORE", OsStr::from_bytes(b"sqlite:\xff")));
    refused_in_a_line(&ended, 78, &["UTF-8", "DLOCK_STORE"]);
}

#[test]
fn a_store_file_that_is_none_is_refused_and_left_as_it_is() {
    let place = Place::new();
    std::fs::create_dir(place.path("directory")).unwrap();
    let garbage = b"this is not a database, and is long enough to be looked at".repeat(100);
    std::fs::write(place.path("garbage"), &garbage).unwrap();
    for file in ["directory", "garbage", "absent/locks.db"] {
        let url = format!("sqlite:{}", place.path(file).display());
        let ended = Ended::of(place.dlock(["run", "x", "--", "echo", "ran"]).env("DLOCK_STORE", url));
        refused_in_a_line(&ended, 78, &[file]);
    }
    assert_eq!(std::fs::read(place.path("garbage")).unwrap(), garbage);
}

#[test]
fn a_store_file_of_a_later_schema_is_refused() {
    use std::os::unix::fs::FileExt;
    let place = Place::new();
    // A process may end before SQLite has moved the journal into the file, which the next one does.
    until("the file contains its journal", || {
        assert_eq!(place.run(["run", "x", "--", "true"]).status, 0);
        !place.path("locks.db-wal").exists()
    });
    // These bytes of SQLite's header contain the ids of the application and of its version.
    let file = std::fs::File::options().write(true).open(place.path("locks.db")).unwrap();
    file.write_all_at(b"dlck", 68).unwrap();
    file.write_all_at(&9999_u32.to_be_bytes(), 60).unwrap();
    refused_in_a_line(&place.run(["run", "x", "--", "echo", "ran"]), 78, &["locks.db", "version 9999"]);
}

#[test]
fn a_store_file_that_may_not_be_written_is_refused() {
    let place = Place::new();
    // No user can create files in this folder, not even root.
    let ended = Ended::of(
        place.dlock(["run", "x", "--", "echo", "ran"]).env("DLOCK_STORE", "sqlite:/proc/self/locks.db"),
    );
    refused_in_a_line(&ended, 78, &["locks.db"]);
}

#[test]
fn an_error_of_the_store_says_which_store_it_is_and_who_chose_it() {
    let place = Place::new();
    let url = "sqlite:/nowhere/at/all/locks.db";
    let by_option = place.run(["ls", "--store", url]);
    refused_in_a_line(&by_option, by_option.status, &[url, "as --store says"]);
    let by_variable = Ended::of(place.dlock(["ls"]).env("DLOCK_STORE", url));
    refused_in_a_line(&by_variable, by_variable.status, &[url, "as DLOCK_STORE says"]);
    let mut own = place.dlock(["run", "x", "--", "true"]);
    own.env_remove("DLOCK_STORE").env("XDG_STATE_HOME", place.path("state"));
    std::fs::create_dir_all(place.path("state/dlock")).unwrap();
    std::fs::write(place.path("state/dlock/locks.db"), "no database, but a text of some length").unwrap();
    let own = Ended::of(&mut own);
    refused_in_a_line(&own, own.status, &["the user's own file"]);
}

#[test]
fn a_store_that_is_no_url_is_an_error_that_says_how_to_write_one() {
    let place = Place::new();
    for (store, advice) in [
        ("localhost:6379", "redis://HOST:PORT"),
        ("/tmp/locks.db", "sqlite:/path/locks.db"),
        ("./locks.db", "sqlite:/path/locks.db"),
        ("~/locks.db", "sqlite:/path/locks.db"),
        ("sqlite:~/locks.db", "$HOME"),
    ] {
        refused_in_a_line(&place.run(["ls", "--store", store]), 78, &[advice]);
    }
}

#[test]
fn a_host_that_refuses_the_connection_is_named() {
    let host = "127.0.0.1:1";
    let place = Place::new();
    for url in [
        format!("redis://{host}"),
        format!("redis://{host},{host}?role=master"),
        format!("redis+sentinel://{host},{host}/main"),
        format!("redis+redlock://{host},127.0.0.1:2,127.0.0.1:3"),
        format!("etcd://{host},{host}"),
        format!("mysql://u:p@{host},127.0.0.1:2/x"),
    ] {
        let ended = place.run(["try", "x", "--store", &url]);
        if !ended.err.contains("build with feature") {
            refused_in_a_line(&ended, 69, &["; the store is"]);
            let (error, _) = ended.err.split_once("; the store is").expect("the store is named");
            assert!(error.contains(host), "{url}: {error}");
        }
    }
}

#[test]
fn an_error_for_dlock_lock_names_run_and_acquire() {
    let place = Place::new();
    for args in [&["lock", "x"][..], &["lock", "-n", "x", "--", "true"]] {
        let ended = place.run(args);
        refused_in_a_line(&ended, 64, &["dlock run", "dlock acquire"]);
        assert!(!ended.err.contains("unlock"), "{}", ended.err);
    }
    let help = place.run(["--help"]).out;
    assert!(!help.lines().any(|line| line.trim_start().starts_with("lock ")), "{help}");
}

#[test]
fn a_process_without_file_descriptors_runs_nothing_and_names_the_limit() {
    let held = Place::new();
    let holder = held.hold(&["x"]);
    // With few descriptors, the program or its runtime does not start.
    for limit in 3..=40 {
        let free = Place::new();
        let attempt = |place: &Place| {
            let ended = place.run_shell(&format!("ulimit -n {limit}; exec \"$DLOCK\" try x -- touch ran"));
            assert_ne!(ended.status, 78, "the lack is reported as a lack of rights: {}", ended.err);
            let is_named = ended.err.contains("file descriptor") && ended.err.contains("ulimit -n");
            assert!(ended.status != 69 || is_named, "the limit is not named: {}", ended.err);
            ended.status
        };
        let (of_held, of_free) = (attempt(&held), attempt(&free));
        assert_ne!(of_held, 0, "two processes hold the lock");
        assert_eq!(free.path("ran").exists(), of_free == 0, "status {of_free} of a free lock");
        if limit == 40 {
            assert_eq!((of_held, of_free), (75, 0), "40 descriptors are enough");
        }
    }
    assert!(!held.path("ran").exists(), "the command was run beside the holder");
    assert_eq!(holder.let_go().status, 0);
}
