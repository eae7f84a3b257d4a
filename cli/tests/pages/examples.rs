//! Promises of the book's examples beyond their exit status and output.

use libtest_mimic::Trial;

use crate::{
    page::{Page, root},
    run::Folder,
};

pub(crate) fn tests() -> Vec<Trial> {
    dlock_conformance::tests! {
        the_worker_pool_has_four_at_once_at_most on no runtime,
        the_daily_report_is_made_once on no runtime,
        a_ticket_goes_from_one_step_to_the_next on no runtime,
        jobs_do_not_overlap_while_a_lock_moves_to_another_store on no runtime,
    }
}

/// Returns the example of a page that contains these words.
fn example(page: &str, words: &str) -> String {
    let page = Page::read(root().join("docs/book/src").join(page));
    let mut examples: Vec<_> = page
        .blocks()
        .into_iter()
        .filter(|block| block.language == "sh" && block.text.contains(words))
        .collect();
    assert_eq!(examples.len(), 1, "`{words}` is not in exactly one example: {examples:?}");
    examples.remove(0).text
}

fn the_worker_pool_has_four_at_once_at_most() {
    let ended = Folder::new(None).run_example(&example("pool.md", "--slots 4"));
    assert_eq!((ended.status, &*ended.err), (0, ""));
    let mut inside = 0;
    for line in ended.out.lines() {
        inside += if line.starts_with("begin ") { 1 } else { -1 };
        assert!((0..=4).contains(&inside), "{}", ended.out);
    }
    assert_eq!((inside, ended.out.lines().count()), (0, 16), "{}", ended.out);
}

fn the_daily_report_is_made_once() {
    let folder = Folder::new(None);
    for times in [1, 0] {
        let ended = folder.run_example(&example("once-per-period.md", "for host in"));
        assert_eq!(ended.status, 0, "{}", ended.err);
        assert_eq!(ended.out.lines().count(), times, "{}", ended.out);
        assert_eq!(ended.err, "", "a job without work prints a message, which cron would mail");
    }
}

fn a_ticket_goes_from_one_step_to_the_next() {
    let folder = Folder::new(None);
    let ended = folder.run_example(&example("deploy.md", "ticket=$(dlock acquire --for 1h deploy)"));
    assert_eq!((ended.status, &*ended.err), (0, ""));
    assert_eq!(folder.run("dlock", &["ls"], &[]).out, "", "a lock is still held");
}

/// A job that fails if another one runs.
const EXCLUSIVE_JOB: &str = "mkdir inside || exit 9; sleep 0.02; rmdir inside; echo done";

fn jobs_do_not_overlap_while_a_lock_moves_to_another_store() {
    let example = example("move-store.md", "# in between");
    let (variables, commands) = example.split_once('\n').unwrap();
    let commands: Vec<_> = commands.lines().collect();
    assert_eq!(commands.len(), 3, "{example}");
    let folder = Folder::new(None);
    folder.create_program("job", EXCLUSIVE_JOB);
    for step in commands.windows(2) {
        let jobs: String =
            step.iter().map(|command| format!("{} &\n", command.split('#').next().unwrap())).collect();
        let ended = folder.run_example(&format!("{variables}\nfor turn in 1 2 3 4 5; do\n{jobs}done\nwait"));
        assert_eq!((ended.out, ended.err), ("done\n".repeat(10), String::new()), "{step:?}");
    }
}
