//! The links between pages, the table of contents, and the tests of all blocks.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
};

use libtest_mimic::Trial;

use crate::{
    files,
    page::{Page, pages_in, root},
    pages_with_tests,
};

pub(crate) fn tests() -> Vec<Trial> {
    dlock_conformance::tests! {
        every_link_leads_to_a_file_and_a_heading on no runtime,
        every_footnote_has_one_mark_and_one_definition on no runtime,
        the_contents_list_every_page_with_its_title on no runtime,
        every_block_has_a_test_or_a_reason on no runtime,
        the_front_page_fits_on_one_screen on no runtime,
    }
}

/// Returns the Markdown files below a folder, without those that are not part of the repository.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries
        .flat_map(|entry| {
            let path = entry.path();
            let name = entry.file_name().into_string().unwrap();
            let is_foreign = name.starts_with('.') || name == "target" || name == "node_modules";
            if entry.file_type().unwrap().is_dir() && !is_foreign {
                files_below(&path)
            } else {
                Vec::from_iter(name.ends_with(".md").then_some(path))
            }
        })
        .collect()
}

/// Returns the anchors of the headings of a page.
fn anchors(page: &Page) -> BTreeSet<String> {
    let mut counts: HashMap<String, usize> = HashMap::new();
    let headings = page.headings().map(|heading| {
        let kept = heading.to_lowercase().replace(' ', "-");
        kept.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect::<String>()
    });
    headings
        .map(|anchor| {
            let count = counts.entry(anchor.clone()).or_default();
            *count += 1;
            if *count == 1 { anchor } else { format!("{anchor}-{}", *count - 1) }
        })
        .collect()
}

/// Returns the targets of the links of a page, each with the number of its line.
fn links(page: &Page) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (number, line) in page.prose() {
        // Code in backticks contains no link.
        let text: String = line.split('`').step_by(2).collect();
        links.extend(
            text.split("](").skip(1).filter_map(|rest| Some((number, rest.split_once(')')?.0.to_owned()))),
        );
        if let Some((label, target)) = text.strip_prefix('[').and_then(|rest| rest.split_once("]: "))
            && !label.starts_with('^')
        {
            links.push((number, target.to_owned()));
        }
    }
    links
}

/// Returns the labels of the footnote marks in a line, and whether each begins a definition.
fn footnotes(line: &str) -> impl Iterator<Item = (&str, bool)> {
    let begins_with_definition = line.starts_with("[^");
    line.split("[^").skip(1).enumerate().filter_map(move |(number, rest)| {
        let (label, rest) = rest.split_once(']')?;
        Some((label, begins_with_definition && number == 0 && rest.starts_with(": ")))
    })
}

fn every_footnote_has_one_mark_and_one_definition() {
    let mut checked = 0;
    for page in files_below(&root()).into_iter().map(Page::read) {
        // The numbers of marks and of definitions.
        let mut counts: HashMap<String, (usize, usize)> = HashMap::new();
        for (_, line) in page.prose() {
            for (label, is_definition) in footnotes(line) {
                let (marks, definitions) = counts.entry(label.to_owned()).or_default();
                *(if is_definition { definitions } else { marks }) += 1;
            }
        }
        checked += counts.len();
        let wrong: Vec<_> = counts.iter().filter(|(_, counts)| **counts != (1, 1)).collect();
        assert!(wrong.is_empty(), "{}: marks and definitions of footnotes: {wrong:?}", page.name());
    }
    assert!(checked > 300, "only {checked} footnotes were found");
}

fn every_link_leads_to_a_file_and_a_heading() {
    let pages: Vec<_> = files_below(&root()).into_iter().map(Page::read).collect();
    let headings: HashMap<_, _> =
        pages.iter().map(|page| (page.path.canonicalize().unwrap(), anchors(page))).collect();
    let mut wrong = Vec::new();
    let mut checked = 0;
    for page in &pages {
        for (line, target) in links(page) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            checked += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let file =
                if file.is_empty() { page.path.clone() } else { page.path.parent().unwrap().join(file) };
            let leads_there = file.canonicalize().is_ok_and(|file| {
                anchor.is_empty() || headings.get(&file).is_none_or(|anchors| anchors.contains(anchor))
            });
            if !leads_there {
                wrong.push(format!("{}:{line}: {target}", page.name()));
            }
        }
    }
    assert!(checked > 300, "only {checked} links were found");
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
}

fn the_contents_list_every_page_with_its_title() {
    const CONTENTS: &str = "SUMMARY.md";
    let contents = Page::read(root().join("docs/book/src").join(CONTENTS));
    let mut listed: Vec<_> = contents
        .prose()
        .filter_map(|(_, line)| {
            let (title, file) = line.split_once('[')?.1.split_once("](")?;
            Some((file.trim_end_matches(')').to_owned(), title.to_owned()))
        })
        .collect();
    listed.sort();
    let pages = pages_in("docs/book/src");
    let titles: Vec<_> = pages
        .iter()
        .map(|page| {
            let file = page.path.file_name().unwrap().to_str().unwrap().to_owned();
            (file, page.headings().next().unwrap_or_default().to_owned())
        })
        .filter(|(file, _)| file != CONTENTS)
        .collect();
    assert_eq!(listed, titles);
}

fn every_block_has_a_test_or_a_reason() {
    let doc_tests = fs::read_to_string(root().join("dlock/src/lib.rs")).unwrap();
    for page in pages_with_tests() {
        for block in page.blocks() {
            let at = format!("{}:{}", page.name(), block.line);
            let words: Vec<_> = block.words.iter().map(String::as_str).collect();
            match (&*block.language, &words[..]) {
                _ if block.reason.is_some() => {
                    assert!(block.reason != Some(String::new()), "{at}: no reason");
                }
                ("sh", words) => assert!(
                    words.iter().all(|word| word.starts_with("status:") || word.starts_with("with:")),
                    "{at}: {words:?}"
                ),
                ("toml", ["cargo"]) => files::check_dependency(&at, &block.text),
                ("rust", []) => assert!(
                    doc_tests.contains(&format!("include_str!(\"../../{}\")", page.name())),
                    "{at}: the page is not among the doc tests in dlock/src/lib.rs"
                ),
                ("text", [] | ["output"])
                | ("crontab" | "ini" | "yaml", [] | ["with:redis"])
                | ("toml", []) => {}
                (language, words) => panic!("{at}: no test for `{language}` {words:?}, and no reason"),
            }
        }
    }
}

fn the_front_page_fits_on_one_screen() {
    let page = Page::read(root().join("README.md"));
    let lines = page.text.lines().count();
    assert!(lines <= 75, "{lines} lines");
}
