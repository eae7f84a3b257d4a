//! The page about the configuration file, compared with the parser, and the configurations of the book.
#![cfg(feature = "config")]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::{collections::BTreeSet, fs, path::PathBuf};

use dlock::{
    Registry,
    config::{Config, wait},
    driver::Driver,
};

const PAGE: &str = include_str!("../../docs/config.md");

/// Folder of the book's pages.
const BOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/book/src");

/// Returns the code blocks of a text, each with the word after its fence.
fn blocks(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let blocks = text.split("```").skip(1).step_by(2);
    blocks.map(|block| block.split_once('\n').unwrap_or_else(|| panic!("no block: {block}")))
}

/// Returns the text of a section, up to the next one of the same level.
fn section(heading: &str) -> &'static str {
    let heading = format!("\n## {heading}\n");
    let (_, rest) = PAGE.split_once(&heading).unwrap_or_else(|| panic!("no {heading}"));
    rest.split("\n## ").next().unwrap()
}

/// Returns the cells of the rows of a section whose first cell is code. The cells have no backticks.
fn rows(heading: &str) -> impl Iterator<Item = Vec<&'static str>> {
    let rows = section(heading).lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect())
}

/// Stores in memory in place of those of all schemes on the page. Each URL is a store of its own.
fn registry() -> Registry {
    Registry::new().with(Driver::new(&["sqlite", "redis", "etcd", "postgres"], |url| {
        Box::pin(async move {
            let place = [url.scheme(), &url.hosts().join(","), url.path()].concat();
            Registry::new().open(&format!("memory:page-{place}")).await
        })
    }))
}

#[tokio::test]
async fn every_example_is_a_configuration_whose_options_suit_each_other() {
    let files = fs::read_dir(BOOK).unwrap().map(|entry| entry.unwrap().path());
    let pages = files.map(|file| fs::read_to_string(file).unwrap()).chain([PAGE.to_owned()]);
    let pages: Vec<_> = pages.collect();
    let blocks = pages.iter().flat_map(|page| blocks(page));
    let examples: Vec<_> = blocks.filter(|(language, _)| *language == "toml").map(|(_, text)| text).collect();
    assert!(examples.len() > 5, "only {} examples", examples.len());
    for text in examples {
        // Cargo sets this variable.
        let text = text.replace("${REDIS_PASSWORD}", "${CARGO_PKG_NAME}");
        let config = Config::from_toml(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        config.connect(&registry()).await.unwrap_or_else(|error| panic!("{error}\n{text}"));
    }
}

/// A file that is removed with its folder.
struct File(PathBuf);

impl File {
    fn new(text: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("dlock-config-page-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("dlock.toml");
        fs::write(&file, text).unwrap();
        Self(file)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        fs::remove_dir_all(self.0.parent().unwrap()).ok();
    }
}

/// Returns the error of a wrong configuration, as for the file `/etc/dlock.toml`.
async fn error_of(text: &str) -> String {
    let file = File::new(text);
    let error = match Config::from_file(&file.0) {
        Ok(config) => config.connect(&registry()).await.expect_err(text),
        Err(error) => error,
    };
    error.to_string().replace(&file.0.display().to_string(), "/etc/dlock.toml")
}

#[tokio::test]
async fn every_wrong_example_is_refused_with_the_error_below_it() {
    let mut blocks = blocks(PAGE);
    let mut wrong_examples = 0;
    while let Some((language, text)) = blocks.next() {
        if language != "toml,error" {
            continue;
        }
        let (language, quoted) = blocks.next().unwrap_or_default();
        assert_eq!(language, "text", "no error is quoted below:\n{text}");
        // The page wraps long errors.
        let quoted = quoted.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(error_of(text).await, quoted, "the error of:\n{text}");
        wrong_examples += 1;
    }
    assert!(wrong_examples > 0, "the page has no wrong example");
}

/// Returns the keys that the parser accepts at the end of a text, which its error lists.
fn known_keys(text: &str) -> BTreeSet<String> {
    let error = Config::from_toml(&format!("{text}\nno_such_key = 1")).expect_err(text).to_string();
    let (message, keys) = error.split_once("; there are: ").unwrap_or_else(|| panic!("no keys in: {error}"));
    assert!(message.ends_with("there is no key `no_such_key`"), "{error}");
    keys.split(", ").map(str::to_owned).collect()
}

#[test]
fn the_tables_list_exactly_the_keys_of_the_parser() {
    let documented = |sections: &[&str]| -> BTreeSet<String> {
        sections.iter().flat_map(|section| rows(section)).map(|cells| cells[0].to_owned()).collect()
    };
    for (sections, text) in [
        (&["Keys of the file"][..], ""),
        (&["Stores", "Options of locks"], "[stores.a]"),
        (&["Rules", "Options of locks"], "[stores.a]\nurl = 'memory:'\n[[rules]]"),
    ] {
        assert_eq!(documented(sections), known_keys(text), "in {sections:?}");
    }
}

#[test]
fn the_rules_of_the_page_apply_to_locks_as_its_table_says() {
    let heading = "Which rule applies";
    let (_, text) = blocks(section(heading)).next().unwrap();
    let config = Config::from_toml(text).unwrap();
    let mut locks = 0;
    for cells in rows(heading) {
        let [lock, store, limit, _] = cells[..] else { panic!("not a row of a lock: {cells:?}") };
        let limit = (limit != "none").then(|| wait(limit).unwrap());
        assert_eq!((config.store_of(lock), config.wait_of(lock)), (store, limit), "of {lock}");
        locks += 1;
    }
    assert!(locks > 0, "the page has no table of locks");
}
