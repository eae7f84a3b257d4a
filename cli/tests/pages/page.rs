//! The Markdown pages of the repository: their code blocks, headings and links.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// A Markdown file.
pub(crate) struct Page {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

/// A code block of a page.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// Number of the line with the opening fence.
    pub(crate) line: usize,
    pub(crate) language: String,
    /// Words after the language, without a reason.
    pub(crate) words: Vec<String>,
    /// Reason why the block is not run, from `no-run: REASON` at the end of its first line.
    pub(crate) reason: Option<String>,
    pub(crate) text: String,
}

impl Block {
    fn new(line: usize, info: &str) -> Self {
        let (info, reason) = match info.split_once("no-run:") {
            Some((info, reason)) => (info, Some(reason.trim().to_owned())),
            None => (info, None),
        };
        let mut words = info.split_whitespace().map(str::to_owned);
        let language = words.next().unwrap_or_default();
        Self { line, language, words: words.collect(), reason, text: String::new() }
    }

    /// Returns whether the block is the output of the block above.
    pub(crate) fn is_output(&self) -> bool {
        self.language == "text" && self.words == ["output"]
    }

    /// Returns the value of a word such as `status:75`.
    pub(crate) fn value(&self, key: &str) -> Option<&str> {
        self.words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix(':'))
    }
}

impl Page {
    pub(crate) fn read(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { path, text }
    }

    /// Returns the path from the root of the repository.
    pub(crate) fn name(&self) -> String {
        self.path.strip_prefix(root()).unwrap_or(&self.path).display().to_string()
    }

    /// Returns the lines, each with its number and with the index of the code block that contains
    /// it. A fence belongs to its block.
    fn lines(&self) -> impl Iterator<Item = (usize, Option<usize>, &str)> {
        let mut blocks = 0;
        let mut inside = false;
        self.text.lines().enumerate().map(move |(index, line)| {
            let is_fence = line.trim_start().starts_with("```");
            let block = (inside || is_fence).then_some(blocks);
            if is_fence {
                blocks += usize::from(inside);
                inside = !inside;
            }
            (index + 1, block, line)
        })
    }

    pub(crate) fn blocks(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        let mut indentation = 0;
        for (number, block, line) in self.lines() {
            let Some(block) = block else { continue };
            let info = line.trim_start();
            if block == blocks.len() {
                indentation = line.len() - info.len();
                blocks.push(Block::new(number, info.trim_start_matches('`')));
            } else if !info.starts_with("```") {
                let text = &mut blocks[block].text;
                text.push_str(line.get(indentation..).unwrap_or_default());
                text.push('\n');
            }
        }
        blocks
    }

    /// Returns the lines outside of code blocks, each with its number.
    pub(crate) fn prose(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines().filter_map(|(number, block, line)| block.is_none().then_some((number, line)))
    }

    /// Returns the text of each heading.
    pub(crate) fn headings(&self) -> impl Iterator<Item = &str> {
        self.prose().filter_map(|(_, line)| {
            let text = line.trim_start_matches('#');
            (text.len() < line.len() && text.starts_with(' ')).then(|| text.trim())
        })
    }
}

/// Returns the pages of a folder, without those of its folders.
pub(crate) fn pages_in(folder: &str) -> Vec<Page> {
    let mut files: Vec<_> = fs::read_dir(root().join(folder))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    files.sort();
    files.into_iter().map(Page::read).collect()
}
