//! The descriptions of holders and waiters.

use std::fs;

use serde_json::Value;

use crate::place::{Ended, Place, Started};

const HOLD: [&str; 5] = ["x", "--", "sh", "-c", "echo held; read _; true"];

#[test]
fn a_holder_is_described_by_its_user_host_process_and_command() {
    let place = Place::new();
    let holder = Started::of(place.dlock(["run"]).args(HOLD).env("USER", "anna"));
    let who = place.state("x")["holders"][0]["who"].as_str().unwrap().to_owned();
    let (user, rest) = who.split_once('@').expect("user@host");
    let words: Vec<_> = rest.split(' ').collect();
    assert_eq!((user, words[1], &words[3..]), ("anna", "pid", &["dlock", "run", "x"][..]), "{who}");
    assert_eq!(words[2], holder.id().to_string());
    for shown in [place.run(["ls"]).out, place.run(["inspect", "x"]).out, place.run(["try", "x"]).err] {
        assert!(shown.contains(&who), "{who} is not in {shown}");
    }
    holder.let_go();
}

#[test]
fn a_holder_is_described_by_the_text_that_it_was_given() {
    let place = Place::new();
    let url = |who: &str| format!("sqlite:{}{who}", place.path("locks.db").display());
    for (args, variable, of_url, who) in [
        (&["--who", "the nightly run"][..], None, "", "the nightly run"),
        (&[], Some("worker 3"), "", "worker 3"),
        (&["--who", "me"], Some("you"), "?who=them", "me"),
        (&[], Some("you"), "?who=them", "you"),
        (&[], None, "?who=%3Cthem%3E", "<them>"),
    ] {
        let mut command = place.dlock([&["run"], args, &HOLD].concat());
        command.env("DLOCK_STORE", url(of_url)).envs(variable.map(|who| ("DLOCK_WHO", who)));
        let holder = Started::of(&mut command);
        assert_eq!(place.state("x")["holders"][0]["who"], Value::from(who));
        assert!(place.run(["ls"]).out.contains(who));
        holder.let_go();
    }
}

#[test]
fn the_configuration_says_who_holds_a_lock_unless_the_command_line_does() {
    let place = Place::new();
    let (file, db) = (place.path("dlock.toml"), place.path("locks.db"));
    let text = format!(
        "[stores.a]\nurl = 'sqlite:{}?who=url'\nwho = 'store'\n[[rules]]\nlock = 'y'\nwho = 'rule'\n",
        db.display()
    );
    fs::write(&file, text).expect("the configuration is written");
    for (args, lock, who) in [(&[][..], "x", "store"), (&[], "y", "rule"), (&["--who", "me"], "y", "me")] {
        let mut command = place.dlock(["run"]);
        command.env_remove("DLOCK_STORE").env("DLOCK_CONFIG", &file);
        let holder = Started::of(command.args(args).arg(lock).args(&HOLD[1..]));
        assert_eq!(place.state(lock)["holders"][0]["who"], Value::from(who));
        holder.let_go();
    }
}

#[test]
fn a_name_that_could_fool_a_terminal_is_shown_escaped_and_one_that_no_store_could_show_is_refused() {
    let place = Place::new();
    let holder = place.hold(&["--who", "gnp.\u{202e}evil", "x"]);
    for shown in [place.run(["ls"]).out, place.run(["inspect", "x"]).out, place.run(["try", "x"]).err] {
        assert!(shown.contains("gnp.\\u{202e}evil"), "{shown}");
    }
    let json = place.run(["inspect", "--json", "x"]).out;
    assert!(json.contains("gnp.\\u202eevil"), "{json}");
    assert_eq!(place.state("x")["holders"][0]["who"], "gnp.\u{202e}evil");
    holder.let_go();

    let ended = Ended::of(place.dlock(["run", "z", "--", "echo", "ran"]).env("DLOCK_WHO", ""));
    assert_eq!((ended.status, &*ended.out), (0, "ran\n"), "an empty variable is refused");
    let long = "x".repeat(201);
    for (who, word) in [("", "empty"), ("a\nb", "control character"), (&long, "201 bytes")] {
        for verb in ["run", "try", "acquire"] {
            let command = if verb == "acquire" { &[][..] } else { &["--", "echo", "ran"] };
            let ended = place.run([&[verb, "--who", who, "y"], command].concat());
            assert_eq!((ended.status, &*ended.out), (64, ""), "{verb}");
            assert!(ended.err.contains(word), "{}", ended.err);
            // An empty variable counts as unset, so `acquire` would succeed and keep the lock.
            if who.is_empty() {
                continue;
            }
            let ended = Ended::of(place.dlock([&[verb, "y"], command].concat()).env("DLOCK_WHO", who));
            assert_eq!((ended.status, &*ended.out), (64, ""), "{verb}");
        }
    }
}
