//! Fuzz target of the status of a process.

use super::*;

#[test]
fn the_status_of_a_process_is_behind_the_name_of_its_program() {
    dlock_fuzz::target!("stat").check(|input| {
        // The kernel cuts the name, which may have any character.
        let name: String = input.other_text().chars().take(15).collect();
        let threads = input.number(1) % 3;
        let stat = format!(
            "4711 ({name}) Z 17 4711 4711 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 {threads} 0 {} 0",
            input.number(0)
        );
        let status = Status::parse(&stat).expect("the kernel's format");
        assert_eq!((status.parent, status.has_ended, status.started), (17, threads < 2, input.number(0)));
        // Only that another text ends nothing.
        Status::parse(&input.text());
    });
}
