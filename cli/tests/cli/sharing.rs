//! Access to a new store, which depends on the umask of its creator and on its folder.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use crate::place::Place;

/// Acquires a lock in `folder` with this umask. Returns the modes of the store and of its
/// doorbells.
fn modes(place: &Place, folder: &Path, umask: &str) -> (u32, u32) {
    fs::create_dir_all(folder).unwrap();
    let store = folder.join("locks.db");
    let text = format!("umask {umask}; DLOCK_STORE=sqlite:{} exec $DLOCK run x -- true", store.display());
    let ended = place.run(["run", "outer", "-c", &text]);
    assert_eq!((ended.status, &*ended.err), (0, ""));
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().mode();
    (mode(&store) & 0o777, mode(&folder.join("locks.db-bells")) & 0o777)
}

#[test]
fn a_new_store_is_for_whom_the_umask_lets_in() {
    let place = Place::new();
    for (umask, store, bells) in
        [("077", 0o600, 0o700), ("022", 0o644, 0o700), ("002", 0o664, 0o770), ("000", 0o666, 0o777)]
    {
        assert_eq!(modes(&place, &place.path(umask), umask), (store, bells), "umask {umask}");
    }
}

#[test]
fn a_folder_that_passes_its_group_on_shares_the_store_whatever_the_umask() {
    let place = Place::new();
    let folder = place.path("shared");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, Permissions::from_mode(0o2770)).unwrap();
    assert_eq!(modes(&place, &folder, "077"), (0o660, 0o770));
}

#[test]
fn a_store_that_is_opened_to_others_later_opens_its_doorbells_too() {
    let place = Place::new();
    let folder = place.path("later");
    assert_eq!(modes(&place, &folder, "077"), (0o600, 0o700));
    for end in ["", "-wal", "-shm"] {
        let path = folder.join(format!("locks.db{end}"));
        fs::set_permissions(&path, Permissions::from_mode(0o666)).ok();
    }
    assert_eq!(modes(&place, &folder, "077"), (0o666, 0o777));
}

#[test]
fn init_makes_a_store_and_says_its_url() {
    let place = Place::new();
    let store = place.path("new folder/locks.db");
    let ended = place.run(["init", "new folder/locks.db"]);
    assert_eq!((ended.status, &*ended.out), (0, &*format!("sqlite:{}\n", store.display())));
    assert!(store.exists());
    let again = place.run(["init", "new folder/locks.db"]);
    assert_eq!((again.status, again.out), (0, ended.out));
    let ended = place.run(["init", "--group", "no such group", "other/locks.db"]);
    assert_eq!(ended.status, 64, "{}", ended.err);
    assert!(!place.path("other").exists(), "a store was created for a group that does not exist");
    let ended = place.run(["init", "memory://x"]);
    assert_eq!(ended.status, 78, "a store inside one process needs nothing: {}", ended.err);
}
