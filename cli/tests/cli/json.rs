//! The JSON output of dlock, compared with the page that describes it.

use std::{collections::BTreeSet, time::Duration};

use serde_json::Value;

use crate::place::{Ended, Place};

const PAGE: &str = include_str!("../../../docs/json.md");

/// Returns the fields that the page lists in a section.
fn documented(section: &str) -> BTreeSet<&'static str> {
    let heading = format!("## {section}\n");
    let (_, rest) = PAGE.split_once(&heading).unwrap_or_else(|| panic!("no {heading}"));
    let section = rest.split("\n## ").next().unwrap();
    section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(field, _)| field)
        .collect()
}

fn fields(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap_or_else(|| panic!("no object: {value}")).keys().map(String::as_str).collect()
}

fn json(ended: &Ended) -> Value {
    let answer: Value = serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended:?}"));
    assert_eq!(answer["version"], 1);
    answer
}

#[test]
fn the_page_lists_the_fields_of_locks() {
    let place = Place::new();
    let holder = place.hold(&["x"]);
    let waiter = place.dlock(["run", "x", "true"]).spawn().unwrap();
    place.until_queued("x", 1);
    let all = json(&place.run(["ls", "--json"]));
    assert_eq!(fields(&all), documented("`dlock ls --json`"));
    assert_eq!(fields(&all["locks"][0]), documented("A lock of `ls`"));
    let one = json(&place.run(["inspect", "--json", "x"]));
    assert_eq!(fields(&one), documented("`dlock inspect --json`"));
    for of in [&all["locks"][0], &one] {
        for contender in [&of["holders"][0], &of["queue"][0]] {
            assert_eq!(fields(contender), documented("A holder or a waiter"));
        }
    }
    assert_eq!(
        (&one["holders"][0]["position"], &one["queue"][0]["position"]),
        (&Value::Null, &Value::from(1))
    );
    holder.let_go();
    assert!(waiter.wait_with_output().unwrap().status.success());
    let free = json(&place.run(["inspect", "--json", "x"]));
    assert_eq!(fields(&free), documented("`dlock inspect --json`"));
}

#[test]
fn the_page_lists_the_fields_of_marks() {
    let place = Place::new();
    assert_eq!(place.run(["run", "--once", "k", "x", "true"]).status, 0);
    let all = json(&place.run(["ls", "--marks", "--json"]));
    assert_eq!(fields(&all), documented("`dlock ls --marks --json`"));
    assert_eq!(fields(&all["marks"][0]), documented("A mark of `ls --marks`"));
}

#[test]
fn the_page_lists_the_fields_of_a_store() {
    let info = json(&Place::new().run(["info", "--json"]));
    assert_eq!(fields(&info), documented("`dlock info --json`"));
}

#[test]
fn the_page_lists_the_fields_of_tickets() {
    let place = Place::new();
    let acquired = json(&place.run(["acquire", "--json", "--for", "1h", "--fair", "x"]));
    assert_eq!(fields(&acquired), documented("`dlock acquire --json` and `dlock renew --json`"));
    let held = &place.state("x")["holders"][0];
    assert_eq!((&acquired["name"], &acquired["kind"]), (&Value::from("x"), &held["kind"]));
    assert_eq!((&acquired["token"], &acquired["id"]), (&held["token"], &held["id"]));
    assert_eq!(acquired["ttl_left"], 3600.0);
    let renewed = json(&place.run(["renew", "--json", acquired["ticket"].as_str().unwrap()]));
    assert_eq!(fields(&renewed), fields(&acquired));
    assert_eq!(renewed["ttl_left"], 600.0);
    let ticket = renewed["ticket"].as_str().unwrap();
    for (released, status) in [(true, 0), (false, 74)] {
        let ended = place.run(["release", "--json", ticket]);
        assert_eq!(ended.status, status);
        let answer = json(&ended);
        assert_eq!(fields(&answer), documented("`dlock release --json`"));
        assert_eq!(answer["released"], released);
        for field in ["name", "kind", "token", "id"] {
            assert_eq!(answer[field], renewed[field]);
        }
    }
}

#[test]
fn times_are_on_the_clock_of_this_host() {
    let place = Place::new();
    let time = |value: &Value| humantime::parse_rfc3339(value.as_str().unwrap()).unwrap();
    let now = || Duration::from_secs(time_of_day());
    let before = now();
    let acquired = json(&place.run(["acquire", "--json", "--for", "1h", "x"]));
    let held = place.state("x")["holders"][0].clone();
    // The output is truncated to milliseconds, and this clock to seconds.
    let after = now() + Duration::from_secs(1);
    let since_1970 = |value| time(value).duration_since(std::time::UNIX_EPOCH).unwrap();
    let hour = Duration::from_secs(3600);
    assert!((before..=after).contains(&since_1970(&held["since_at"])), "{held}");
    for expires in [&acquired["expires_at"], &held["expires_at"]] {
        assert!((before + hour..=after + hour).contains(&since_1970(expires)), "{expires}");
    }
}

fn time_of_day() -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()
}
