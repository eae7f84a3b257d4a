//! `dlock ls`, `inspect`, `unlock` and `completions`.

use std::{env, path::Path, process::Command};

use serde_json::Value;

use crate::place::{Ended, Place};

#[test]
fn inspect_shows_who_holds_and_who_waits() {
    let place = Place::new();
    let free = place.run(["inspect", "job/a"]);
    assert_eq!((free.status, &*free.out), (1, "job/a is free\n"));
    let free = place.run(["inspect", "--json", "job/a"]);
    let parsed: Value = serde_json::from_str(&free.out).unwrap();
    assert_eq!(
        (free.status, parsed),
        (1, serde_json::json!({"version": 1, "name": "job/a", "holders": [], "queue": []}))
    );

    let holder = place.start(&["--fair", "job/a"], "echo $DLOCK_TOKEN; read _; true");
    let waiter = place.dlock(["run", "--fair", "job/a", "true"]).spawn().unwrap();
    place.until_queued("job/a", 1);
    let text = place.run(["inspect", "job/a"]);
    assert_eq!(text.status, 0);
    for word in ["holds", "waits 1", "fair", &holder.first, "pid "] {
        assert!(text.out.contains(word), "`{word}` is not in:\n{}", text.out);
    }
    let state = place.state("job/a");
    let (held, queued) = (&state["holders"][0], &state["queue"][0]);
    assert_eq!((&held["kind"], &queued["kind"]), (&Value::from("fair"), &Value::from("fair")));
    assert_eq!(held["token"].as_u64().unwrap().to_string(), holder.first);
    assert_eq!(queued["position"], 1);
    assert!((0.0..60.0).contains(&held["since"].as_f64().unwrap()), "{held}");
    assert!((0.0..=30.0).contains(&held["ttl_left"].as_f64().unwrap()), "{held}");
    assert!(queued["who"].as_str().unwrap().contains(&waiter.id().to_string()), "{queued}");
    holder.let_go();
    assert!(waiter.wait_with_output().unwrap().status.success());
}

#[test]
fn ls_lists_what_begins_with_a_prefix() {
    let place = Place::new();
    assert_eq!(place.run(["ls"]).out, "");
    let none: Value = serde_json::from_str(&place.run(["ls", "--json"]).out).unwrap();
    assert_eq!(none, serde_json::json!({"version": 1, "locks": []}));
    let holders = ["job/b", "job/a", "other"].map(|name| place.hold(&[name]));
    let text = place.run(["ls", "job/"]);
    assert_eq!(text.status, 0);
    let names: Vec<_> = text.out.lines().skip(1).map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["job/a", "job/b"], "{}", text.out);
    let all: Value = serde_json::from_str(&place.run(["ls", "--json"]).out).unwrap();
    let all = &all["locks"];
    let names: Vec<_> = all.as_array().unwrap().iter().map(|lock| lock["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["job/a", "job/b", "other"]);
    assert_eq!(all[0]["holders"][0]["kind"], "mutex");
    for holder in holders {
        holder.let_go();
    }
}

#[test]
fn unlock_reports_whether_the_lock_was_held() {
    let place = Place::new();
    assert_eq!(place.run(["run", "x", "true"]).status, 0);
    let free = place.run(["unlock", "--force", "x"]);
    assert_eq!((free.status, &*free.err), (1, "dlock: lock `x` is not held\n"));
    let holder = place.hold(&["x"]);
    assert_eq!(place.run(["unlock", "x"]).status, 64, "unlocked without --force");
    assert_eq!(place.run(["try", "x"]).status, 75, "the refused command has released the lock");
    assert_eq!(place.run(["unlock", "--force", "x"]).status, 0);
    holder.end();
}

#[test]
fn a_reader_who_has_seen_enough_is_no_failure() {
    let place = Place::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = place.dlock(["ls", "--json"]);
    let status = command.stdout(writer).status().unwrap();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn the_short_help_is_short_and_the_long_one_has_examples_and_the_default() {
    let place = Place::new();
    for command in ["", "run"] {
        let of = |help| place.run([command, help].iter().filter(|word| !word.is_empty()));
        let (short, long) = (of("-h"), of("--help"));
        assert_eq!((short.status, long.status), (0, 0));
        assert!(2 * short.out.lines().count() < long.out.lines().count(), "{}", short.out);
        for words in ["Examples:", "dlock run -n", "128+N"] {
            assert!(long.out.contains(words) && !short.out.contains(words), "{command}: {words}");
        }
    }
    let mut help = place.dlock(["run", "--help"]);
    let help = Ended::of(help.env("XDG_STATE_HOME", "/my/state")).out;
    assert!(
        help.contains("/my/state/dlock/locks.db") || help.contains("the store of /etc/dlock.toml"),
        "{help}"
    );
}

#[test]
fn the_manual_page_is_that_of_the_help() {
    let place = Place::new();
    for (args, words) in [(&["man"][..], "dlock\\-run(1)"), (&["man", "run"], "at\\-least")] {
        let page = place.run(args);
        assert_eq!((page.status, &*page.err), (0, ""));
        assert!(page.out.contains(".TH") && page.out.contains(words), "{}", page.out);
    }
    assert_eq!(place.run(["man", "nosuch"]).status, 64);
    // A page is written once for all users.
    let page = place.run(["man", "run"]).out;
    let home_folder = env::var("HOME").expect("a home folder");
    assert!(page.contains("`$HOME/.local/state/dlock/locks.db`"), "{page}");
    assert!(!page.contains(&format!("{home_folder}/.local")), "{page}");
}

#[test]
fn there_are_completions_for_the_usual_shells() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ended = place.run(["completions", shell]);
        assert_eq!(ended.status, 0);
        assert!(ended.out.contains("dlock") && ended.err.is_empty(), "{shell}");
    }
}

#[test]
fn the_script_of_zsh_also_completes_if_zsh_loads_it_as_a_function() {
    let script = Place::new().run(["completions", "zsh"]).out;
    let function =
        script.split_once("function ").expect("a function").1.split_once("()").expect("a function").0;
    assert!(script.trim_end().ends_with(&format!("{function} \"$@\"\nfi")), "{script}");
}

#[test]
fn bash_completes_files_where_dlock_has_no_completion() {
    let place = Place::new();
    let script = place.run(["completions", "bash"]).out;
    let registrations: Vec<_> = script.lines().filter(|line| line.contains("complete -o")).collect();
    assert!(!registrations.is_empty(), "{script}");
    assert!(registrations.iter().all(|line| line.contains(" -o default ")), "{registrations:#?}");
}

/// Returns the completions of bash for the last of these words.
fn proposed(place: &Place, words: &[&str]) -> Vec<String> {
    let folder = Path::new(env!("CARGO_BIN_EXE_dlock")).parent().expect("a folder").display().to_string();
    let script = "source <(dlock completions bash); COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
                  _clap_complete_dlock dlock \"${!#}\"; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["-c", script, "bash", "dlock"]).args(words);
    bash.env("PATH", format!("{folder}:{}", env::var("PATH").unwrap_or_default()));
    bash.env("DLOCK_STORE", format!("sqlite:{}", place.path("locks.db").display()));
    let ended = Ended::of(&mut bash);
    assert_eq!(ended.err, "", "{words:?}");
    ended.out.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn a_shell_completes_commands_options_and_the_names_of_locks() {
    let place = Place::new();
    assert_eq!(proposed(&place, &["insp"]), ["inspect"]);
    assert!(proposed(&place, &["run", "--no-w"]).contains(&"--no-wait".to_owned()));
    assert_eq!(proposed(&place, &["inspect", "ni"]), [""; 0]);
    assert!(!place.path("locks.db").exists(), "the completion has created a store");
    let taken = place.run(["acquire", "nightly", "--for", "1m"]);
    assert_eq!(taken.status, 0, "{}", taken.err);
    for words in
        [&["run", "ni"][..], &["inspect", ""], &["unlock", "n"], &["ls", "ni"], &["run", "-n", "nig"]]
    {
        assert!(proposed(&place, words).contains(&"nightly".to_owned()), "{words:?}");
    }
    let other = format!("--store=sqlite:{}", place.path("other.db").display());
    assert_eq!(proposed(&place, &["inspect", &other, "ni"]), [""; 0], "the completion used another store");
}
