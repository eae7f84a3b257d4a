//! `dlock init`: makes a store in a file, for one user or for a group's.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io::{self, ErrorKind},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
    path::{self, Path},
};

use nix::unistd::Group;
use rustix::fs::OFlags;

use crate::{
    args::Init,
    choice::{self, Stores},
    exit::{Failure, OK, Outcome},
    output, store,
};

/// The folder's mode. The group may use the folder, and files that are made in it belong to the group too.
const SHARED: u32 = 0o2770;

/// Makes a store and prints its URL.
pub(crate) async fn init(stores: &Stores<'_>, args: Init) -> Outcome {
    let file = path::absolute(&args.path).map_err(|error| unmade(&args.path, &error))?;
    let (Some(folder), Some(_)) = (file.parent(), file.file_name()) else {
        return Err(Failure::usage("name the file, for example `/srv/locks/locks.db`"));
    };
    let group = args.group.as_deref().map(group).transpose()?;
    make_folder(folder, group.as_ref())?;
    let url = choice::url(&file)?;
    let locks = stores.registry.connect(&url).await?;
    store::close(&locks).await;
    if let Some(group) = &group {
        check_shared(&file, group, 0o660)?;
    }
    output::print(url + "\n")?;
    Ok(OK)
}

/// A group by its name or number.
fn group(text: &str) -> Outcome<Group> {
    let found = match text.parse::<u32>() {
        Ok(number) => Group::from_gid(number.into()),
        Err(_) => Group::from_name(text),
    };
    match found {
        Ok(Some(group)) => Ok(group),
        Ok(None) => Err(Failure::usage(format!("there is no group `{}`", text.escape_debug()))),
        Err(error) => {
            Err(Failure::config(format!("cannot look up group `{}`: {error}", text.escape_debug())))
        }
    }
}

/// Makes the folder if there is none. Does not change an existing folder, because somebody may have chosen its rights.
fn make_folder(folder: &Path, group: Option<&Group>) -> Outcome<()> {
    let mode = if group.is_some() { 0o700 } else { 0o777 };
    match (DirBuilder::new().mode(mode).create(folder), group) {
        (Ok(()), Some(group)) => share(folder, group).inspect_err(|_| {
            fs::remove_dir(folder).ok();
        }),
        (Ok(()), None) => Ok(()),
        (Err(error), _) if error.kind() != ErrorKind::AlreadyExists => Err(unmade(folder, &error)),
        (Err(_), Some(group)) => check_shared(folder, group, SHARED),
        (Err(_), None) => Ok(()),
    }
}

/// Gives a folder that was just made to a group.
fn share(folder: &Path, group: &Group) -> Outcome<()> {
    let flags = (OFlags::DIRECTORY | OFlags::NOFOLLOW).bits().cast_signed();
    let open = File::options().read(true).custom_flags(flags).open(folder);
    let handle = open.map_err(|error| unmade(folder, &error))?;
    fchown(&handle, None, Some(group.gid.as_raw())).map_err(|error| {
        let (shown, name) = (folder.display(), &group.name);
        Failure::config(format!(
            "cannot give `{shown}` to group `{name}`: {error}; a user can do so only for groups of which it is a member"
        ))
    })?;
    handle.set_permissions(Permissions::from_mode(SHARED)).map_err(|error| unmade(folder, &error))
}

/// Refuses what the group could not use.
fn check_shared(path: &Path, group: &Group, mode: u32) -> Outcome<()> {
    let found = fs::metadata(path).map_err(|error| unmade(path, &error))?;
    if found.gid() == group.gid.as_raw() && found.mode() & mode == mode {
        return Ok(());
    }
    let (shown, name) = (path.display(), &group.name);
    Err(Failure::config(format!(
        "`{shown}` is there already and not shared with group `{name}`: name another, or share it with \
         `chgrp {name} {shown} && chmod {mode:o} {shown}`"
    )))
}

fn unmade(path: &Path, error: &io::Error) -> Failure {
    Failure::config(format!("cannot make `{}`: {error}", path.display()))
}
