//! The choice of the store: `--store`, `--config`, their variables, the file for all users, and the
//! user's own file.

use std::{fs, process::Command};

use serde_json::Value;

use crate::place::{Ended, Place};

/// Returns a dlock without a configured store, so that it uses the user's own file in this place.
fn bare(place: &Place, args: &[&str]) -> Command {
    let mut command = place.dlock(args);
    command.env_remove("DLOCK_STORE").env("XDG_STATE_HOME", place.path("state"));
    command
}

/// Writes a configuration with two stores to `dlock.toml` in this place. Returns its path.
fn configured(place: &Place, more: &str) -> String {
    let (a, b) = (place.path("a.db"), place.path("b.db"));
    let text = format!(
        "default = 'a'\n[stores.a]\nurl = 'sqlite:{}'\n[stores.b]\nurl = 'sqlite:{}'\n{more}",
        a.display(),
        b.display()
    );
    let file = place.path("dlock.toml");
    fs::write(&file, text).unwrap();
    file.display().to_string()
}

#[test]
fn looking_makes_no_store() {
    let place = Place::new();
    for (args, status) in [
        (&["ls"][..], 0),
        (&["inspect", "x"], 1),
        (&["info"], 0),
        (&["info", "--json", "x"], 0),
        (&["unlock", "--force", "x"], 1),
    ] {
        let ended = Ended::of(&mut bare(&place, args));
        assert_eq!(ended.status, status, "{args:?}: {}", ended.err);
        assert!((ended.out + &ended.err).contains("state/dlock/locks.db"), "{args:?} does not name the file");
        assert!(!place.path("state").exists(), "{args:?} has created a store");
        let ended = place.run(args);
        assert_eq!(ended.status, status, "{args:?}: {}", ended.err);
        assert!(!place.path("locks.db").exists(), "{args:?} has created a store");
    }
    assert_eq!(Ended::of(&mut bare(&place, &["run", "x", "true"])).status, 0);
    let listed = Ended::of(&mut bare(&place, &["ls"]));
    assert_eq!((listed.status, &*listed.out, &*listed.err), (0, "", ""));
}

#[test]
fn info_says_which_store_it_is_and_why() {
    let place = Place::new();
    let own = Ended::of(&mut bare(&place, &["info"])).out;
    for words in ["state/dlock/locks.db", "because neither --store", "/etc/dlock.toml", "other users"] {
        assert!(own.contains(words), "`{words}` is not in: {own}");
    }
    place.run(["run", "x", "true"]);
    let info = place.run(["info"]).out;
    for words in ["locks.db", "as DLOCK_STORE says", "mutex, fair", "with tokens"] {
        assert!(info.contains(words), "`{words}` is not in: {info}");
    }
    let file = configured(&place, "[[rules]]\nlock = 'job/*'\nstore = 'b'\n");
    for (args, store) in [(&["info", "--json"][..], "a"), (&["info", "--json", "job/1"], "b")] {
        let text = Ended::of(bare(&place, args).env("DLOCK_CONFIG", &file)).out;
        let info: Value = serde_json::from_str(&text).unwrap();
        assert!(info["store"].as_str().unwrap().ends_with(&format!("/{store}.db`")), "{info}");
        let why = info["why"].as_str().unwrap();
        assert!(why.contains(&format!("store `{store}`")) && why.contains("DLOCK_CONFIG"), "{info}");
        assert_eq!(info["kinds"], Value::Null, "a store that does not exist has kinds");
    }
    let away = place.run(["info", "--store", "sqlite:/nowhere/at/all/locks.db"]);
    assert_eq!(away.status, 78, "{}", away.err);
    assert!(away.out.contains("as --store says"), "{}", away.out);
}

#[test]
fn a_configuration_says_in_which_store_a_lock_is_and_how_it_is_held() {
    let place = Place::new();
    let file = configured(&place, "[[rules]]\nlock = 'job/*'\nstore = 'b'\nttl = 20\nwait = 0\n");
    let run = |args: &[&str]| Ended::of(bare(&place, &[]).args(args));
    let text = "$DLOCK inspect --json --store b --config $F job/1; $DLOCK try --config $F job/1; echo $?";
    let held = Ended::of(bare(&place, &["run", "--config", &file, "job/1", "-c", text]).env("F", &file));
    assert!(held.out.contains("\"ttl_left\": 1") || held.out.contains("\"ttl_left\": 20"), "{}", held.out);
    assert!(held.out.ends_with("0\n"), "a nested try did not enter: {}", held.out);
    assert!(!place.path("a.db").exists(), "the rule's store was not used");
    let waits = "env -u DLOCK_HELD $DLOCK run --config $F job/1 true; echo $?";
    let waits = Ended::of(bare(&place, &["run", "--config", &file, "job/1", "-c", waits]).env("F", &file));
    assert_eq!(waits.out, "75\n", "the wait limit of the rule was not used: {}", waits.err);
    assert_eq!(run(&["run", "--config", &file, "x", "true"]).status, 0);
    assert!(place.path("a.db").exists(), "the default store was not used");
}

#[test]
fn a_named_store_takes_the_lock_whatever_the_rules_say() {
    let place = Place::new();
    let file = configured(&place, "[[rules]]\nlock = 'job/*'\nstore = 'a'\n");
    for lock in ["job/1", "x"] {
        let run = &["run", "--config", &file, "--store", "b", lock, "true"];
        let ended = Ended::of(&mut bare(&place, run));
        assert_eq!(ended.status, 0, "{}", ended.err);
        assert!(!place.path("a.db").exists(), "`{lock}` was locked in another store than that of --store");
    }
    assert!(place.path("b.db").exists(), "no store was used");
}

#[test]
fn a_named_store_gives_its_wait_limit_and_label_to_a_lock_of_another_store() {
    let place = Place::new();
    let more = "wait = 0\nwho = 'of b'\n[[rules]]\nlock = 'job/*'\nstore = 'a'\nwho = 'of the rule'\n";
    let file = configured(&place, more);
    let text = "$DLOCK inspect --json --store b --config $F job/1; \
                env -u DLOCK_HELD timeout 60 $DLOCK run --store b --config $F job/1 true; echo $?";
    let run = ["run", "--config", &file, "--store", "b", "job/1", "-c", text];
    let ended = Ended::of(bare(&place, &run).env("F", &file));
    assert!(ended.out.contains("\"who\": \"of b\""), "{}", ended.out);
    assert!(
        ended.out.ends_with("\n75\n"),
        "the wait limit of the store was not used: {} {}",
        ended.out,
        ended.err
    );
}

#[test]
fn what_is_typed_goes_before_the_environment_and_a_url_before_a_file() {
    let place = Place::new();
    let file = configured(&place, "");
    let store = |args: &[&str], store: Option<&str>, config: Option<&str>| {
        let mut command = bare(&place, &[]);
        command.args(["info"]).args(args);
        store.map(|store| command.env("DLOCK_STORE", store));
        config.map(|config| command.env("DLOCK_CONFIG", config));
        Ended::of(&mut command).out.lines().next().unwrap_or_default().to_owned()
    };
    assert!(store(&["--config", &file], Some("sqlite:/tmp/z.db"), None).contains("/a.db"));
    assert!(store(&["--store", "sqlite:/tmp/z.db"], None, Some(&file)).contains("/z.db"));
    assert!(store(&[], Some("sqlite:/tmp/z.db"), Some(&file)).contains("/z.db"));
    assert!(store(&["--store", "b"], None, Some(&file)).contains("/b.db"));
    assert!(store(&["--config", &file], Some("b"), None).contains("/b.db"));
}

#[test]
fn a_mistake_in_a_configuration_is_reported_with_its_place() {
    let place = Place::new();
    let file = place.path("dlock.toml");
    for (text, words) in [
        ("[stores.a]\nurl='memory:'\n", "would not exclude each other"),
        ("[stores.a]\nurl='sqlite:locks.db'\n", "absolute"),
        ("[stores.a]\nurl='redis://u:hunter2@h'\nttl='soon'\n", "dlock.toml:3:5: store `a`, `ttl`"),
        ("[stores.a]\nurl='sqlite:/l.db?password=hunter2'\n", "dlock.toml:1:9: store `a`"),
        ("[stores.a]\nurl=hunter2\n", "dlock.toml:2:5"),
    ] {
        fs::write(&file, text).unwrap();
        for args in [&["run", "x", "--", "echo", "ran"][..], &["ls"], &["inspect", "x"]] {
            let ended = Ended::of(bare(&place, args).env("DLOCK_CONFIG", &file));
            assert_eq!((ended.status, &*ended.out), (78, ""), "{text}: {}", ended.err);
            assert!(ended.err.contains(words), "`{words}` is not in: {}", ended.err);
            assert!(!ended.err.contains("hunter2"), "{}", ended.err);
        }
    }
    let absent = Ended::of(bare(&place, &["ls"]).env("DLOCK_CONFIG", place.path("absent.toml")));
    assert_eq!(absent.status, 78);
    assert!(absent.err.contains("absent.toml") && absent.err.contains("DLOCK_CONFIG"), "{}", absent.err);
    let unknown =
        Ended::of(bare(&place, &["ls", "--store", "c"]).env("DLOCK_CONFIG", configured(&place, "")));
    assert!(unknown.status == 78 && unknown.err.contains("there are: a, b"), "{}", unknown.err);
}

#[test]
fn a_user_without_a_home_gets_an_error_that_says_what_to_set() {
    let place = Place::new();
    for (home, words) in
        [(None, "HOME is not set"), (Some("here"), "HOME is `here`, which is not an absolute path")]
    {
        for args in [&["ls"][..], &["info"], &["run", "x", "true"]] {
            let mut command = bare(&place, args);
            command.env_remove("XDG_STATE_HOME").env_remove("HOME");
            home.map(|home| command.env("HOME", home));
            let ended = Ended::of(&mut command);
            assert_eq!(ended.status, 78, "{}", ended.err);
            for words in [words, "DLOCK_STORE", "/var/lib/dlock", "/etc/dlock.toml"] {
                assert!(ended.err.contains(words), "`{words}` is not in: {}", ended.err);
            }
        }
    }
}

#[test]
fn a_wait_may_be_for_ever() {
    let place = Place::new();
    assert_eq!(place.run(["run", "-w", "forever", "x", "true"]).status, 0);
    let refused = place.run(["run", "-w", "ever", "x", "true"]);
    assert!(refused.status == 64 && refused.err.contains("forever"), "{}", refused.err);
}

#[test]
fn a_minimum_time_in_the_configuration_keeps_the_lock_only_after_a_command() {
    let place = Place::new();
    let file = configured(&place, "[[rules]]\nlock = 'job/*'\nat_least = '1h'\n");
    // A search for the command also meets a file and a program without the right to execute it.
    let folder = place.path("programs");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("not-executable"), "").unwrap();
    let folders = [&*file, folder.to_str().unwrap(), "/usr/bin", "/bin"].join(":");
    for (words, status, then) in [
        (&["run", "-n", "--config", &*file, "job/1", "--", "no-such-command"][..], 127, 0),
        (&["run", "-n", "--config", &*file, "job/1", "--", "not-executable"], 126, 0),
        (&["try", "--config", &*file, "job/1"], 0, 0),
        (&["run", "-n", "--config", &*file, "job/1", "--", "true"], 0, 75),
    ] {
        let ended = Ended::of(bare(&place, words).env("PATH", &folders));
        assert_eq!(ended.status, status, "{words:?}: {}", ended.err);
        let next = ["run", "-n", "--at-least", "0", "--config", &*file, "job/1", "--", "true"];
        let next = Ended::of(&mut bare(&place, &next));
        assert_eq!(next.status, then, "after {words:?}: {}", next.err);
    }
}
