//! Copies the source of dlock-core, for a compilation on shuttle, and plants bugs in the copy.

mod planted;

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use planted::BUGS;

const SOURCE: &str = "../dlock-core/src";

fn main() {
    let source = Path::new(SOURCE);
    let copy = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("dlock-core");
    println!("cargo:rerun-if-changed={}", source.display());
    println!("cargo:rerun-if-changed=planted.rs");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cfg=feature=\"test-util\"");
    if copy.exists() {
        fs::remove_dir_all(&copy).expect("the folder of this script");
    }
    copy_folder(source, &copy);
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("the folder of this script");
    for entry in fs::read_dir(from).expect("the source of dlock-core") {
        let path = entry.expect("the source of dlock-core").path();
        let target = to.join(path.file_name().expect("an entry of a folder"));
        if path.is_dir() {
            copy_folder(&path, &target);
        } else {
            let text = fs::read_to_string(&path).expect("a source file");
            let is_root = from == Path::new(SOURCE) && path.ends_with("lib.rs");
            let file = path.strip_prefix(SOURCE).expect("a file of this folder");
            fs::write(target, with_bugs(file, on_shuttle(&text, is_root)))
                .expect("the folder of this script");
        }
    }
}

/// Plants the bugs of a file.
fn with_bugs(file: &Path, text: String) -> String {
    let bugs = BUGS.iter().filter(|bug| Path::new(bug.file) == file);
    bugs.fold(text, |text, bug| {
        assert_eq!(text.matches(bug.code).count(), 1, "{}: the code of the bug `{}`", bug.file, bug.name);
        let condition = format!("crate::bugs::is_planted({:?})", bug.name);
        text.replace(bug.code, &bug.replacement.replace("PLANTED", &condition))
    })
}

/// Replaces the atomics of the standard library, which have no crate that a manifest could replace,
/// outside of the imports. Removes from the root what only the first lines of a crate may contain,
/// and everywhere the tests and the documentation, whose examples are tests too.
fn on_shuttle(text: &str, is_root: bool) -> String {
    let mut is_import = false;
    let mut copy = String::with_capacity(text.len());
    for line in text.lines() {
        let is_doc = line.trim_start().starts_with("//!") || line.trim_start().starts_with("///");
        if is_doc || is_root && line.starts_with("#![") {
            continue;
        }
        is_import |= line.trim_start().starts_with("use ");
        // A static would belong to executions on several threads.
        if is_import || line.contains("static ") {
            copy.push_str(line);
        } else {
            let atomics = ["AtomicBool", "AtomicU64", "AtomicUsize"];
            let replaced = atomics.iter().fold(line.to_owned(), |line, name| {
                line.replace(name, &format!("::shuttle::sync::atomic::{name}"))
            });
            copy.push_str(
                &replaced.replace("cfg(test)", "cfg(false)").replace("cfg(all(test,", "cfg(all(false,"),
            );
        }
        copy.push('\n');
        is_import &= !line.trim_end().ends_with(';');
    }
    copy
}
