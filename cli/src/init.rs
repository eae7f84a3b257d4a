//! `dlock init` creates a store in a file, for one user or for the users of a group, or the tables of
//! a store in a database.

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

/// Mode of a shared folder. The group may use the folder, and new files in it belong to the group.
const SHARED_FOLDER: u32 = 0o2770;

/// Creates a store and prints its URL.
pub(crate) async fn init(stores: &Stores<'_>, args: Init) -> Outcome {
    match args.path.to_str().filter(|text| choice::is_server(text)) {
        Some(url) => init_server(stores, url, &args).await,
        None => init_file(stores, args).await,
    }
}

/// Connects to a server as an administrator would, so that the store creates its tables. Prints the
/// store without its password.
async fn init_server(stores: &Stores<'_>, url: &str, args: &Init) -> Outcome {
    if args.group.is_some() {
        return Err(Failure::usage(
            "`--group` is for a store in a file; grant users of a database their rights",
        ));
    }
    choice::check(url)?;
    let locks = stores.registry.connect(url).await?;
    let identity = locks.info().identity.clone();
    store::close(&locks).await;
    output::print(identity + "\n")?;
    Ok(OK)
}

async fn init_file(stores: &Stores<'_>, args: Init) -> Outcome {
    let file = path::absolute(&args.path).map_err(|error| create_failure(&args.path, &error))?;
    let (Some(folder), Some(_)) = (file.parent(), file.file_name()) else {
        return Err(Failure::usage("name the file, for example `/srv/locks/locks.db`"));
    };
    let group = args.group.as_deref().map(group).transpose()?;
    create_folder(folder, group.as_ref())?;
    let url = choice::url(&file)?;
    let locks = stores.registry.connect(&url).await?;
    store::close(&locks).await;
    if let Some(group) = &group {
        check_shared(&file, group, 0o660)?;
    }
    output::print(url + "\n")?;
    Ok(OK)
}

/// Finds a group by its name or number.
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

/// Creates the folder if it does not exist. Does not change an existing folder, because its rights
/// may be intended.
fn create_folder(folder: &Path, group: Option<&Group>) -> Outcome<()> {
    let mode = if group.is_some() { 0o700 } else { 0o777 };
    match (DirBuilder::new().mode(mode).create(folder), group) {
        (Ok(()), Some(group)) => share(folder, group).inspect_err(|_| {
            fs::remove_dir(folder).ok();
        }),
        (Ok(()), None) => Ok(()),
        (Err(error), _) if error.kind() != ErrorKind::AlreadyExists => Err(create_failure(folder, &error)),
        (Err(_), Some(group)) => check_shared(folder, group, SHARED_FOLDER),
        (Err(_), None) => Ok(()),
    }
}

/// Gives a new folder to a group.
fn share(folder: &Path, group: &Group) -> Outcome<()> {
    let flags = (OFlags::DIRECTORY | OFlags::NOFOLLOW).bits().cast_signed();
    let open = File::options().read(true).custom_flags(flags).open(folder);
    let handle = open.map_err(|error| create_failure(folder, &error))?;
    fchown(&handle, None, Some(group.gid.as_raw())).map_err(|error| {
        let (folder, name) = (folder.display(), &group.name);
        Failure::config(format!(
            "cannot give `{folder}` to group `{name}`: {error}; a user can only use groups of which it is a member"
        ))
    })?;
    handle
        .set_permissions(Permissions::from_mode(SHARED_FOLDER))
        .map_err(|error| create_failure(folder, &error))
}

/// Refuses a file or folder that the group cannot use.
fn check_shared(path: &Path, group: &Group, mode: u32) -> Outcome<()> {
    let found = fs::metadata(path).map_err(|error| create_failure(path, &error))?;
    if found.gid() == group.gid.as_raw() && found.mode() & mode == mode {
        return Ok(());
    }
    let (path, name) = (path.display(), &group.name);
    Err(Failure::config(format!(
        "`{path}` exists already and is not shared with group `{name}`; use another path, or share it with \
         `chgrp {name} {path} && chmod {mode:o} {path}`"
    )))
}

fn create_failure(path: &Path, error: &io::Error) -> Failure {
    Failure::config(format!("cannot create `{}`: {error}", path.display()))
}
