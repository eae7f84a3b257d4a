//! One store with several users and containers. The tests need root, which can switch to each of
//! these users.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "the tests start processes, not tasks")]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::{
    fs::{self, Permissions},
    io::{BufRead, BufReader, Write},
    os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Output, Stdio},
    time::{Duration, Instant},
};

use dlock_conformance::Unreachable;
use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;

/// Maximum time of a hand-over to a waiter that is woken. A waiter that is not woken polls only
/// after a third of the ttl, which is much longer.
const SOON: Duration = Duration::from_secs(6);

/// Two users without an account.
const ANNA: u32 = 54_321;
const BERT: u32 = 54_322;

fn main() -> ExitCode {
    let args = Arguments::from_args();
    let trials = match check_rights() {
        Ok(()) => CASES.iter().map(|(name, case)| trial(name, *case)).collect(),
        Err(reason) => vec![Unreachable { name: "users".to_owned(), reason }.trial("users")],
    };
    libtest_mimic::run(&args, trials).exit_code()
}

fn trial(name: &str, case: fn()) -> Trial {
    Trial::test(name, move || {
        case();
        Ok(())
    })
}

const CASES: [(&str, fn()); 18] = [
    ("as_the_first_process_it_reaps_what_it_inherits", as_the_first_process_it_reaps_what_it_inherits),
    ("one_file_names_the_store_of_all_users", one_file_names_the_store_of_all_users),
    ("a_group_shares_a_store_and_wakes_its_waiters", a_group_shares_a_store_and_wakes_its_waiters),
    ("another_users_killed_holder_is_seen_at_once", another_users_killed_holder_is_seen_at_once),
    (
        "root_with_the_home_of_a_user_creates_a_store_for_the_user",
        root_with_the_home_of_a_user_creates_a_store_for_the_user,
    ),
    (
        "root_that_may_not_give_files_away_creates_stores_for_itself",
        root_that_may_not_give_files_away_creates_stores_for_itself,
    ),
    ("root_is_rung_by_the_user_whose_store_it_uses", root_is_rung_by_the_user_whose_store_it_uses),
    ("a_user_who_cannot_use_the_doorbells_polls", a_user_who_cannot_use_the_doorbells_polls),
    ("without_rights_the_error_says_how_to_share", without_rights_the_error_says_how_to_share),
    ("a_strangers_doorbells_are_refused", a_strangers_doorbells_are_refused),
    ("a_strangers_file_or_log_is_refused", a_strangers_file_or_log_is_refused),
    ("a_store_on_a_read_only_file_system_is_unavailable", a_store_on_a_read_only_file_system_is_unavailable),
    ("another_boot_is_refused_while_a_holder_lives", another_boot_is_refused_while_a_holder_lives),
    ("another_clock_is_refused_while_a_holder_lives", another_clock_is_refused_while_a_holder_lives),
    ("a_file_that_is_mounted_alone_is_refused", a_file_that_is_mounted_alone_is_refused),
    ("a_full_disk_is_reported_until_there_is_space", a_full_disk_is_reported_until_there_is_space),
    ("a_command_that_may_not_be_stopped_is_reported", a_command_that_may_not_be_stopped_is_reported),
    (
        "a_command_that_changes_its_user_outlives_a_killed_dlock",
        a_command_that_changes_its_user_outlives_a_killed_dlock,
    ),
];

/// Checks that this process has the rights that the cases need.
fn check_rights() -> Result<(), String> {
    let mut mount = Command::new("unshare");
    let mount =
        mount.args(["-m", "-T", "setpriv", "--reuid=1", "--regid=1", "--clear-groups", "true"]).output();
    match mount {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err("they need root, `unshare`, time namespaces and `setpriv`".to_owned()),
    }
}

/// A folder that every user may enter, with a `dlock` that every user may run.
struct Commons(TempDir);

impl Commons {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        // Another process writes the copy. If this process had the copy open for writing, a child
        // that another test starts at the same time would inherit the descriptor, and the copy
        // could not be executed.
        let mut copy = Command::new("cp");
        assert!(copy.arg(env!("CARGO_BIN_EXE_dlock")).arg(dir.path()).status().unwrap().success());
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Creates a folder inside this folder.
    fn folder(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.path(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    /// Returns a shell command with `$DLOCK`, for this user and the store in `store`.
    fn shell(&self, user: u32, group: u32, store: &Path, text: &str) -> Command {
        let mut command = Command::new("setpriv");
        command
            .arg(format!("--reuid={user}"))
            .arg(format!("--regid={user}"))
            .arg(format!("--groups={group}"));
        command.args(["sh", "-c", text]).current_dir(&self.0).stdin(Stdio::null());
        command.env("DLOCK", self.path("dlock"));
        command.env("DLOCK_STORE", format!("sqlite:{}", store.display()));
        for variable in ["DLOCK_NAME", "DLOCK_TOKEN", "DLOCK_HELD"] {
            command.env_remove(variable);
        }
        command
    }

    fn ended(&self, user: u32, group: u32, store: &Path, text: &str) -> Output {
        self.shell(user, group, store, text).output().unwrap()
    }

    /// Starts a process that holds lock `x`.
    fn holder(&self, user: u32, group: u32, store: &Path, umask: &str) -> Holder {
        let text = format!("umask {umask}; exec $DLOCK run x -- sh -c 'echo held; exec sleep 60'");
        let mut process = self.shell(user, group, store, &text).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "held");
        Holder(process)
    }

    /// Returns the time from a call of `free`, which ends the holder, until a waiter has got lock
    /// `x`.
    fn handed_over(&self, user: u32, group: u32, store: &Path, free: impl FnOnce()) -> Duration {
        let mut waiter =
            self.shell(user, group, store, "umask 022; exec $DLOCK run x -- true").spawn().unwrap();
        let root = |text| self.ended(0, 0, store, text);
        while !String::from_utf8_lossy(&root("$DLOCK inspect x").stdout).contains("waits") {
            assert!(waiter.try_wait().unwrap().is_none(), "the waiter got a lock that is held");
        }
        let freed = Instant::now();
        free();
        assert!(waiter.wait().unwrap().success());
        freed.elapsed()
    }
}

struct Holder(Child);

impl Holder {
    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").arg(signal).arg(self.0.id().to_string()).status().unwrap().success());
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Returns the name and the number of a group.
fn group() -> (String, u32) {
    let groups = fs::read_to_string("/etc/group").unwrap();
    let named = groups.lines().find_map(|line| {
        let mut words = line.split(':');
        let (name, number) = (words.next()?, words.nth(1)?.parse().ok()?);
        (number != 0).then(|| (name.to_owned(), number))
    });
    named.expect("a group other than root's")
}

/// Creates a store for a group with `dlock init`. Returns the file and the group's number.
fn shared(commons: &Commons) -> (PathBuf, u32) {
    let (name, number) = group();
    let store = commons.path("shared/locks.db");
    let init = format!("umask 077; exec $DLOCK init --group {name} {}", store.display());
    let output = commons.ended(0, 0, &store, &init);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), format!("sqlite:{}", store.display()));
    (store, number)
}

fn refused(output: &Output, words: &str) {
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{err}");
    assert!(err.contains(words), "`{words}` is not in: {err}");
}

fn a_group_shares_a_store_and_wakes_its_waiters() {
    let commons = Commons::new();
    let (store, group) = shared(&commons);
    for (holder, waiter) in [(ANNA, BERT), (BERT, ANNA), (0, ANNA), (ANNA, 0)] {
        let holder = commons.holder(holder, group, &store, "077");
        let took = commons.handed_over(waiter, group, &store, || holder.signal("-TERM"));
        assert!(took < SOON, "the waiter was not woken, and polled after {took:?}");
    }
    for path in [store.clone(), store.with_extension("db-wal"), store.with_extension("db-shm")] {
        let Ok(found) = fs::metadata(&path) else { continue };
        assert_eq!((found.gid(), found.mode() & 0o662), (group, 0o660), "{path:?}");
    }
}

fn another_users_killed_holder_is_seen_at_once() {
    let commons = Commons::new();
    let (store, group) = shared(&commons);
    let holder = commons.holder(ANNA, group, &store, "077");
    let took = commons.handed_over(BERT, group, &store, || holder.signal("-KILL"));
    assert!(took < SOON, "{took:?}");
    let holder = commons.holder(ANNA, group, &store, "077");
    drop(holder);
    let output = commons.ended(BERT, group, &store, "exec $DLOCK try x");
    assert!(output.status.success(), "the lock of a dead holder is not free: {output:?}");
}

fn root_is_rung_by_the_user_whose_store_it_uses() {
    let commons = Commons::new();
    let folder = commons.folder("annas", 0o755);
    chown(&folder, Some(ANNA), Some(ANNA)).unwrap();
    let store = folder.join("locks.db");
    let holder = commons.holder(ANNA, ANNA, &store, "022");
    let took = commons.handed_over(0, 0, &store, || holder.signal("-TERM"));
    assert!(took < SOON, "{took:?}");
    let holder = commons.holder(0, 0, &store, "022");
    let took = commons.handed_over(ANNA, ANNA, &store, || holder.signal("-TERM"));
    assert!(took < SOON, "{took:?}");
}

/// All users have rights on the file, but not on the doorbells.
fn a_user_who_cannot_use_the_doorbells_polls() {
    let commons = Commons::new();
    let store = commons.folder("open", 0o777).join("locks.db");
    assert!(commons.ended(ANNA, ANNA, &store, "exec $DLOCK try y").status.success());
    for end in ["", "-wal", "-shm"] {
        fs::set_permissions(format!("{}{end}", store.display()), Permissions::from_mode(0o666)).ok();
    }
    let holder = commons.holder(BERT, BERT, &store, "022");
    let took = commons.handed_over(ANNA, ANNA, &store, || holder.signal("-TERM"));
    assert!(took < SOON, "{took:?}");
    let holder = commons.holder(ANNA, ANNA, &store, "022");
    let took = commons.handed_over(BERT, BERT, &store, || holder.signal("-TERM"));
    assert!(took < SOON, "{took:?}");
}

fn without_rights_the_error_says_how_to_share() {
    let commons = Commons::new();
    let store = commons.folder("open", 0o777).join("locks.db");
    assert!(commons.ended(ANNA, ANNA, &store, "umask 022; exec $DLOCK try y").status.success());
    refused(&commons.ended(BERT, BERT, &store, "exec $DLOCK try y"), "dlock init --group");
    let (store, _) = shared(&commons);
    refused(&commons.ended(BERT, BERT, &store, "exec $DLOCK try y"), "dlock init --group");
}

/// In a folder where all users may create files, another user has created doorbells, or a link,
/// before the store existed.
fn a_strangers_doorbells_are_refused() {
    let commons = Commons::new();
    let folder = commons.folder("tmp", 0o1777);
    let (store, bells) = (folder.join("locks.db"), folder.join("locks.db-bells"));
    let try_it = || commons.ended(0, 0, &store, "umask 077; exec $DLOCK run x -- true");
    fs::create_dir(&bells).unwrap();
    fs::set_permissions(&bells, Permissions::from_mode(0o777)).unwrap();
    chown(&bells, Some(ANNA), None).unwrap();
    refused(&try_it(), "who has no part in the store");
    assert_eq!(
        fs::read_dir(&bells).unwrap().count(),
        0,
        "dlock has created a file in the other user's folder"
    );
    fs::remove_dir(&bells).unwrap();
    let elsewhere = commons.folder("elsewhere", 0o755);
    fs::write(elsewhere.join("0123456789abcdef0123456789abcdef.new"), "").unwrap();
    symlink(&elsewhere, &bells).unwrap();
    refused(&try_it(), "is not a folder");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 1, "dlock has changed the folder behind the link");
    fs::remove_file(&bells).unwrap();
    assert!(try_it().status.success());
}

fn a_strangers_file_or_log_is_refused() {
    let commons = Commons::new();
    let folder = commons.folder("tmp", 0o1777);
    let store = folder.join("locks.db");
    fs::write(&store, "").unwrap();
    chown(&store, Some(ANNA), None).unwrap();
    refused(&commons.ended(0, 0, &store, "exec $DLOCK try x"), "alone, and neither to this user");
    fs::remove_file(&store).unwrap();
    for end in ["-wal", "-shm", "-journal"] {
        let path = folder.join(format!("locks.db{end}"));
        fs::write(&path, "").unwrap();
        chown(&path, Some(ANNA), None).unwrap();
        refused(&commons.ended(0, 0, &store, "exec $DLOCK try x"), "who has no part in the store");
        fs::remove_file(&path).unwrap();
        symlink("/etc/passwd", &path).unwrap();
        refused(&commons.ended(0, 0, &store, "exec $DLOCK try x"), "is not an ordinary file");
        fs::remove_file(&path).unwrap();
    }
}

/// Runs a shell command as root, in a new mount namespace.
fn with_mounts(commons: &Commons, store: &Path, text: &str) -> Output {
    commons.ended(0, 0, store, &format!("exec unshare -m sh -c '{text}'"))
}

/// SQLite creates the files beside the store when it opens it.
fn a_store_on_a_read_only_file_system_is_unavailable() {
    let commons = Commons::new();
    let store = commons.folder("own", 0o700).join("locks.db");
    for leftovers in ["rm -rf own/locks.db-*", "touch own/locks.db-wal"] {
        // A process may end before SQLite has moved the journal into the file, which the next one does.
        let merged =
            "until test -f own/locks.db && test ! -e own/locks.db-wal; do $DLOCK try x -- true || exit; done";
        let text = format!(
            "mount -t tmpfs none own && {merged} && {leftovers} && mount -o remount,ro own && exec $DLOCK try x"
        );
        let output = with_mounts(&commons, &store, &text);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{leftovers}: {said}");
        assert!(said.contains("read-only"), "{leftovers}: {said}");
    }
}

fn another_boot_is_refused_while_a_holder_lives() {
    const BOOT: &str = "/proc/sys/kernel/random/boot_id";
    let commons = Commons::new();
    let store = commons.folder("own", 0o700).join("locks.db");
    let holder = commons.holder(0, 0, &store, "022");
    fs::write(commons.path("boot"), "01234567-89ab-cdef-0123-456789abcdef\n").unwrap();
    let another = format!("mount --bind boot {BOOT} && exec $DLOCK try x -- echo second");
    let output = with_mounts(&commons, &store, &another);
    refused(&output, "another boot");
    assert!(output.stdout.is_empty(), "the command ran without the lock");
    let hidden =
        with_mounts(&commons, &store, "mount -t tmpfs none /proc/sys && exec $DLOCK try x -- echo second");
    refused(&hidden, "cannot tell which boot");
    drop(holder);
    let output = with_mounts(&commons, &store, &another);
    assert!(output.status.success(), "the store was refused although the lock is free: {output:?}");
}

/// The clock of a time namespace, which a container may have, is ahead by a day.
fn another_clock_is_refused_while_a_holder_lives() {
    let commons = Commons::new();
    let store = commons.folder("own", 0o700).join("locks.db");
    let holder = commons.holder(0, 0, &store, "022");
    let ahead = "exec unshare -T --boottime 86400 $DLOCK try x -- echo second";
    let output = commons.ended(0, 0, &store, ahead);
    refused(&output, "another clock");
    assert!(output.stdout.is_empty(), "the command ran without the lock");
    let output = commons.ended(0, 0, &store, "exec $DLOCK try x -- echo second");
    assert_eq!(output.status.code(), Some(75), "the other clock has freed the lock: {output:?}");
    drop(holder);
    let output = commons.ended(0, 0, &store, ahead);
    assert!(output.status.success(), "the store was refused although the lock is free: {output:?}");
}

fn a_file_that_is_mounted_alone_is_refused() {
    let commons = Commons::new();
    let store = commons.folder("own", 0o700).join("locks.db");
    let holder = commons.holder(0, 0, &store, "022");
    let inside = commons.folder("inside", 0o700).join("locks.db");
    fs::write(&inside, "").unwrap();
    let mount = "mount --bind own/locks.db inside/locks.db && exec $DLOCK try x -- echo second";
    let output = with_mounts(&commons, &inside, mount);
    refused(&output, "mount its whole folder instead");
    let mount = "mount --bind own inside && exec $DLOCK try x -- echo second";
    let output = with_mounts(&commons, &inside, mount);
    assert_eq!(
        output.status.code(),
        Some(75),
        "it is not the same store, or the lock is not held: {output:?}"
    );
    drop(holder);
}

/// An orphan of the command ends, and does not stay a zombie of the container's first process.
fn as_the_first_process_it_reaps_what_it_inherits() {
    let commons = Commons::new();
    let store = commons.folder("own", 0o700).join("locks.db");
    let orphan = "p=$(sh -c \"sleep 0.1 >/dev/null & echo \\$!\"); n=0; \
                  while [ -e /proc/$p ] && [ $n -lt 600 ]; do sleep 0.1; n=$((n+1)); done; \
                  [ -e /proc/$p ] && echo a zombie || echo reaped; exit 7";
    let text = format!("exec unshare -pf --mount-proc $DLOCK run x -- sh -c '{orphan}'");
    let output = commons.ended(0, 0, &store, &text);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "reaped\n", "{output:?}");
    assert_eq!(output.status.code(), Some(7), "not the status of the command: {output:?}");
}

/// Creates the home directory of a user.
fn home_of_anna(commons: &Commons) -> PathBuf {
    let home_dir = commons.folder("home", 0o700);
    chown(&home_dir, Some(ANNA), Some(ANNA)).unwrap();
    home_dir
}

/// `sudo -E` and some containers run root with the HOME of a user.
fn root_with_the_home_of_a_user_creates_a_store_for_the_user() {
    let commons = Commons::new();
    let home_dir = home_of_anna(&commons);
    let text = format!(
        "unset DLOCK_STORE XDG_STATE_HOME; export HOME={}; \
         $DLOCK run x -- true; echo $?; find $HOME ! -user {ANNA}; ls $HOME/.local/state/dlock/locks.db; \
         exec setpriv --reuid={ANNA} --regid={ANNA} --clear-groups $DLOCK run x -- true",
        home_dir.display()
    );
    let output = commons.ended(0, 0, Path::new("unused"), &text);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(out, format!("0\n{}/.local/state/dlock/locks.db\n", home_dir.display()), "{err}");
    assert_eq!((output.status.code(), &*err), (Some(0), ""));
}

/// Such as root in a container without capabilities. The folders of the first store are new, and that
/// of the second one belongs to the user.
fn root_that_may_not_give_files_away_creates_stores_for_itself() {
    let commons = Commons::new();
    let home_dir = home_of_anna(&commons);
    let text = format!(
        "unset DLOCK_STORE XDG_STATE_HOME; export HOME={}; \
         weak() {{ setpriv --bounding-set -chown --inh-caps -chown $DLOCK run \"$@\" x -- true; echo $?; }}; \
         weak; weak --store sqlite:$HOME/locks.db; find $HOME -mindepth 1 -user {ANNA}",
        home_dir.display()
    );
    let output = commons.ended(0, 0, Path::new("unused"), &text);
    // A line more is a file that root has given away after all.
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n0\n", "{output:?}");
}

/// Reads `/etc/dlock.toml` from an `/etc` in a new mount namespace.
fn one_file_names_the_store_of_all_users() {
    let commons = Commons::new();
    let (store, group) = shared(&commons);
    let text = format!(
        "unset DLOCK_STORE XDG_STATE_HOME; groups={group}; mount -t tmpfs none /etc && \
         echo \"stores.main.url = \\\"sqlite:{}\\\"\" >/etc/dlock.toml && \
         as() {{ setpriv --reuid=$1 --regid=$1 --groups=$groups env HOME=/nowhere $DLOCK $2 $3 $4 $5; }}; \
         $DLOCK info; as {ANNA} info; \
         $DLOCK run x -- setpriv --reuid={ANNA} --regid={ANNA} --groups=$groups env -u DLOCK_HELD HOME=/nowhere $DLOCK try x; echo $?; \
         chmod 600 /etc/dlock.toml; as {ANNA} try x; echo $?",
        store.display()
    );
    let output = with_mounts(&commons, &store, &text);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(out.matches("in /etc/dlock.toml, for all users of this host").count(), 2, "{out}{err}");
    assert!(out.contains("\n75\n"), "a user does not see what root holds: {out}{err}");
    assert!(
        out.ends_with("\n78\n") && err.contains("cannot read `/etc/dlock.toml`"),
        "an unreadable configuration was ignored: {out}{err}"
    );
}

fn a_full_disk_is_reported_until_there_is_space() {
    let commons = Commons::new();
    let store = commons.folder("small", 0o700).join("locks.db");
    let text = "mount -t tmpfs -o size=400k none small && $DLOCK try x && cat /dev/zero >small/fill; \
                $DLOCK try x; echo $?; rm small/fill; exec $DLOCK try x";
    let output = with_mounts(&commons, &store, text);
    let err = String::from_utf8_lossy(&output.stderr);
    // The page size of the system decides whether the file or its shared memory fills the disk
    // first.
    let messages = ["its disk is full", "its disk or the memory is full"];
    assert!(messages.iter().any(|text| err.contains(text)), "{err}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "69", "{err}");
    assert!(output.status.success(), "{err}");
}

fn a_command_that_may_not_be_stopped_is_reported() {
    let commons = Commons::new();
    let store = commons.path("locks.db");
    // The command itself, and a command that can be stopped and has started another one.
    for (before, after) in [("exec ", ""), ("", "; true")] {
        let other =
            format!("{before}setpriv --reuid={ANNA} --clear-groups sh -c 'echo $$; exec sleep 60'{after}");
        // Root without the right to signal other users is like a user who runs sudo.
        let without = "exec setpriv --bounding-set=-kill --inh-caps=-kill";
        let text = format!("{without} $DLOCK run --kill-after 100ms x -c \"$OTHER\"");
        let mut run = commons.shell(0, 0, &store, &text);
        let mut run = run.env("OTHER", other).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut pid = String::new();
        BufReader::new(run.stdout.take().unwrap()).read_line(&mut pid).unwrap();
        assert!(commons.ended(0, 0, &store, "$DLOCK unlock --force x").status.success());
        let mut lines = BufReader::new(run.stderr.take().unwrap()).lines().map_while(Result::ok);
        let reported = lines.any(|line| line.contains("beside the next holder"));
        let killed = Command::new("kill").args(["-KILL", pid.trim()]).status().unwrap();
        assert!(reported && killed.success(), "reported: {reported}; ran until now: {}", killed.success());
        assert_eq!(run.wait().unwrap().code(), Some(74));
    }
}

/// A limit that the README documents. The kernel forgets that a process is to be killed with its
/// parent when the process changes its user, and does not apply it to children of the process.
fn a_command_that_changes_its_user_outlives_a_killed_dlock() {
    let commons = Commons::new();
    let store = commons.path("locks.db");
    let reader = "echo begun; read _; echo lives";
    for (command, outlives) in [
        (format!("sh -c '{reader}'"), false),
        (format!("sh -c '({reader}); true'"), true),
        (format!("setpriv --reuid={ANNA} --clear-groups sh -c '{reader}'"), true),
        (format!("setpriv --regid={ANNA} --clear-groups sh -c '{reader}'"), true),
    ] {
        let mut run = commons.shell(0, 0, &store, &format!("exec $DLOCK run x -- {command}"));
        let mut run = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = run.stdin.take().unwrap();
        let mut lines = BufReader::new(run.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert_eq!(lines.next().as_deref(), Some("begun"), "{command}");
        // The kernel kills the command before it reports the end of dlock.
        run.kill().unwrap();
        run.wait().unwrap();
        writeln!(input).ok();
        assert_eq!(lines.next().as_deref(), outlives.then_some("lives"), "{command}");
    }
}
