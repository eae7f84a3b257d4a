//! Runs the code blocks of a page.

use std::{
    collections::BTreeSet,
    env, fs,
    os::unix::{
        fs::{PermissionsExt, symlink},
        process::CommandExt,
    },
    path::PathBuf,
    process::{Command, Stdio},
};

use dlock_conformance::{
    hidden::{block_on, test},
    ignore,
};
use dlock_testbed::servers::{
    Running,
    redis::{Brand, Flavour, start},
};
use libtest_mimic::Trial;

use crate::{
    files,
    page::{Block, Page},
    place::{Ended, Place},
    server,
};

/// Folder whose programs the pages name.
const BIN: &str = "/usr/local/bin";

/// URL of the Redis server in blocks that are run on one.
const REDIS: &str = "redis://localhost";

/// A block that is run, and the block with its output.
#[derive(Clone)]
struct Step {
    block: Block,
    output: Option<Block>,
}

/// Returns the tests of a page. The blocks with one prerequisite are one test. Each block that is not
/// run is a test that is ignored.
pub(crate) fn trials(page: &Page) -> Vec<Trial> {
    let name = page.name();
    let blocks = page.blocks();
    let mut steps: Vec<Step> = Vec::new();
    let mut above_is_run = false;
    for block in &blocks {
        let is_run = block.reason.is_none() && ["sh", "crontab", "ini", "yaml"].contains(&&*block.language);
        if is_run {
            steps.push(Step { block: block.clone(), output: None });
        } else if block.is_output() {
            assert!(above_is_run, "{name}:{}: the block above is not run", block.line);
            steps.last_mut().unwrap().output = Some(block.clone());
        }
        above_is_run = is_run;
    }
    let prerequisites: BTreeSet<_> =
        steps.iter().map(|step| step.block.value("with").map(str::to_owned)).collect();
    let run = prerequisites.into_iter().map(|with| {
        let steps: Vec<_> =
            steps.iter().filter(|step| step.block.value("with") == with.as_deref()).cloned().collect();
        let title = with.as_ref().map_or_else(|| name.clone(), |with| format!("{name} with {with}"));
        let page = name.clone();
        test(&format!("pages::{title}"), move || run_all(&page, with.as_deref(), &steps))
    });
    let not_run = blocks.iter().filter_map(|block| {
        let reason = block.reason.clone()?;
        let title = format!("{name}:{}: not run, {reason}", block.line);
        Some(Trial::test(title, move || Err(reason.into())).with_ignored_flag(true))
    });
    run.chain(not_run).collect()
}

/// Runs the steps of a page one after the other, in one folder.
fn run_all(page: &str, with: Option<&str>, steps: &[Step]) {
    match with {
        None => run_steps(&Folder::new(None), page, steps),
        Some("redis") => block_on(None, async {
            let Some(redis) = server::own(start(Brand::Redis, Flavour::Standalone).await) else { return };
            run_steps(&Folder::new(Some(redis)), page, steps);
        }),
        Some(program) if is_in_path(program) => run_steps(&Folder::new(None), page, steps),
        Some(program) => ignore(&format!("{program} is not installed")),
    }
}

/// Returns whether a program is in the `PATH`.
pub(crate) fn is_in_path(program: &str) -> bool {
    env::split_paths(&env::var_os("PATH").unwrap()).any(|folder| folder.join(program).is_file())
}

fn run_steps(folder: &Folder, page: &str, steps: &[Step]) {
    for step in steps {
        folder.create_programs(&step.block.text);
    }
    for Step { block, output } in steps {
        let at = format!("{page}:{}", block.line);
        let text = folder.localize(&block.text);
        match &*block.language {
            "crontab" => files::run_crontab(folder, &at, &text),
            "ini" => files::run_unit(folder, &at, &text),
            "yaml" => files::run_manifest(folder, &at, &text),
            _ => {
                let status = block.value("status").map_or(0, |status| status.parse().unwrap());
                let ended = folder.run("bash", &["-e", "-c", &format!("exec 2>&1\n{text}")], &[]);
                assert_eq!(ended.status, status, "{at}:\n{text}\n{}", ended.out);
                if let Some(output) = output {
                    assert!(
                        matches(&output.text, &ended.out),
                        "{page}:{}: the output is\n{}",
                        output.line,
                        ended.out
                    );
                }
            }
        }
    }
}

/// Returns whether a text has the lines of a pattern.
fn matches(pattern: &str, text: &str) -> bool {
    let mut lines = text.lines();
    pattern.lines().all(|pattern| lines.next().is_some_and(|line| line_matches(pattern, line.trim_end())))
        && lines.next().is_none()
}

/// Returns whether a line is the pattern, in which `…` is any text.
fn line_matches(pattern: &str, line: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('…') else { return pattern == line };
    let Some(line) = line.strip_prefix(first) else { return false };
    let mut ends = line.char_indices().map(|(at, _)| at).chain([line.len()]);
    ends.any(|at| line_matches(rest, &line[at..]))
}

/// A folder with a store, with the programs that a page names, and with a server if one is required.
pub(crate) struct Folder {
    place: Place,
    redis: Option<Running>,
}

impl Folder {
    pub(crate) fn new(redis: Option<Running>) -> Self {
        let folder = Self { place: Place::new(), redis };
        fs::create_dir(folder.path("bin")).unwrap();
        symlink(env!("CARGO_BIN_EXE_dlock"), folder.path("bin/dlock")).unwrap();
        folder
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path(name)
    }

    /// Replaces the folder of programs and the URL of the server with those of this folder.
    fn localize(&self, text: &str) -> String {
        let text = text.replace(BIN, &self.path("bin").display().to_string());
        let Some(redis) = &self.redis else { return text };
        text.replace(&format!("{REDIS}:6379"), redis.url()).replace(REDIS, redis.url())
    }

    /// Creates the programs that a text names, unless they exist.
    fn create_programs(&self, text: &str) {
        for (prefix, folder) in [(format!("{BIN}/"), "bin"), ("./".to_owned(), ".")] {
            for rest in text.split(&*prefix).skip(1) {
                let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c));
                let name = &rest[..length.unwrap_or(rest.len())];
                let file = format!("{folder}/{name}");
                if !name.is_empty() && !self.path(&file).exists() {
                    self.create_program(&file, &format!("echo {name} \"$@\""));
                }
            }
        }
    }

    /// Creates a shell script.
    pub(crate) fn create_program(&self, file: &str, text: &str) {
        fs::write(self.path(file), format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(self.path(file), fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Runs a shell block, with the errors apart from the output.
    pub(crate) fn run_example(&self, text: &str) -> Ended {
        self.create_programs(text);
        self.run("bash", &["-e", "-c", &self.localize(text)], &[])
    }

    /// Runs a program with the store of this folder, and with its programs in the `PATH`.
    pub(crate) fn run(&self, program: &str, args: &[&str], variables: &[(String, String)]) -> Ended {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.path(".")).stdin(Stdio::null()).process_group(0);
        for (key, value) in self.place.dlock([""]).get_envs() {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        let path = env::var_os("PATH").unwrap();
        let path = env::join_paths([self.path("bin")].into_iter().chain(env::split_paths(&path))).unwrap();
        command.env("PATH", path).env("HOME", self.path("."));
        command.envs(variables.iter().map(|(key, value)| (key, value)));
        Ended::of(&mut command)
    }
}
