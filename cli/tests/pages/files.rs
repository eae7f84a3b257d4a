//! Parses the files in the code blocks of a page, and runs the commands in them.

use std::fs;

use toml::de::DeTable;
use yaml_rust2::{Yaml, YamlLoader};

use crate::{
    page::root,
    run::{Folder, is_in_path},
};

/// Runs a command line, and asserts that it ends with status 0.
fn run(folder: &Folder, at: &str, words: &[&str], variables: &[(String, String)]) {
    let ended = folder.run(words[0], &words[1..], variables);
    assert_eq!(ended.status, 0, "{at}: {words:?}: {}", ended.err);
}

/// Splits a line such as `NAME=value`.
fn variable(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once('=')?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    is_name.then(|| (name.to_owned(), value.to_owned()))
}

/// Checks the times of a crontab, and runs its commands as cron does.
pub(crate) fn run_crontab(folder: &Folder, at: &str, text: &str) {
    let mut variables = Vec::new();
    let mut jobs = 0;
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(variable) = variable(line) {
            variables.push(variable);
            continue;
        }
        let mut command = line;
        for limit in [59, 23, 31, 12, 7] {
            let (field, rest) = command.split_once(' ').unwrap_or_else(|| panic!("{at}: no job: {line}"));
            check_time(at, field, limit);
            command = rest.trim_start();
        }
        let bare = command.replace("\\%", "");
        assert!(!bare.contains('%'), "{at}: `%` ends the command in a crontab: {line}");
        run(folder, at, &["/bin/sh", "-c", &command.replace("\\%", "%")], &variables);
        jobs += 1;
    }
    assert!(jobs > 0, "{at}: the crontab has no job");
}

/// Checks a field of the time of a job: `*`, a number, a range or a list, each with a step.
fn check_time(at: &str, field: &str, limit: u32) {
    for part in field.split(',') {
        let (range, step) = part.split_once('/').unwrap_or((part, "1"));
        let bounds = if range == "*" { "0" } else { range };
        let is_valid =
            bounds.split('-').chain([step]).all(|number| number.parse().is_ok_and(|n: u32| n <= limit));
        assert!(is_valid, "{at}: `{field}` is not a field of a time");
    }
}

/// Writes a unit of systemd, whose first line is its path, checks it, and runs its command.
pub(crate) fn run_unit(folder: &Folder, at: &str, text: &str) {
    let path = text.lines().next().and_then(|line| line.strip_prefix("# /etc/systemd/system/"));
    let name = path.unwrap_or_else(|| panic!("{at}: the first line is not the path of the unit"));
    let file = folder.path(name);
    fs::write(&file, text).unwrap();

    let mut variables = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let is_section = line.starts_with('[') && line.ends_with(']');
        let (key, value) = line.split_once('=').unwrap_or_default();
        assert!(is_section || !key.is_empty(), "{at}: neither a section nor a setting: {line}");
        match key {
            "Environment" => variables.extend(variable(value)),
            "ExecStart" => run(folder, at, &value.split(' ').collect::<Vec<_>>(), &variables),
            _ => {}
        }
    }
    if is_in_path("systemd-analyze") {
        let ended = folder.run("systemd-analyze", &["verify", "--man=no", file.to_str().unwrap()], &[]);
        let is_valid = ended.status == 0 && !ended.err.contains(name);
        assert!(is_valid, "{at}: {}", ended.err);
    }
}

/// Parses manifests of Kubernetes, and runs the commands of their containers.
pub(crate) fn run_manifest(folder: &Folder, at: &str, text: &str) {
    let documents = YamlLoader::load_from_str(text).unwrap_or_else(|error| panic!("{at}: {error}"));
    for document in documents {
        for key in ["apiVersion", "kind"] {
            assert!(document[key].as_str().is_some(), "{at}: no `{key}`");
        }
        assert!(document["metadata"]["name"].as_str().is_some(), "{at}: no name");
        for container in containers(&document) {
            let words: Vec<_> = container["command"].as_vec().into_iter().flatten().collect();
            let words: Vec<_> = words.into_iter().map(|word| word.as_str().expect("a text")).collect();
            assert!(words.first().is_some_and(|word| word.ends_with("dlock")), "{at}: {words:?}");
            let variables: Vec<_> = container["env"].as_vec().into_iter().flatten().collect();
            let variables: Vec<_> = variables
                .into_iter()
                .filter_map(|entry| Some((entry["name"].as_str()?.into(), entry["value"].as_str()?.into())))
                .collect();
            run(folder, at, &words, &variables);
        }
    }
}

/// Returns the containers of a manifest, at any depth.
fn containers(yaml: &Yaml) -> Vec<&Yaml> {
    match yaml {
        Yaml::Hash(hash) => hash
            .iter()
            .flat_map(|(key, value)| match value {
                Yaml::Array(items) if key.as_str() == Some("containers") => items.iter().collect(),
                _ => containers(value),
            })
            .collect(),
        Yaml::Array(items) => items.iter().flat_map(containers).collect(),
        _ => Vec::new(),
    }
}

/// Checks that a dependency of a Cargo manifest is a package of this repository, and that it has the
/// listed features.
pub(crate) fn check_dependency(at: &str, text: &str) {
    let text = DeTable::parse(text).unwrap_or_else(|error| panic!("{at}: {error}"));
    let (name, dependency) =
        text.get_ref()["dependencies"].get_ref().as_table().unwrap().iter().next().unwrap();
    let dependency = dependency.get_ref();
    let manifest = fs::read_to_string(root().join(name.get_ref().as_ref()).join("Cargo.toml")).unwrap();
    let manifest = DeTable::parse(&manifest).unwrap();
    let package = &manifest.get_ref()["package"].get_ref()["name"];
    assert_eq!(dependency["package"].get_ref().as_str(), package.get_ref().as_str(), "{at}");
    for feature in dependency["features"].get_ref().as_array().unwrap().iter() {
        let feature = feature.get_ref().as_str().unwrap();
        let features = manifest.get_ref()["features"].get_ref().as_table().unwrap();
        assert!(features.contains_key(feature), "{at}: the package has no feature `{feature}`");
    }
}
