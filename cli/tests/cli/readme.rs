//! Runs the examples of the front page.

use std::process::Command;

use crate::place::{Ended, Place};

const FRONT_PAGE: &str = include_str!("../../../README.md");

/// Runs the example that contains these words in a shell, with dlock in its path.
fn run_example(place: &Place, words: &str) -> Ended {
    let examples = FRONT_PAGE.split("```sh\n").skip(1).filter_map(|rest| rest.split_once("```"));
    let found: Vec<_> =
        examples.map(|(example, _)| example).filter(|example| example.contains(words)).collect();
    let [example] = found[..] else { panic!("`{words}` is not in exactly one example: {found:?}") };
    let mut shell = Command::new("bash");
    shell
        .args(["-e", "-c", example])
        .envs(place.dlock([""]).get_envs().filter_map(|(key, value)| Some((key, value?))));
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_dlock")).parent().unwrap();
    let path = std::env::join_paths(
        [folder.to_owned()].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    Ended::of(shell.env("PATH", path.unwrap()).current_dir(place.path(".")))
}

#[test]
fn the_worker_pool_has_four_at_once_at_most() {
    let place = Place::new();
    let ended = run_example(&place, "--slots 4");
    assert_eq!((ended.status, &*ended.err), (0, ""));
    let mut inside = 0;
    for line in ended.out.lines() {
        inside += if line.starts_with("begin ") { 1 } else { -1 };
        assert!((0..=4).contains(&inside), "{}", ended.out);
    }
    assert_eq!((inside, ended.out.lines().count()), (0, 16), "{}", ended.out);
}

#[test]
fn the_daily_report_is_made_once() {
    let place = Place::new();
    for times in [1, 0] {
        let ended = run_example(&place, "--every 1d");
        assert_eq!(ended.status, 0, "{}", ended.err);
        assert_eq!(ended.out.lines().count(), times, "{}", ended.out);
        assert_eq!(ended.err, "", "a job without work prints a message, which cron would mail");
    }
}

#[test]
fn a_ticket_goes_from_one_step_to_the_next() {
    let place = Place::new();
    let ended = run_example(&place, "dlock acquire");
    assert_eq!((ended.status, &*ended.err), (0, ""));
    assert_eq!(place.run(["ls"]).out, "", "a lock is still held");
}
